"""Checks that say in words what is wrong with a value: counts, and plain data read by declared types."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "True or False"}


def check_count(what: str, asked: Any) -> None:
    """Refuse what is no whole number from 1 on."""
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        raise ValueError(f"{what}={asked!r}: give a whole number from 1 on")


def divided(of: str, number: int, what: str, parts: int, otherwise: str = "") -> int:
    """Share a number of `of` out evenly over `what`; refuse what leaves a rest, with the numbers that fit.

    otherwise: another way out, said at the end.
    """
    if number % parts:
        fewer = number - number % parts
        fitting = " or ".join(str(count) for count in (fewer, fewer + parts) if count)
        raise ValueError(
            f"{of}={number} do not divide by {what}={parts}, and every host has equally many; "
            f"ask for {fitting} {of}{otherwise}"
        )
    return number // parts


def check_choice(what: str, asked: Any, known: Sequence[Any]) -> None:
    """Refuse what is not among a few values."""
    if asked not in known:
        raise ValueError(f"{what}={asked!r}: give {', '.join(map(repr, known[:-1]))} or {known[-1]!r}")


def read_as(hint: Any, value: Any, what: str) -> Any:
    """Read plain data (as JSON has it) as a declared type: a dataclass with exactly its fields, a tuple from
    a list, a mapping with text keys, a number, a text.

    Raises ValueError that names the place, such as "records[0].losses[2]=None: give a number".
    """
    inside = get_args(hint)
    if hint is Any:
        return value
    if get_origin(hint) is UnionType:  # a type or None
        return None if value is None else read_as(inside[0], value, what)
    if is_dataclass(hint):
        return _read_fields(hint, value, what)
    if get_origin(hint) is tuple:
        _need(isinstance(value, list | tuple), what, value, "a list")
        return tuple(read_as(inside[0], item, f"{what}[{index}]") for index, item in enumerate(value))
    if get_origin(hint) is Mapping:
        _need(isinstance(value, Mapping), what, value, "names with values")
        return {key: read_as(inside[1], item, f"{what}[{key!r}]") for key, item in value.items()}
    kinds = int | float if hint is float else hint
    _need(isinstance(value, kinds) and isinstance(value, bool) == (hint is bool), what, value, _WORDS[hint])
    return value


def _read_fields(kind: Any, plain: Any, what: str) -> Any:
    """Make a dataclass of a mapping that has exactly its compared fields."""
    known = {item.name for item in fields(kind) if item.compare}
    _need(isinstance(plain, Mapping), what, plain, "names with values")
    _need(set(plain) == known, what, plain, f"exactly the fields {', '.join(sorted(known))}")
    hints = _hints(kind)
    return kind(**{name: read_as(hints[name], value, f"{what}.{name}") for name, value in plain.items()})


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _need(is_right: bool, what: str, found: Any, wanted: str) -> None:
    if not is_right:
        text = repr(found)
        raise ValueError(f"{what}={text if len(text) < 80 else text[:80] + '...'}: give {wanted}")
