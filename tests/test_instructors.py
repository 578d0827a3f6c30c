"""notebooks/README.md, for whoever teaches: sections and minutes as the chapters have them, and orders."""

import re
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from dpcourse.labs import LAB_NAMES, load

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
PAGE = NOTEBOOKS / "README.md"
CHAPTERS = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
WORDS_A_MINUTE, MINUTES_A_CELL, MINUTES_A_QUESTION = 120, 0.8, 2
SLACK = 2  # minutes by which a section may have changed before the page has to follow
LIMITS = {"Half a day": 220, "A day": 360, "Two days": 720}


@dataclass(frozen=True)
class Section:
    """What stands below one heading of a chapter."""

    title: str
    num_words: int = 0
    num_cells: int = 0
    num_questions: int = 0


def sections(notebook: nbformat.NotebookNode) -> list[Section]:
    """Cut a chapter at its headings of the second level; what stands before is the opening."""
    found = [["opening", 0, 0, 0]]
    for cell in notebook.cells:
        found[-1][2] += cell.cell_type == "code"
        for line in cell.source.splitlines() if cell.cell_type == "markdown" else ():
            if line.startswith("## "):
                found.append([line[3:].strip(), 0, 0, 0])
            else:
                found[-1][1] += len(line.split())
                found[-1][3] += line.startswith("**Predict.**")
    return [Section(*values) for values in found]


def minutes(section: Section) -> int:
    """Read, run, and guess: what a section takes in a room."""
    cells, questions = section.num_cells * MINUTES_A_CELL, section.num_questions * MINUTES_A_QUESTION
    return max(1, round(section.num_words / WORDS_A_MINUTE + cells + questions))


def part_of(stem: str, text: str) -> str:
    return text.split(f"### [{stem}]", 1)[1].split("\n### ", 1)[0]


def listed(stem: str, text: str) -> list[tuple[str, int]]:
    """The sections of a chapter with their minutes, as the page has them."""
    line = re.search(r"^Sections: (.*)\.$", part_of(stem, text), re.MULTILINE)
    return [(title, int(number)) for title, number in re.findall(r"(.+?) \((\d+)\)(?:, |$)", line[1])]


def total(stem: str, text: str) -> int:
    return int(re.match(r"\(.*?\): (\d+) minutes", part_of(stem, text))[1])


def problems(path: Path, text: str) -> list[str]:
    """What the page has wrong about one chapter."""
    real, said = sections(nbformat.read(path, as_version=4)), listed(path.stem, text)
    found = []
    if [section.title for section in real] != [title for title, _ in said]:
        found.append(f"{path.stem}: the sections are {', '.join(section.title for section in real)}")
    for section, (title, number) in zip(real, said, strict=False):
        if abs(minutes(section) - number) > SLACK:
            found.append(f"{path.stem}, {title}: {number} minutes, by the rule {minutes(section)}")
    if total(path.stem, text) != sum(number for _, number in said):
        found.append(f"{path.stem}: the minutes do not add up")
    questions = re.findall(r"^\d\. .*\?$", part_of(path.stem, text), re.MULTILINE)
    return found + ([] if len(questions) == 3 else [f"{path.stem}: {len(questions)} questions, not 3"])


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_has_its_sections_minutes_and_three_questions(path):
    assert problems(path, PAGE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("pattern", "wrong", "said"),
    [
        (r"Sections: opening \(\d+\), ", "Sections: ", "the sections are opening"),
        (r"opening \(\d+\)", "opening (40)", "opening: 40 minutes, by the rule"),
        (r"(\]\(00_start_here.ipynb\)): \d+ minutes", r"\1: 1 minutes", "do not add up"),
        (r"(\n1\. [^\n]*)\?", r"\1.", "2 questions, not 3"),
    ],
)
def test_a_page_that_is_wrong_about_a_chapter_is_found(pattern, wrong, said):
    text = PAGE.read_text(encoding="utf-8")
    start = text.index("### [00_start_here]")
    changed = text[:start] + re.sub(pattern, wrong, text[start:], count=1)
    assert changed != text
    assert said in "\n".join(problems(CHAPTERS[0], changed))


def test_the_orders_fit_into_their_time_and_name_chapters():
    text = PAGE.read_text(encoding="utf-8")
    stems = {path.stem[:2]: path.stem for path in CHAPTERS}
    for name, limit in LIMITS.items():
        line = re.search(rf"^- \*\*{name}\*\*.*?: ([\d, ]+)\.", text, re.MULTILINE)
        chosen = [stems[number] for number in line[1].split(", ")]
        assert sum(total(stem, text) for stem in chosen) <= limit, name
    assert len(chosen) == len(CHAPTERS)


