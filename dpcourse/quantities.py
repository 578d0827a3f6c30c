"""Rates, times and sizes as people write them: "500mbit", "10 Gbit/s", "50us", "80GB"."""

import math
import re
import unicodedata
from numbers import Real
from typing import Any

_NUMBER = r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*"
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BITS_PER_SECOND = {
    prefix + unit: size for prefix, size in _PREFIXES.items() for unit in ("bit", "bit/s", "bps")
}
_BYTES = {
    unit: size**power
    for size, units in ((1000.0, ("b", "kb", "mb", "gb", "tb")), (1024.0, ("b", "kib", "mib", "gib", "tib")))
    for power, unit in enumerate(units)
}
# The Greek letter: Unicode's normal form of the sign for micro, which keyboards and units have as well.
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "μs": 1e-6, "ns": 1e-9}


def read_rate(what: str, asked: Any) -> float:
    """Read a rate in bits per second, such as "500mbit" or "2.5 Gbit/s", as bytes per second.

    A bare number is refused: nobody knows whether it counts bits or bytes. Raises ValueError for it, for
    units that are none, and for a rate that is not above 0.
    """
    found = _read(asked, _BITS_PER_SECOND)
    if found is None:
        raise ValueError(
            f"{what}={asked!r}: give a rate in bits per second as text with its unit, such as "
            '"500mbit", "10 Gbit/s" or "10gbps"'
        )
    if not 0 < found < math.inf:
        raise ValueError(f'{what}={asked!r}: give a rate above 0 and below infinity, such as "500mbit"')
    return found / 8


def read_seconds(what: str, asked: Any) -> float:
    """Read a time, such as "50us", or a number of seconds.

    Raises ValueError for what is neither, or below 0.
    """
    found = _as_float(asked) if isinstance(asked, Real) else _read(asked, _SECONDS)
    if found is None:
        raise ValueError(
            f'{what}={asked!r}: give a time with its unit, such as "50us" or "2ms" '
            f"(there is {', '.join(_SECONDS)}), or a number of seconds"
        )
    if not 0 <= found < math.inf:
        raise ValueError(f"{what}={asked!r}: give a time of 0 or more, below infinity")
    return found


def read_bytes(what: str, asked: Any) -> int:
    """Read a size of memory with its unit: "80GB" is 80e9 bytes, "80GiB" 80 x 2**30.

    Raises ValueError for a bare number, units that are none, and a size that is not above 0.
    """
    found = _read(asked, _BYTES)
    if found is None:
        raise ValueError(
            f'{what}={asked!r}: give a size as text with its unit, such as "80GB" (10**9 bytes each) or '
            '"80GiB" (2**30 bytes each)'
        )
    if not 1 <= found < math.inf:
        raise ValueError(f'{what}={asked!r}: give a size above 0 and below infinity, such as "80GB"')
    return round(found)


def _as_float(asked: Real) -> float | None:
    """Read a number of any kind, numpy's too, as a float; a truth value is none."""
    if isinstance(asked, bool):
        return None
    try:
        return float(asked)
    except OverflowError:
        return math.inf


def rate_text(bytes_per_second: float) -> str:
    """Write a rate as people ask for it: 62500000 is "500 Mbit/s"."""
    bits = 8 * bytes_per_second
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= size:
            return f"{bits / size:.4g} {unit}"
    return f"{bits:.4g} bit/s"


def _read(asked: Any, units: dict[str, float]) -> float | None:
    """Read a number and a unit, a minus sign included; None where it is not of that form."""
    if not isinstance(asked, str):
        return None
    text = unicodedata.normalize("NFKC", asked).lower()
    match = re.fullmatch(rf"\s*(-?){_NUMBER}({'|'.join(units)})\s*", text)
    if match is None:
        return None
    sign, number, unit = match.groups()
    return (-1 if sign else 1) * float(number) * units[unit]
