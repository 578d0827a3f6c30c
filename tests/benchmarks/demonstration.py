"""The ten-minute demonstration as notebooks/workshop.md has it: its cells run in order, each with its time.

Run it with `python -m tests.benchmarks.demonstration`. Each chapter gets a fresh kernel, as on the day. It
fails where a cell does.
"""

import re
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from dpcourse.tables import Table

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
PAGE = NOTEBOOKS / "workshop.md"
_CELL_SECONDS = 120
# A point of the slider, as a hand would make it; the first one starts its ranks.
_FIRST, _NEXT = "panel = bucket_slider(); panel.run(); panel.wait(110)", "panel.run(); panel.wait(110)"


def steps(text: str) -> dict[str, list[tuple[str, str]]]:
    """The cells of each chapter in order, each with when it is run: "before" or "live"."""
    part = text.split("## Ten minutes", 1)[1].split("\n## ", 1)[0]
    chapters: dict[str, list[tuple[str, str]]] = {}
    for minutes, where in re.findall(r"^\| (\d+) \| (.*?) \|", part, re.MULTILINE):
        chapter, *cells = re.findall(r"`([^`]+)`", where)
        when = "live" if int(minutes) else "before"
        chapters.setdefault(chapter, []).extend((cell, when) for cell in cells)
    return chapters


def run_cells(chapter: str, wanted: list[tuple[str, str]]) -> list[list[Any]]:
    """Run some cells of a chapter in one fresh kernel; a row for each with its seconds."""
    notebook = nbformat.read(NOTEBOOKS / f"{chapter}.ipynb", as_version=4)
    known = {cell["id"]: cell for cell in notebook.cells}
    client = NotebookClient(notebook, timeout=_CELL_SECONDS, resources={"metadata": {"path": str(NOTEBOOKS)}})
    rows = []
    with client.setup_kernel():
        for cell_id, when in wanted:
            source, name = known[cell_id]["source"], cell_id
            if source.strip() == "bucket_slider()":
                source, name = (_NEXT if when == "live" else f"{source}\n{_FIRST}"), f"{cell_id}, a point"
            rows.append([chapter, when, name, _seconds(client, source)])
    return rows


def _seconds(client: NotebookClient, source: str) -> float:
    cell = nbformat.v4.new_code_cell(source)
    client.nb.cells.append(cell)
    began = time.monotonic()
    client.execute_cell(cell, len(client.nb.cells) - 1)
    return round(time.monotonic() - began, 1)


def main() -> int:
    """Run the demonstration."""
    chapters = steps(PAGE.read_text(encoding="utf-8"))
    found = [row for chapter, cells in chapters.items() for row in run_cells(chapter, cells)]
    print(Table(["chapter", "when", "cell", "seconds"], found, "The ten-minute demonstration"))
    for when in ("before", "live"):
        print(f"{when}: {sum(row[3] for row in found if row[1] == when):.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
