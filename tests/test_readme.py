"""What the README tells a newcomer to run does run, and shows what it says it shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpcourse as dc
from dpcourse import parts, widgets
from dpcourse.cli import EXAMPLES
from dpcourse.workspace import course_files
from tests.benchmarks import ledgers

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n+```text\n(?P<output>.*?)```", re.DOTALL)


def commands(text: str, program: str) -> set[str]:
    """The word that follows `program` wherever it stands at the start of a command."""
    return set(re.findall(rf"(?:`|^ +|&& ){program} ([a-z][a-z-]*)", text, re.MULTILINE))


@pytest.mark.parametrize(
    "example", list(EXAMPLE.finditer(README)), ids=lambda match: match["code"].split("\n")[-2]
)
def test_an_example_prints_what_the_readme_says(example):
    environ = {**os.environ, "DPCOURSE_REFERENCE": "1"}
    found = subprocess.run(
        [sys.executable, "-c", example["code"]], env=environ, capture_output=True, text=True, timeout=110
    )
    assert found.stdout == example["output"], found.stderr


def test_the_first_result_stands_on_the_first_screen():
    first_screen = README.splitlines()[:40]
    assert any("make lab" in line for line in first_screen)
    assert any("dc.train(" in line for line in first_screen)
    assert any("exact" in line for line in first_screen)
    assert EXAMPLE.search(README)


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_every_make_target_that_is_named_exists(text):
    targets = commands(text, "make")
    assert "test" in targets
    for target in targets:
        found = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=50)
        assert found.returncode == 0, found.stderr


def test_every_make_target_for_people_is_named():
    offered = re.findall(r'@echo "make ([a-z-]+)', (ROOT / "Makefile").read_text())
    assert set(offered) <= commands(README, "make")


def test_every_dpcourse_command_that_is_named_exists():
    named = commands(README, "dpcourse") | set(re.findall(r"^  dpcourse (\w+)", EXAMPLES, re.MULTILINE))
    assert named == {
        "lab",
        "reset",
        "course",
        "doctor",
        "grade",
        "plan",
        "release",
        "run",
        "torchrun",
        "hosts",
    }
    for command in sorted(named):
        found = subprocess.run(
            [sys.executable, "-m", "dpcourse.cli", command, "--help"],
            capture_output=True,
            text=True,
            timeout=50,
        )
        assert found.returncode == 0, found.stderr
        assert f"dpcourse {command}" in found.stdout


def test_a_command_that_does_not_exist_is_caught():
    assert commands("run `make nonsense` or\n    make lab && make test", "make") == {
        "nonsense",
        "lab",
        "test",
    }
    found = subprocess.run(["make", "-n", "nonsense"], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert found.returncode != 0


def test_every_part_and_call_of_a_run_that_is_named_exists():
    calls = re.findall(r"`run\.(\w+)(?:\.(\w+)\()?[^`]*`((?:, `\.\w+\([^`]*`)*)", README)
    assert {"memory", "traffic", "timeline"} <= {part for part, *_ in calls}
    for part, call, more in calls:
        if part not in ("memory", "traffic", "timeline"):
            assert hasattr(dc.Run, part), f"run.{part}"
            continue
        kind = getattr(parts, f"{part.capitalize()}Part")
        for name in [*([call] if call else []), *re.findall(r"\.(\w+)\(", more)]:
            assert callable(getattr(kind, name)), f"run.{part}.{name}"


def test_every_widget_is_named_and_no_other():
    assert sorted(re.findall(r"^\| `widgets\.(\w+)\(\)`", README, re.MULTILINE)) == sorted(widgets.__all__)


def test_what_a_room_and_a_learner_can_set_is_named():
    sources = [
        (ROOT / "dpcourse" / name).read_text() for name in ("room_files.py", "room_places.py", "learner.py")
    ]
    variables = set(re.findall(r"\"(DPCOURSE_[A-Z]+)\"", "".join(sources)))
    assert {"DPCOURSE_ROOM", "DPCOURSE_NAME", "DPCOURSE_PLACE", "DPCOURSE_PROGRESS"} <= variables
    assert [name for name in sorted(variables) if f"`{name}`" not in README] == []


def test_every_file_that_is_linked_or_run_exists():
    links = re.findall(r"\]\(([^)#:]+)\)", README + CONTRIBUTING)
    scripts = re.findall(r"\b(?:tools|tests|docs)/[\w./]+\.py", README + CONTRIBUTING)
    assert "notebooks/images/ddp_memory.png" in links
    assert [path for path in links + scripts if not (ROOT / path).exists()] == []


def test_the_chapters_of_the_table_are_those_that_are_there():
    chapters = re.findall(
        r"^\| `(\d\d_\w+)` \|", README.split("## What is in it")[1].split("\n## ")[0], re.MULTILINE
    )
    assert set(chapters) == {Path(name).stem for name in course_files(ROOT) if name.startswith("notebooks/")}
    assert [int(name[:2]) for name in chapters] == list(range(11))


def test_the_figure_is_described_with_the_numbers_that_the_example_has():
    (alt,) = re.findall(r"!\[([^\]]+)\]\(notebooks/images/ddp_memory\.png\)", README)
    assert "20.00 at the end of backward" in alt
    assert "16.00 after the step" in alt


def rows_of_the_table_of_ledgers() -> list[list[str]]:
    """The table that the benchmark put into the README, without its head."""
    table = README.split(ledgers.BEGIN)[1].split(ledgers.END)[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_of_ledgers_is_that_of_today_s_strategies_and_lists():
    expected = [ledgers.expected_cells(*case) for case in ledgers.cases([2, 4])]
    found = [[*row[:2], row[3], row[6], row[9]] for row in rows_of_the_table_of_ledgers()]
    assert found == expected, "run python -m tests.benchmarks.ledgers --write"


def test_the_table_of_ledgers_holds_what_it_promises():
    for row in rows_of_the_table_of_ledgers():
        assert row[2] == row[3], row
        assert abs(float(row[8].rstrip("%"))) <= 100 * ledgers.TOLERANCE, row
        assert row[10] == "yes", row
