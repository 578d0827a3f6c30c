"""Measured collectives get the names (units) of expected ones: a meter knows their sizes and order alone."""

from collections.abc import Iterable
from dataclasses import replace

from dpcourse.ledger import Transfer


def name_start_broadcasts(transfers: list[Transfer]) -> list[Transfer]:
    """Name the broadcasts of the start, which a meter knows by their dtype."""
    return [
        replace(item, unit=f"weights and buffers, {item.unit}")
        if (item.phase, item.collective) == ("init", "broadcast")
        else item
        for item in transfers
    ]


def name_by_size(transfers: Iterable[Transfer], expected: Iterable[Transfer]) -> list[Transfer]:
    """Give measured collectives the units of expected ones with the same phase, group and payload, in order.

    One that nobody expected keeps the name that its meter gave it.
    """
    left = list(expected)
    return [replace(item, unit=_take_unit(item, left)) for item in transfers]


def _take_unit(item: Transfer, left: list[Transfer]) -> str:
    for index, other in enumerate(left):
        if _key(other) == _key(item):
            return left.pop(index).unit
    return item.unit


def _key(item: Transfer) -> tuple:
    return item.rank, item.phase, item.collective, item.payload_bytes, item.group
