"""The command: has the steps done one after another, ends what does not end, and writes the report."""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from dpcourse.gpu_check import machine, report, worker
from dpcourse.gpu_check.place import Place, place_for
from dpcourse.gpu_check.report import Check, Step
from dpcourse.gpu_check.steps import START, STEPS
from dpcourse.gpu_check.worker import Worker

ONE_GPU_SECONDS, SEVERAL_GPUS_SECONDS = 480.0, 600.0
_LEAST_SECONDS = 2.0  # with less than this left, a step is not begun


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    try:
        place = place_for(asked.device, asked.out, asked.quick)
        names, seconds = _names(asked.only), _seconds(asked.seconds, place)
        place.make_folders()
        if kept := report.set_aside(place.report):
            print(f"The report that was there is {kept} now.")
    except (ValueError, OSError) as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    try:
        return run_all(names, place, seconds)
    except KeyboardInterrupt:
        print(f"gpu-check: interrupted; {place.report} has what was done by then", file=sys.stderr)
        return 130


def read_place(arguments: Sequence[str]) -> Place:
    """Read the place from the arguments that say it."""
    asked = _parser().parse_args(arguments)
    return place_for(asked.device, asked.out, asked.quick)


def run_all(names: Sequence[str], place: Place, whole_seconds: float) -> int:
    """Have the named steps done within a time for all of them, and write the report after each."""
    steps = Steps(place, time.monotonic() + whole_seconds)
    described, date = machine.describe(), machine.today()
    try:
        for name in names:
            step = steps.run(name)
            print(f"{step.state:12} {name} ({step.seconds:.1f} s)", flush=True)
            report.write(place.report, place.device, described, date, steps.done)
    finally:
        steps.end()
    print(f"\n{machine.in_words(described, place.device)}\n{report.table(steps.done)}\n{place.report}")
    return 0 if all(step.is_good for step in steps.done) else 1


class Steps:
    """The steps so far, and the process that does the next; all of them end by the deadline."""

    def __init__(self, place: Place, deadline: float) -> None:
        self.place, self.deadline, self.done = place, deadline, list[Step]()
        self._worker: Worker | None = None

    def run(self, name: str) -> Step:
        """Have one step done, within its own limit and what is left for all."""
        going = self._working(name)
        limit = self._limit(name)
        if limit < _LEAST_SECONDS:
            step = Step(name, report.NOT_REACHED, 0.0, 0.0, why="the time for all steps was over")
        else:
            step = self._run(going, name, limit)
        self.done.append(step)
        return step

    def _limit(self, name: str) -> float:
        return min(self.place.scaled(STEPS[name].limit_seconds), self.deadline - time.monotonic())

    def _working(self, name: str) -> Worker:
        """Give the process that goes, or a new one, which has started its ranks once."""
        if self._worker is None:
            self._worker = Worker(self.place)
            if name != START:
                self._worker.carry_out(START, max(0.0, self._limit(START)))
        return self._worker

    def _run(self, going: Worker, name: str, limit_seconds: float) -> Step:
        notes = self.place.notes(name)
        notes.unlink(missing_ok=True)
        began = time.monotonic()
        answer = going.carry_out(name, limit_seconds)
        seconds, code = time.monotonic() - began, None
        if not answer:
            code = self.end()
        checks, why = _read(notes)
        if answer is None:
            state, why = report.OVERTIME, f"ended at its limit of {limit_seconds:.0f} s"
        elif not answer:
            state, why = report.FAILED, f"its process ended with {code}; gpu-check.log says more"
        elif answer == worker.SKIPPED:
            state = report.SKIPPED
        else:
            state = report.FAILED if answer == worker.BROKEN else report.state_of(checks)
        return Step(name, state, round(seconds, 2), round(limit_seconds, 1), checks, why)

    def end(self) -> int | None:
        """End the process, if there is one."""
        going, self._worker = self._worker, None
        return going.end() if going else None


def _read(notes: Path) -> tuple[tuple[Check, ...], str]:
    """Read what a step has noted; of a step that was ended the last line may be half a line."""
    checks, why = [], ""
    for line in notes.read_text().splitlines(keepends=True) if notes.exists() else []:
        if line.endswith("\n"):
            note = json.loads(line)
            why = note.get("why", why)
            checks += [Check(**note["check"])] if "check" in note else []
    return tuple(checks), why


def _names(only: str | None) -> list[str]:
    names = only.split(",") if only else list(STEPS)
    if unknown := [name for name in names if name not in STEPS]:
        raise ValueError(f"--only {unknown[0]}: there is no such step; there is {', '.join(STEPS)}")
    return names


def _seconds(asked: float | None, place: Place) -> float:
    if asked is not None and not 0 < asked < math.inf:
        raise ValueError(f"--seconds {asked}: give a number of seconds above 0")
    return asked or _whole_seconds(place)


def _whole_seconds(place: Place) -> float:
    return SEVERAL_GPUS_SECONDS if place.num_gpus > 1 else ONE_GPU_SECONDS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dpcourse.gpu_check",
        description="Check a machine with GPUs: 8 minutes at most on one, 10 on several.",
        epilog=f"steps: {', '.join(STEPS)}",
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script itself")
    parser.add_argument("--out", type=Path, default=Path("build"), help="folder for what it finds (build)")
    parser.add_argument("--only", metavar="STEP,...", help="some of the steps")
    parser.add_argument("--quick", action="store_true", help="fewer cases of each step")
    parser.add_argument("--seconds", type=float, help="for all of it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
