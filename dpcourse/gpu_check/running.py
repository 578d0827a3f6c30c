"""What the steps share: a run on the place that is checked, kept as recorded, and how it is judged."""

import functools
from collections.abc import Callable
from typing import Any

import dpcourse as dc
from dpcourse import recorded
from dpcourse.gpu_check import machine
from dpcourse.gpu_check.place import Place
from dpcourse.gpu_check.report import Check
from dpcourse.run import Run

Note = Callable[[Check], None]
# A GPU adds in another order than a CPU: of losses near 2.3 the last bits differ, and training moves them by
# a tenth. A gradient that was summed in place of averaged moves them by a hundredth and more.
SAME_LOSS, BF16_LOSS = 1e-3, 0.05
_DEADLINE_SECONDS = 60.0


class Skipped(Exception):
    """A step that cannot be done here; it says why."""


def train(place: Place, strategy: str, **asked: Any) -> Run:
    """Train at a place, unless other ranks or another backend are asked for, and keep the run."""
    words = {"ranks": place.ranks, "device": place.device, "backend": place.backend, "steps": 3} | asked
    run = dc.train(strategy, deadline_seconds=_DEADLINE_SECONDS, **words)
    where = machine.in_words(_machine(), place.device)
    recorded.keep(run, place.runs / f"{_file_name(run)}.json", where, machine.today())
    return run


def on_cpu(strategy: str, **asked: Any) -> Run:
    """Train the same on CPU ranks over gloo: what was verified without a GPU."""
    return dc.train(strategy, device="cpu", deadline_seconds=_DEADLINE_SECONDS, **({"steps": 3} | asked))


@functools.cache
def _machine() -> dict[str, Any]:
    return machine.describe()


def _file_name(run: Run) -> str:
    """Name a run by what it was, in letters that any file system has."""
    words = [run.strategy, run.options_text, run.model, run.recipe, run.optimizer, f"{run.world_size}_ranks"]
    words += [run.backend, "checkpoints" if run.is_checkpointed else ""]
    text = "_".join(word for word in words if word)
    return "".join(letter if letter.isalnum() or letter in "_-" else "-" for letter in text)


def judge_ledgers(run: Run, note: Note) -> None:
    """Hold what was held and called to the expected lists, to the byte."""
    for what, part in (("memory", run.memory), ("traffic", run.traffic)):
        is_exact = part.is_exact()
        found = "exact" if is_exact else _first_difference(run, what)
        note(Check(f"{run.title}: {what}", found, "exact", is_exact))


def _first_difference(run: Run, what: str) -> str:
    if what == "traffic":
        wanted = len([t for t in run.traffic.expected if t.rank == 0 and t.phase != "init"])
        return f"{run.traffic.num_collectives()} collectives for {wanted}, or other ones"
    for rank in run.memory.ranks:
        for item in run.memory.differences(rank):
            if not item.is_exact:
                return f"rank {rank}, {' '.join(item.key)}: {item.measured} for {item.expected}"
    return "differs"


def judge_losses(run: Run, other: Run, note: Note, tolerance: float = SAME_LOSS) -> None:
    """Hold the losses of a run to those of another, step by step."""
    pairs = list(zip(run.mean_losses, other.mean_losses, strict=True))
    worst = max(abs(mine - theirs) for mine, theirs in pairs)
    what = f"{run.title}: losses beside {other.title} on {other.device}"
    note(Check(what, f"at most {worst:.2e} apart", f"within {tolerance:g}", worst <= tolerance))


def judge(what: str, measured: Any, expected: Any, note: Note) -> None:
    """Hold one value to another."""
    note(Check(what, str(measured), str(expected), measured == expected))
