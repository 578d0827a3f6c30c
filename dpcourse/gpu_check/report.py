"""What a check of a GPU machine found, step by step: plain data, written as JSON and as a table."""

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpcourse.files import write_whole
from dpcourse.tables import Table, seconds_text

KIND, FORMAT = "dpcourse gpu report", 1
PASSED, FAILED, SKIPPED, OVERTIME, NOT_REACHED = "passed", "failed", "skipped", "overtime", "not reached"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what was measured beside what was expected.

    is_passed: None for a number that is noted, and judged by nobody.
    """

    what: str
    measured: str
    expected: str = ""
    is_passed: bool | None = None


@dataclass(frozen=True)
class Step:
    """One step of the check: how it ended, in what time, and all that it looked at."""

    name: str
    state: str
    seconds: float
    limit_seconds: float
    checks: tuple[Check, ...] = ()
    why: str = ""

    @property
    def is_good(self) -> bool:
        return self.state in (PASSED, SKIPPED)


def state_of(checks: Sequence[Check]) -> str:
    """Tell how a step ended that came to its end."""
    return FAILED if any(check.is_passed is False for check in checks) else PASSED


def table(steps: Sequence[Step]) -> Table:
    """One line for each step, and one below for each thing that was not as expected."""
    rows: list[list[Any]] = []
    for step in steps:
        num_good = sum(check.is_passed is True for check in step.checks)
        num_judged = sum(check.is_passed is not None for check in step.checks)
        found = f"{num_good} of {num_judged} as expected" if num_judged else ""
        said = "; ".join(filter(None, (found, step.why)))
        rows.append([step.name, step.state, seconds_text(step.seconds), said])
        for check in step.checks:
            if check.is_passed is False:
                rows.append(["", "", "", f"{check.what}: {check.measured}, and expected {check.expected}"])
    return Table(["step", "state", "took", "what was found"], rows)


def set_aside(path: Path) -> Path | None:
    """Give a report that is there a free name, so that ten minutes of a GPU are not written over."""
    if not path.exists():
        return None
    names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
    return path.rename(next(name for name in names if not name.exists()))


def write(path: Path, device: str, machine: dict[str, Any], date: str, steps: Sequence[Step]) -> None:
    """Write the report; called after each step, so that what is known is there whatever happens next."""
    document = {
        "kind": KIND,
        "format": FORMAT,
        "date": date,
        "device": device,
        "machine": machine,
        "is_passed": all(step.is_good for step in steps),
        "steps": [asdict(step) for step in steps],
    }
    write_whole(path, f"{json.dumps(document, indent=1)}\n".encode())
