"""What one unit of the scratch FSDP lives through in a step: what happened, and what is there right after."""

from functools import partial
from typing import Any

import torch
from torch import nn

from dpcourse.scratch import announce, fsdp
from dpcourse.scratch.flat_parameter import FlatParameter

Lines = list[tuple[str, int]]  # what happened, and how many bytes of the unit's whole row are there after it


def diary_of_one_unit(width: int = 64) -> Lines:
    """Go forward and backward through three sharded layers, and give the diary of the one in the middle."""
    layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(3)))
    model: Any = fsdp.shard(layers, units=list(layers), prefetch=False)
    unit, lines = model.sharding.units[2], Lines()  # the root is the first, and has no parameters
    note = partial(_note, lines, unit.flats[0])
    _note_what_is_done(unit, note)
    with announce.listen(partial(_note_heard, unit.name, note)):
        model(torch.ones(2, width)).sum().backward()
    return lines


def _note(lines: Lines, row: FlatParameter, what: str) -> None:
    lines.append((what, row.whole.untyped_storage().nbytes()))


def _note_what_is_done(unit: fsdp.Unit, note: Any) -> None:
    """Have a unit note when it has computed and when it lets go of what it gathered."""
    row = unit.flats[0]
    free, reduce = row.free, row.on_gradient

    def noted_free() -> None:
        was_there = row.whole.untyped_storage().nbytes() > 0
        free()
        if was_there:
            note("release")

    def noted_reduce(*args: Any) -> None:
        note("backward")
        reduce(*args)

    row.free, row.on_gradient = noted_free, noted_reduce  # type: ignore[method-assign]
    unit.module.register_forward_hook(lambda *_: note("forward"), prepend=True)


def _note_heard(
    name: str, note: Any, collective: str, dtype: str, group: Any, num_bytes: int, unit: str
) -> None:
    if unit == name:
        note(collective)
