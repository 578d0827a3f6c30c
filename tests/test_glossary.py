"""notebooks/glossary.md: in order, a sentence each, links that lead on, and no term of a chapter left out."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
TEXT = (NOTEBOOKS / "glossary.md").read_text(encoding="utf-8")
ENTRY = re.compile(
    r"- \*\*(?P<term>[^*]+)\*\*(?: \((?P<chinese>[^)]+)\))?: (?P<says>[A-Z`].+\.) "
    r"\[(?P<number>\d\d)\]\((?P<link>[^)]+)\)"
)
MOST_WORDS = 3  # what is longer and bold is a sentence that matters, or a part of one
# Bold for weight: numbers, names of rows, and words of everyday language.
EMPHASIS = {
    "3.0", "six", "one", "holds", "moves", "predict", "processes", "elements", "equally many",
    "silently wrong", "sum over samples", "all ranks' outputs", "the checklist",
}  # fmt: skip


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("- ")]


def entries(text: str) -> list[re.Match]:
    return [match for line in lines(text) if (match := ENTRY.fullmatch(line))]


def key(term: str) -> str:
    return term.lower().replace("-", " ")


def problems(text: str) -> list[str]:
    """Entries of another form, out of order, twice, or with a link that leads nowhere."""
    found = [f"not of the form: {line}" for line in lines(text) if not ENTRY.fullmatch(line)]
    known = [key(match["term"]) for match in entries(text)]
    found += [f"{b} stands after {a}" for a, b in pairwise(known) if a >= b]
    for match in entries(text):
        is_there = (NOTEBOOKS / match["link"]).is_file() and match["link"].startswith(match["number"])
        found += [] if is_there else [f"{match['term']} leads to {match['link']}"]
    return found


def bold_terms(notebook: nbformat.NotebookNode) -> Iterator[str]:
    """What a chapter sets in bold and is no sentence: the terms that it introduces."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for bold in re.findall(r"\*\*([^*]+)\*\*", cell.source):
                term = " ".join(bold.split()).lower()
                if not re.search(r"[.?!]$", term) and len(term.split()) <= MOST_WORDS:
                    yield term


def left_out(terms: set[str], text: str) -> set[str]:
    """Terms that the glossary lacks, in the singular as in the plural."""
    known = {match["term"].lower() for match in entries(text)}
    return {term for term in terms - EMPHASIS if not {term, f"{term}s", term.removesuffix("s")} & known}


def chapters() -> list[Path]:
    return sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))


def test_entries_are_in_order_and_lead_somewhere():
    assert problems(TEXT) == []
    assert len(entries(TEXT)) >= 50


def test_most_terms_have_the_chinese_of_the_sources():
    known = [match for match in entries(TEXT) if re.search(r"[\u4e00-\u9fff]", match["chinese"] or "")]
    assert len(known) > len(entries(TEXT)) / 2


@pytest.mark.parametrize("path", chapters(), ids=lambda path: path.stem)
def test_what_a_chapter_introduces_in_bold_is_in_it(path):
    assert left_out(set(bold_terms(nbformat.read(path, as_version=4))), TEXT) == set()


def test_a_term_that_is_left_out_is_found():
    cell = nbformat.v4.new_markdown_cell(
        "A **wobble\nfactor** is new, a **bucket** is not. **Mind this sentence.**"
    )
    terms = set(bold_terms(nbformat.v4.new_notebook(cells=[cell])))
    assert terms == {"wobble factor", "bucket"}
    assert left_out(terms, TEXT) == {"wobble factor"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- **a**: No link.", "not of the form"),
        ("- **a**: no sentence [00](00_start_here.ipynb)", "not of the form"),
        ("- **a**: A thing. [00](nowhere.ipynb)", "a leads to nowhere.ipynb"),
        ("- **a**: A thing. [01](00_start_here.ipynb)", "a leads to 00_start_here.ipynb"),
        (
            "- **b**: One b. [00](00_start_here.ipynb)\n- **a**: One a. [00](00_start_here.ipynb)",
            "a stands after b",
        ),
        (
            "- **b**: One b. [00](00_start_here.ipynb)\n- **B**: One b. [00](00_start_here.ipynb)",
            "b stands after b",
        ),
    ],
)
def test_a_broken_entry_is_found(text, said):
    assert said in "\n".join(problems(text))
