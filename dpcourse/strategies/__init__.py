"""The strategies by name, and what each of them says and does.

A strategy is one file. It declares its options, the lists to expect for a setting (no torch needed), and
how it wraps a module (torch imported inside). A file is imported when its name is first asked for.
"""

import difflib
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol

from dpcourse.checks import read_as
from dpcourse.layout import Layout
from dpcourse.ledger import Holding, Transfer

STRATEGIES = {
    "single": "dpcourse.strategies.single",
    "ddp": "dpcourse.strategies.ddp",
}

STEADY_STEP = 4  # from here on every step of every strategy is like the next


@dataclass(frozen=True)
class Setting:
    """What a run is asked to do, in integers: enough to say what it will hold and move.

    batch_size counts the samples of the global batch. activation_bytes maps a part of the model to what
    autograd keeps of it on one rank, batch_bytes is one rank's share of the batch; None where nobody knows.
    """

    layout: Layout
    world_size: int
    batch_size: int
    optimizer: str = "adamw"
    options: Any = None
    activation_bytes: Mapping[str, int] | None = None
    batch_bytes: int | None = None

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(range(self.world_size))


class Strategy(Protocol):
    """What a strategy's file has."""

    Options: type

    def check(self, setting: Setting) -> None: ...
    def expected_memory(self, setting: Setting) -> list[Holding]: ...
    def expected_traffic(self, setting: Setting, step: int = STEADY_STEP) -> list[Transfer]: ...
    def wrap(self, module: Any, options: Any) -> Any: ...
    def name_transfers(self, transfers: list[Transfer]) -> list[Transfer]: ...


def find(name: str) -> Strategy:
    """Import a strategy by its name.

    Raises ValueError for a name that does not exist, with those that do and the nearest.
    """
    check_name("strategy", name, STRATEGIES)
    return importlib.import_module(STRATEGIES[name])  # type: ignore[return-value]


def options_for(name: str, given: Mapping[str, Any]) -> Any:
    """Make a strategy's options from keywords.

    Raises ValueError for an option that the strategy does not have, with those it has and the nearest, and
    for a value of a wrong type.
    """
    options = find(name).Options
    known = [item.name for item in fields(options)]
    for key in given:
        if key not in known:
            there = choices(key, known) if known else "it has no options"
            raise ValueError(f"{name} has no option {key!r}; {there}")
    return read_as(options, {**asdict(options()), **given}, name)


def check_name(what: str, asked: Any, known: Iterable[str]) -> None:
    """Refuse a name that does not exist, with those that do and the nearest."""
    if not isinstance(asked, str) or asked not in known:
        raise ValueError(f"no {what} is called {asked!r}; {choices(str(asked), known)}")


def options_text(options: Any) -> str:
    """Write the options that differ from their defaults: "bucket_cap_mb=1"."""
    defaults = asdict(type(options)())
    changed = {key: value for key, value in asdict(options).items() if value != defaults[key]}
    return ", ".join(f"{key}={value}" for key, value in changed.items())


def choices(asked: str, known: Iterable[str]) -> str:
    """Say what exists, and which of it is nearest to what was asked."""
    known = list(known)
    nearest = difflib.get_close_matches(asked, known, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"there is {', '.join(known)}{hint}"
