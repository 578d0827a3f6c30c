"""notebooks/coverage.csv lists what the two sources say, and every line has a cell that teaches it.

C is the chapter on data parallelism, A the article on DP, DDP, ZeRO and FSDP. A row names the chapter and
the tag of the cell that shows its claim; where the chapter is not written yet, the row is a plan.
"""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import nbformat
import pytest

from dpcourse.doctor.chapters import CHAPTERS
from dpcourse.labs import LAB_NAMES, load

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
KINDS = {"claim", "table", "diagram", "pitfall", "advice"}
STEMS = {chapter.name[:2]: chapter.name for chapter in CHAPTERS}
# Every section that has text of its own; what stands above a first part counts with that part.
SECTIONS = {
    ("C", "1"): "What data parallelism is to solve",
    ("C", "2"): "Its mathematics",
    ("C", "3.1"): "How DataParallel works",
    ("C", "3.2"): "Its three flaws",
    ("C", "4.1"): "DDP: from a centre to none",
    ("C", "4.2"): "Buckets hide communication in computation",
    ("C", "4.3"): "What DDP cannot do",
    ("C", "5.1"): "All-reduce is reduce-scatter and all-gather",
    ("C", "5.2"): "What a ring sends",
    ("C", "5.3"): "Why not through one card",
    ("C", "6.1"): "How FSDP works",
    ("C", "6.2"): "Its flow: all-gather and reduce-scatter",
    ("C", "6.3"): "Four sharding strategies",
    ("C", "6.4"): "FSDP2",
    ("C", "7"): "The ledger of memory",
    ("C", "8.1"): "DDP moves 2",
    ("C", "8.2"): "FSDP moves 3",
    ("C", "8.3"): "Both compared",
    ("C", "9"): "How to choose",
    ("C", "summary"): "Summary",
    ("C", "checklist"): "What you should be able to do",
    ("C", "references"): "References",
    ("A", "1.1"): "From one card to several",
    ("A", "1.2"): "Data, model and pipeline parallelism",
    ("A", "1.3"): "Three things that no scheme avoids",
    ("A", "2.1"): "How DP works",
    ("A", "2.2"): "Where it falls short",
    ("A", "2.3"): "When it is no bad choice",
    ("A", "3.1"): "DDP against DP: all-reduce for a parameter server",
    ("A", "3.2"): "Why DDP is faster",
    ("A", "3.3"): "A standard script",
    ("A", "3.4"): "Traps in practice",
    ("A", "4.1"): "Where memory goes",
    ("A", "4.2"): "Three stages of ZeRO",
    ("A", "4.3"): "What ZeRO costs",
    ("A", "4.4"): "ZeRO with mixed precision and recomputation",
    ("A", "5.1"): "What FSDP does",
    ("A", "5.2"): "Sharding strategies",
    ("A", "5.3"): "Settings and traps",
    ("A", "5.4"): "From DDP to FSDP",
    ("A", "6.1"): "One table for all",
    ("A", "6.2"): "Which for what",
    ("A", "6.3"): "From practice",
}


@dataclass(frozen=True)
class Row:
    """What one source says at one place. correction: "yes" where the course mends it."""

    id: str
    source: str
    section: str
    kind: str
    claim: str
    chapter: str
    tag: str
    lab: str
    correction: str


def rows() -> list[Row]:
    with open(NOTEBOOKS / "coverage.csv", encoding="utf-8", newline="") as file:
        return [Row(**row) for row in csv.DictReader(file)]


def cell_tags() -> dict[str, list[str]]:
    """For each chapter that is written, the tags of its cells."""
    paths = {number: NOTEBOOKS / f"{stem}.ipynb" for number, stem in STEMS.items()}
    return {
        number: [tag for cell in nbformat.read(path, 4).cells for tag in cell.metadata.get("tags", [])]
        for number, path in paths.items()
        if path.exists()
    }


