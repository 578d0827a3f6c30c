"""Whether a value has the form that was asked for: exact types first, so that nothing can claim equality."""

from collections.abc import Collection
from typing import Any

from dpcourse.labs.question import Finding

_MAX_SHOWN = 60  # characters of a value in a message


def wrong_fields(value: Any, names: Collection[str], kinds: tuple[type, ...]) -> Finding | None:
    """What keeps `value` from being a dict with just these names and values of just these types."""
    if type(value) is not dict or set(value) != set(names):
        return Finding("wrong_type", f"expected a dict with {', '.join(names)}")
    missing = [name for name in names if value[name] is None]
    if missing:
        return Finding("incomplete", f"still None: {', '.join(missing)}")
    wrong = [name for name in names if type(value[name]) not in kinds]
    return Finding("wrong_type", f"{wrong[0]} is {shown(value[wrong[0]])}") if wrong else None


def shown(value: Any) -> str:
    """A value in a message: the beginning of its text, or only its type where it is no plain value."""
    if type(value) is dict and set(value) == {"type"}:  # what a rank sends of anything else
        return f"of type {str(value['type'])[:_MAX_SHOWN]}"
    if type(value) in (bool, float, str):
        return repr(value)[:_MAX_SHOWN]
    return f"of type {type(value).__name__}"
