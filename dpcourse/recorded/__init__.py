"""Runs that a GPU machine has recorded, for learners without one: they open and plot like one's own.

```
from dpcourse import recorded

recorded.names()               # what there is
recorded.load("fsdp2_gpt-small")
```

Each says on which machine it was measured, and when. `python -m dpcourse.gpu_check` records them; none stands
here that was not measured on a GPU.
"""

from dataclasses import replace
from pathlib import Path

from dpcourse.run import MACHINE, RECORDED_ON, Run

FOLDER = Path(__file__).parent
_NONE_YET = "none has been recorded on a GPU yet; on a machine with one, python -m dpcourse.gpu_check does"


def names(folder: Path = FOLDER) -> list[str]:
    """List the recorded runs by name."""
    return sorted(path.stem for path in folder.glob("*.json"))


def load(name: str, folder: Path = FOLDER) -> Run:
    """Open a recorded run by its name.

    Raises ValueError for a name that there is not, and for a file that does not say where it was recorded.
    """
    known = names(folder)
    if name not in known:
        there = f"there is {', '.join(known)}" if known else _NONE_YET
        raise ValueError(f"no recorded run is called {name!r}: {there}")
    run = Run.load(folder / f"{name}.json")
    check_says_where(run, name)
    return run


def keep(run: Run, path: Path, machine: str, date: str) -> None:
    """Save a run with the machine that it was measured on, and the day, as in "2026-11-30"."""
    where = {MACHINE: machine, RECORDED_ON: date}
    records = (replace(record, environment={**record.environment, **where}) for record in run.records)
    replace(run, records=tuple(records)).save(path)


def check_says_where(run: Run, name: str) -> None:
    """Refuse, with ValueError, a run of which nobody knows where and when it was measured."""
    if missing := [what for what in (MACHINE, RECORDED_ON) if not run.environment.get(what)]:
        raise ValueError(
            f"the recorded run {name!r} does not say its {' and '.join(missing)}; save it with recorded.keep"
        )


def check_from_gpu(run: Run, name: str) -> None:
    """Refuse, with ValueError, what must not be handed out as recorded on a GPU."""
    check_says_where(run, name)
    if run.device != "cuda" or not run.is_trained:
        raise ValueError(
            f"the run {name!r} was measured on {run.device!r} ({run.source}), and what is handed out is "
            "recorded on GPUs alone; leave it out"
        )
