"""The strategies by name, one file each; a file is imported when its name is first asked for.

base.py says what all of them have.
"""

import difflib
import importlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from dpcourse.checks import read_as
from dpcourse.strategies.base import STEADY_STEP, Setting, Strategy

__all__ = ["STEADY_STEP", "STRATEGIES", "Setting", "Strategy", "find", "options_for", "options_text"]

# Each name with the file and the class that stand for it.
STRATEGIES = {
    "single": "single:Single",
    "dp": "dp:Dp",
    "ddp": "ddp:Ddp",
    "fsdp1": "fsdp1:Fsdp1",
    "fsdp2": "fsdp2:Fsdp2",
    "ddp-fsdp": "ddp_fsdp:DdpFsdp",
    "deepspeed": "deepspeed:DeepSpeed",
    "zero1": "zero1:Zero1",
    "scratch-naive-ddp": "scratch_ddp:ScratchNaiveDdp",
    "scratch-flat-ddp": "scratch_ddp:ScratchFlatDdp",
    "scratch-ddp": "scratch_ddp:ScratchDdp",
    "scratch-zero1": "scratch_zero:ScratchZero1",
    "scratch-zero2": "scratch_zero:ScratchZero2",
    "scratch-fsdp": "scratch_fsdp:ScratchFsdp",
}


def find(name: str) -> Strategy:
    """Make a strategy by its name.

    Raises ValueError for a name that does not exist, with those that do and the nearest.
    """
    check_name("strategy", name, STRATEGIES)
    file, kind = STRATEGIES[name].split(":")
    return getattr(importlib.import_module(f"dpcourse.strategies.{file}"), kind)()


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
