"""The labs' README says what there is: each lab, its points and minutes, and the chapter's exam."""

import csv
import re
from pathlib import Path

from dpcourse.labs import LAB_NAMES, load

ROOT = Path(__file__).parents[1]
README = (ROOT / "labs" / "README.md").read_text(encoding="utf-8")


def rows_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def wrong_rows(text: str) -> list[str]:
    """The labs whose row is missing, or has other points or minutes than the lab."""
    found = {row[0].strip("`"): row[-2:] for row in rows_of(text) if len(row) == 4}
    labs = [load(name) for name in LAB_NAMES]
    true = {lab.name: [str(lab.max_points), str(sum(q.minutes for q in lab.questions))] for lab in labs}
    return [name for name, numbers in true.items() if found.get(name) != numbers]


def exam_in(text: str) -> list[str]:
    return re.findall(r"^\| [^|]+ \| `(\w+/\w+)` \|$", text, re.MULTILINE)


def test_every_lab_has_its_row_with_its_points_and_minutes():
    assert wrong_rows(README) == []


def test_a_row_with_other_points_is_caught():
    lab = load("04")
    assert wrong_rows(README.replace(f"| {lab.max_points} | 60 |", "| 99 | 60 |")) != []
    assert wrong_rows("") == list(LAB_NAMES)


def test_every_item_of_the_chapters_exam_is_a_question_of_a_lab():
    with (ROOT / "notebooks" / "coverage.csv").open(encoding="utf-8", newline="") as file:
        wanted = [row["lab"] for row in csv.DictReader(file) if row["id"].startswith("Cchecklist-")]
    assert exam_in(README) == wanted
    assert len(wanted) == 10
    for name in wanted:
        lab, _, question = name.partition("/")
        if lab in LAB_NAMES:
            load(lab).question(question)
