"""Minutes for 100 submissions and the cost of a question, for each isolation, beside nbgrader's autograde.

Run it with `python -m tests.benchmarks.grading`: the same notebooks in the same run. nbgrader is no part
of the environment: name a folder that it was installed into (pip install --no-deps --target FOLDER nbgrader
sqlalchemy alembic mako rapidfuzz) with `--nbgrader FOLDER`. It fails where the rate aimed at is missed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpcourse.grade import isolation
from dpcourse.tables import Table
from tests.submissions import LAB, LABS, solved

AIM = 2.0  # times nbgrader's rate, with students' code shut in
COLUMNS = [
    "grader",
    "100 submissions",
    "a question's verdict",
    "rate beside nbgrader's",
    "to reach",
    "reached",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submissions", type=int, default=6)
    parser.add_argument("--jobs", type=int, default=1, help="for dpcourse; nbgrader grades one at a time")
    parser.add_argument("--isolation", nargs="+", default=list(isolation.MEANINGS))
    parser.add_argument("--nbgrader", type=Path, help="the folder that nbgrader was installed into")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return measure(asked, Path(folder))


def measure(asked: argparse.Namespace, folder: Path) -> int:
    """Grade the same class in every way, and print a row for each."""
    students = [f"student{number}" for number in range(asked.submissions)]
    (folder / "in").mkdir(mode=0o700)
    for student in students:
        (folder / "in" / f"{student}.ipynb").write_text(json.dumps(solved()))
    shutil.copytree(LABS, folder / "labs", ignore=shutil.ignore_patterns("source"))
    theirs = nbgrader(asked.nbgrader, folder, students) if asked.nbgrader else None
    rows = [["nbgrader autograde", _minutes(theirs, students), "", None, "", None]] if theirs else []
    if not theirs:
        print("nbgrader is not there to compare with; see --nbgrader", file=sys.stderr)
    for kind in asked.isolation:
        rows.append(ours(kind, asked.jobs, folder, students, theirs))
        print(*rows[-1], file=sys.stderr, flush=True)
    print(Table(COLUMNS, rows, f"{len(students)} solved copies of {LAB.name}, {os.cpu_count()} cores"))
    return int(any(row[-1] is False for row in rows))


def ours(kind: str, jobs: int, folder: Path, students: Sequence[str], theirs: float | None) -> list[Any]:
    """One row: whole submissions with their notebooks' run, then verdicts alone."""
    try:
        isolation.find(kind)
    except ValueError as error:
        return [f"dpcourse, {kind}", f"not here: {error}", "", None, "", None]
    whole = grade(kind, folder, f"{kind}-whole", ["--jobs", str(jobs)])
    judged = grade(kind, folder, f"{kind}-judged", ["--verdicts-only"])
    rate = theirs / whole if theirs else None
    is_aimed_at = rate is not None and kind != "none"
    return [
        f"dpcourse, {kind}, {jobs} at a time",
        _minutes(whole, students),
        f"{judged / len(students) / len(LAB.questions):.2f} s",
        f"{rate:.1f}" if rate else None,
        f"{AIM:g}" if is_aimed_at else "",
        rate >= AIM if rate is not None and is_aimed_at else None,
    ]


def grade(kind: str, folder: Path, out: str, options: Sequence[str]) -> float:
    """Seconds for the class; every copy must get full marks."""
    places = [LAB.name, str(folder / "in"), "--out", str(folder / out), "--labs", str(folder / "labs")]
    command = [sys.executable, "-m", "dpcourse", "grade", *places, "--isolation", kind, "--json", *options]
    seconds, said = timed(command)
    graded = json.loads(said)["submissions"]
    assert all(item["points"] == LAB.max_points for item in graded), graded
    return seconds


def nbgrader(where: Path, folder: Path, students: Sequence[str]) -> float:
    """Seconds of nbgrader's autograde for the class."""
    course, name = folder / "course", LAB.name
    (course / "source" / name).mkdir(parents=True)
    shutil.copy(LABS / "source" / f"{name}.ipynb", course / "source" / name)
    for student in students:
        place = course / "submitted" / student / name
        place.mkdir(parents=True)
        shutil.copy(folder / "in" / f"{student}.ipynb", place / f"{name}.ipynb")
    path = f"{where / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(where), "PATH": path, "JUPYTER_PREFER_ENV_PATH": "1"}
    command = [sys.executable, "-m", "nbgrader"]
    fixed = ["--ExecutePreprocessor.timeout=600", f"--CourseDirectory.root={course}"]
    timed([*command, "generate_assignment", name, "--create", *fixed], cwd=course, env=environment)
    seconds, _ = timed([*command, "autograde", name, "--create", *fixed], cwd=course, env=environment)
    done = list((course / "autograded").glob(f"*/{name}/{name}.ipynb"))
    assert len(done) == len(students), f"nbgrader graded {len(done)} of {len(students)}"
    return seconds


def timed(command: Sequence[str], **options: Any) -> tuple[float, str]:
    """Seconds of a command and what it wrote; its errors are shown where it fails."""
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    return time.monotonic() - start, done.stdout


def _minutes(seconds: float, students: Sequence[str]) -> str:
    return f"{seconds / len(students) * 100 / 60:.1f} min"


if __name__ == "__main__":
    sys.exit(main())
