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
# One point of the slider, as a hand would make it.
_SLIDE = "panel = bucket_slider(); panel.run(); panel.wait(60)"


def steps(text: str) -> list[tuple[str, list[str]]]:
    """Each chapter of the demonstration, with the ids of the cells to run in its kernel."""
    part = text.split("## Ten minutes", 1)[1].split("\n## ", 1)[0]
    rows = [re.findall(r"`([^`]+)`", row.split("|")[2]) for row in part.splitlines() if row.startswith("| ")]
    chapters: dict[str, list[str]] = {}
    for chapter, *cells in filter(None, rows):
        chapters.setdefault(chapter, []).extend(cells)
    return list(chapters.items())


def run_cells(chapter: str, wanted: list[str]) -> list[list[Any]]:
    """Run some cells of a chapter in one fresh kernel; a row for each with its seconds."""
    notebook = nbformat.read(NOTEBOOKS / f"{chapter}.ipynb", as_version=4)
    cells = {cell["id"]: (place, cell) for place, cell in enumerate(notebook.cells)}
    rows = []
    client = NotebookClient(notebook, timeout=_CELL_SECONDS, resources={"metadata": {"path": str(NOTEBOOKS)}})
    with client.setup_kernel():
        for cell_id in wanted:
            place, cell = cells[cell_id]
            rows.append([chapter, cell_id, _seconds(client, cell, place)])
            if "bucket_slider()" in cell["source"]:
                moved = nbformat.v4.new_code_cell(_SLIDE)
                notebook.cells.append(moved)
                rows.append([chapter, "one point of the slider", _seconds(client, moved, len(cells))])
    return rows


def _seconds(client: NotebookClient, cell: Any, place: int) -> float:
    began = time.monotonic()
    client.execute_cell(cell, place)
    return round(time.monotonic() - began, 1)


def main() -> int:
    """Run the demonstration."""
    found = [row for block in steps(PAGE.read_text(encoding="utf-8")) for row in run_cells(*block)]
    print(Table(["chapter", "cell", "seconds"], found, "The ten-minute demonstration"))
    print(f"all cells together: {sum(row[2] for row in found):.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