def test_what_the_page_points_to_is_there():
    text = PAGE.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")]
    assert [link for link in links if not (NOTEBOOKS / link).exists()] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`make ([a-z-]+)", text))
    assert targets >= {"lab", "course", "slides"}
    assert [name for name in targets if f"\n{name}:" not in makefile] == []


# -- agendas, minute by minute -------------------------------------------------------------------

AGENDAS = NOTEBOOKS / "workshop.md"
LAB_QUESTION = re.compile(r"(\d\d_\w+)/(\w+)")


@dataclass(frozen=True)
class Block:
    """A row of an agenda: its minutes, and what its second column names between backticks."""

    minutes: int
    named: list[str]


def agendas(text: str) -> dict[str, list[Block]]:
    """Each agenda by its heading, with its blocks."""
    found = {}
    for part in text.split("\n## ")[1:]:
        rows = [row.split(" | ") for row in part.splitlines() if re.match(r"\| \d+ \|", row)]
        blocks = [Block(int(row[0].strip("| ")), re.findall(r"`([^`]+)`", row[1])) for row in rows]
        found[part.splitlines()[0]] = blocks
    return found


def agenda_problems(text: str) -> list[str]:
    """What the agendas have wrong: minutes that do not add up, names of what is not there."""
    page, found = PAGE.read_text(encoding="utf-8"), []
    for heading, blocks in agendas(text).items():
        name, said = re.fullmatch(r"(.*): (\d+) minutes", heading).groups()
        if sum(block.minutes for block in blocks) != int(said):
            found.append(f"{name}: {sum(block.minutes for block in blocks)} minutes, not {said}")
        for block in blocks:
            found += [f"{name}: {problem}" for problem in block_problems(block, page)]
    return found


def block_problems(block: Block, page: str) -> list[str]:
    questions = [LAB_QUESTION.fullmatch(each) for each in block.named]
    if not block.named:
        return []
    if all(questions):
        return lab_problems(block.minutes, [match.groups() for match in questions])
    stem, *cells = block.named
    if not (NOTEBOOKS / f"{stem}.ipynb").is_file():
        return [f"there is no chapter {stem}"]
    if not cells:
        needed = total(stem, page)
        return [] if abs(block.minutes - needed) <= 5 else [f"{stem} takes {needed} minutes"]
    notebook = nbformat.read(NOTEBOOKS / f"{stem}.ipynb", as_version=4)
    known = [cell["id"] for cell in notebook.cells if cell.cell_type == "code"]
    found = [f"{stem} has no code cell {cell}" for cell in cells if cell not in known]
    in_order = sorted(cells, key=lambda cell: known.index(cell) if cell in known else 0)
    return found + ([f"{stem}: the cells are not in order"] if not found and cells != in_order else [])


def lab_problems(minutes: int, questions: list[tuple[str, str]]) -> list[str]:
    found, needed = [], 0
    for lab, name in questions:
        known = {question.name: question for question in load(lab).questions} if lab in LAB_NAMES else {}
        if name not in known:
            found.append(f"there is no question {lab}/{name}")
        else:
            needed += known[name].minutes
    return found + ([f"the questions take {needed} minutes, not {minutes}"] if needed > minutes else [])


def test_agendas_add_up_and_name_chapters_cells_and_questions_that_are_there():
    text = AGENDAS.read_text(encoding="utf-8")
    assert list(agendas(text)) == [
        "Ten minutes: 10 minutes",
        "Half a day: 240 minutes",
        "A day: 480 minutes",
        "Two days: 960 minutes",
    ]
    assert agenda_problems(text) == []


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("| 20 | - | a break", "| 25 | - | a break", "Half a day: 245 minutes, not 240"),
        ("`start-14`", "`start-99`", "Ten minutes: 00_start_here has no code cell start-99"),
        ("`start-16`, `start-18`", "`start-18`, `start-16`", "00_start_here: the cells are not in order"),
        ("| 40 | `00_start_here` |", "| 40 | `00_begin` |", "Half a day: there is no chapter 00_begin"),
        ("| 40 | `00_start_here` |", "| 20 | `00_start_here` |", "Half a day: 00_start_here takes"),
        ("03_ddp/same_start", "03_ddp/same", "A day: there is no question 03_ddp/same"),
        ("| 35 | `05_zero/", "| 15 | `05_zero/", "Two days: the questions take 25 minutes, not 15"),
    ],
)
def test_an_agenda_that_is_wrong_is_found(right, wrong, said):
    text = AGENDAS.read_text(encoding="utf-8")
    assert right in text
    assert said in "\n".join(agenda_problems(text.replace(right, wrong, 1)))


def test_every_chapter_stands_in_the_two_days_and_every_row_says_what_people_do():
    text = AGENDAS.read_text(encoding="utf-8")
    blocks = agendas(text)["Two days: 960 minutes"]
    assert {path.stem for path in CHAPTERS} <= {name for block in blocks for name in block.named}
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if re.match(r"\| \d+ \|", row)]
    assert [row for row in rows if len(row) != 4 or len(row[2]) < 5] == []