def problems(found: Sequence[Row], tags: Mapping[str, Sequence[str]]) -> list[str]:
    return [
        *_left_out(found),
        *(
            f"id {name} stands {count} times"
            for name, count in Counter(r.id for r in found).items()
            if count > 1
        ),
        *(problem for row in found for problem in (*_of_words(row), *_of_tag(row, tags), *_of_lab(row))),
    ]


def _left_out(found: Sequence[Row]) -> list[str]:
    there = {(row.source, row.section) for row in found}
    missing = [f"{s} {n}, {SECTIONS[s, n]}, has no row" for s, n in SECTIONS if (s, n) not in there]
    return missing + [f"no source has a section {s} {n}" for s, n in sorted(there - set(SECTIONS))]


def _of_words(row: Row) -> list[str]:
    is_told = row.kind in KINDS and row.claim.strip() and row.claim.isascii() and row.chapter in STEMS
    is_right = is_told and row.tag and row.correction in ("", "yes")
    return [] if is_right else [f"{row.id} has a word that is not known, or none: {row}"]


def _of_tag(row: Row, tags: Mapping[str, Sequence[str]]) -> list[str]:
    count = list(tags.get(row.chapter, [row.tag])).count(row.tag)
    return [] if count == 1 else [f"{row.id}: {count} cells of {row.chapter} have the tag {row.tag}"]


def _of_lab(row: Row) -> list[str]:
    name, _, question = row.lab.partition("/")
    is_known = not row.lab or (question and name in STEMS.values())
    if is_known and name in LAB_NAMES:
        is_known = question in {each.name for each in load(name).questions}
    return [] if is_known else [f"{row.id}: there is no question {row.lab}"]


def test_every_section_has_rows_and_every_written_chapter_the_cells_they_name():
    found, tags = rows(), cell_tags()
    assert problems(found, tags) == []
    planned = Counter(row.chapter for row in found if row.chapter not in tags)
    print(f"{len(found)} rows, {sum(planned.values())} of them planned: {dict(sorted(planned.items()))}")


def test_the_sources_have_as_many_sections_as_they_have():
    assert len(SECTIONS) == 43
    assert {row.chapter for row in rows()} <= set(STEMS)
    assert cell_tags().keys() >= {"00", "01"}


def test_each_item_of_the_checklist_has_a_question():
    asked = [row for row in rows() if row.section == "checklist"]
    assert len(asked) == 10
    assert all(row.lab for row in asked)


def _changed(name: str, **values: str) -> list[Row]:
    return [replace(row, **values) if row.id == name else row for row in rows()]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: [row for row in rows() if (row.source, row.section) != ("A", "4.2")], "A 4.2, Three stages"),
        (lambda: _changed("C2-1", section="2.9"), "no source has a section C 2.9"),
        (lambda: _changed("C2-1", tag="c-nowhere"), "C2-1: 0 cells of 01 have the tag c-nowhere"),
        (lambda: _changed("C2-1", id="C2-2"), "id C2-2 stands 2 times"),
        (lambda: _changed("C2-1", kind="rumour"), "C2-1 has a word that is not known"),
        (lambda: _changed("C2-1", claim=" "), "C2-1 has a word that is not known, or none"),
        (lambda: _changed("C2-1", chapter="11"), "C2-1 has a word that is not known"),
        (lambda: _changed("C2-1", correction="no"), "C2-1 has a word that is not known"),
        (lambda: _changed("C2-1", lab="01_equivalence/no_such"), "no question 01_equivalence/no_such"),
        (lambda: _changed("C2-1", lab="12_more/question"), "no question 12_more/question"),
    ],
)
def test_what_is_missing_or_misspelt_is_named(wrong, said):
    found = problems(wrong(), cell_tags())
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize("change", ["left out", "doubled"])
def test_a_tag_that_a_chapter_lost_or_has_twice_is_named(change):
    tags = cell_tags()
    chapter, tag = "01", "c-average-equals-batch"
    kept = [name for name in tags[chapter] if name != tag]
    tags[chapter] = kept if change == "left out" else [*tags[chapter], tag]
    count = 0 if change == "left out" else 2
    assert f"C2-1: {count} cells of 01 have the tag {tag}" in problems(rows(), tags)
