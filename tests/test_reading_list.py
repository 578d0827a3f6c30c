"""notebooks/reading.md: every entry has a title, a link, authors, a year or a version, and one sentence."""

import re
from collections import Counter
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "notebooks" / "reading.md"
TEXT = PAGE.read_text(encoding="utf-8")
ENTRY = re.compile(
    r"- (?P<mark>\*?)\[(?P<title>[^\]]{5,})\]\((?P<link>https://[^\s)]+)\)\. "
    r"(?P<authors>[A-Z][^.]+), (?P<year>(?:19|20)\d\d|version \d+\.\d+|current)\. "
    r"(?P<why>[A-Z0-9][^.]*(?:\.[^ .][^.]*)*\.)"
)
FROM_THE_SOURCES = {
    "DistributedDataParallel",
    "Distributed Data Parallel, a design note",
    "FullyShardedDataParallel",
    "Getting Started with Fully Sharded Data Parallel (FSDP2)",
    "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
    "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel",
    "Bringing HPC Techniques to Deep Learning",
    "NCCL documentation",
}


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("- ")]


def problems(text: str) -> list[str]:
    """Entries of another form, and links or titles that stand twice."""
    found = [f"not of the form: {line}" for line in lines(text) if not ENTRY.fullmatch(line)]
    for key in ("title", "link"):
        counts = Counter(match[key] for line in lines(text) if (match := ENTRY.fullmatch(line)))
        found += [f"the {key} {name} stands {count} times" for name, count in counts.items() if count > 1]
    return found


def test_every_entry_has_the_form():
    assert problems(TEXT) == []
    assert len(lines(TEXT)) >= 30


def test_the_references_of_the_sources_are_there_and_marked():
    matches = [ENTRY.fullmatch(line) for line in lines(TEXT)]
    assert {match["title"] for match in matches if match["mark"]} >= FROM_THE_SOURCES


@pytest.mark.parametrize(
    "line",
    [
        "- [Some Paper](https://arxiv.org/abs/1). 2020. Why to read it.",
        "- [Some Paper](https://arxiv.org/abs/1). Who, and when.",
        "- [Some Paper](arxiv.org/abs/1). Author, 2020. Why to read it.",
        "- [Some Paper](https://arxiv.org/abs/1). Author, 2020.",
        "- [Some Paper](https://arxiv.org/abs/1). Author, 2020. Why to read it. And a second sentence.",
        "- Some Paper. Author, 2020. Why to read it.",
    ],
)
def test_an_entry_that_lacks_something_is_found(line):
    assert problems(line) == [f"not of the form: {line}"]


def test_an_entry_that_stands_twice_is_found():
    line = lines(TEXT)[0]
    assert len(problems(f"{line}\n{line}")) == 2
