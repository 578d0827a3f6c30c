"""A large class in one batch: nothing is lost, memory stays flat, and kills cost only time.

Run it with `python -m tests.benchmarks.batch`: 200 submissions of lab 04, `--jobs 2`, once undisturbed and
once killed with -9 three times at random moments and resumed. It fails where a grade is lost or differs, or
where the grader's memory grows. Fewer with `--submissions 20`.
"""

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from dpcourse.labs import load
from dpcourse.labs.question import LabSpec
from dpcourse.tables import Table, bytes_text, seconds_text
from tests.wrong_answers import wrong_answers

LABS = Path(__file__).parents[2] / "labs"
KILLS = 3
MOST_GROWTH = 1.2  # the grader's memory at the end over that after a quarter of the class
_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Batch:
    """One command, and where its results go."""

    lab: LabSpec
    folder: Path
    out: Path
    options: tuple[str, ...]

    def start(self) -> subprocess.Popen:
        code = "import sys; from dpcourse.grade import main; sys.exit(main(sys.argv[1:]))"
        words = [self.lab.name, str(self.folder), "--out", str(self.out), *self.options]
        return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL)

    def num_submissions(self) -> int:
        return len(list(self.folder.iterdir()))

    def num_finished(self) -> int:
        return len(list((self.out / "records").glob("*.json")))

    def grades(self) -> list[dict[str, str]]:
        with (self.out / "grades.csv").open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submissions", type=int, default=200)
    parser.add_argument("--lab", default="04")
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the kills, and of the class")
    parser.add_argument("options", nargs="*", help="more for dpcourse grade, after --")
    asked = parser.parse_args()
    lab, chance = load(asked.lab), random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_class(lab, folder / "in", asked.submissions, chance)
        options = ("--jobs", "2", *asked.options)
        whole = Batch(lab, folder / "in", folder / "whole", options)
        killed = Batch(lab, folder / "in", folder / "killed", options)
        return report(asked.submissions, measured(whole), killed_and_resumed(killed, chance), whole, killed)


def make_class(lab: LabSpec, folder: Path, count: int, chance: random.Random) -> None:
    """Solved copies with some answers left out and some replaced by known mistakes."""
    folder.mkdir()
    source = json.loads((LABS / "source" / f"{lab.name}.ipynb").read_text(encoding="utf-8"))
    student = json.loads((LABS / f"{lab.name}.ipynb").read_text(encoding="utf-8"))
    for number in range(count):
        text = json.dumps(one_of(lab, source, student, chance))
        (folder / f"student{number:03}.ipynb").write_text(text, encoding="utf-8")


def one_of(lab: LabSpec, source: dict[str, Any], student: dict[str, Any], chance: random.Random) -> Any:
    """A submission: each answer right, left out, or one of the question's own mistakes."""
    right = {cell["id"]: cell["source"] for cell in source["cells"]}
    notebook = deepcopy(student)
    for cell in notebook["cells"]:
        questions = [question for question in lab.questions if question.name == cell["id"]]
        wrong = [source for question in questions for source in wrong_answers(question).values()]
        if questions and (fate := chance.random()) < 0.85:
            cell["source"] = right[cell["id"]] if fate < 0.6 else chance.choice(wrong)
    return notebook


@dataclass(frozen=True)
class Undisturbed:
    """How long a batch took, and the grader's memory each time that one more was finished."""

    seconds: float
    held_bytes: Sequence[int]


def measured(batch: Batch) -> Undisturbed:
    """Run a batch, and look at its memory meanwhile: the grader's own, not its workers'.

    Until the last one is finished: then it draws the class summary, for which it imports matplotlib.
    """
    began, held, finished = time.monotonic(), [], -1
    with batch.start() as running:
        process = psutil.Process(running.pid)
        while running.poll() is None:
            if finished < (now := batch.num_finished()) < batch.num_submissions():
                finished = now
                held.append(_held_bytes(process))
            time.sleep(_LOOK_SECONDS)
    assert running.returncode == 0, f"the batch ended with {running.returncode}"
    return Undisturbed(time.monotonic() - began, held)


def _held_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def killed_and_resumed(batch: Batch, chance: random.Random) -> float:
    """Run a batch that is killed three times on its way; how long all of it took."""
    began, total = time.monotonic(), batch.num_submissions()
    for part in range(KILLS):
        wanted = int(total * (part + chance.random()) / (KILLS + 1))
        with batch.start() as running:
            while running.poll() is None and batch.num_finished() < wanted:
                time.sleep(_LOOK_SECONDS)
            time.sleep(chance.random() * 3)
            running.kill()
    with batch.start() as running:
        assert running.wait() == 0
    return time.monotonic() - began


def report(count: int, whole: Undisturbed, killed_seconds: float, first: Batch, second: Batch) -> int:
    """Print what came out; 1 where a figure is missed."""
    quarter = whole.held_bytes[len(whole.held_bytes) // 4]
    growth = max(whole.held_bytes[len(whole.held_bytes) * 3 // 4 :]) / quarter
    lost = count - len(first.grades())
    is_same = first.grades() == second.grades()
    rows = [
        ["grades lost", lost, "0", lost == 0],
        [
            "memory at the end over a quarter's",
            round(growth, 2),
            f"at most {MOST_GROWTH}",
            growth <= MOST_GROWTH,
        ],
        [f"grades after {KILLS} kills", "the same" if is_same else "others", "the same", is_same],
    ]
    print(
        Table(["figure", "measured", "to reach", "reached"], rows, f"{count} submissions of {first.lab.name}")
    )
    for one, other in zip(first.grades(), second.grades(), strict=True):
        for name in [name for name in one if one[name] != other[name]]:
            print(f"{one['student']}, {name}: {one[name]!r} undisturbed, {other[name]!r} after the kills")
    held = [bytes_text(amount) for amount in whole.held_bytes[:: max(1, len(whole.held_bytes) // 8)]]
    print(f"the grader held {', '.join(held)}, {bytes_text(whole.held_bytes[-1])}")
    print(f"undisturbed {seconds_text(whole.seconds)}, killed and resumed {seconds_text(killed_seconds)}")
    return 0 if all(row[-1] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
