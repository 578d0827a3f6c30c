"""Run notebooks in the reference configuration and keep their outputs, which nbval compares.

    .venv/bin/python tools/refresh_notebooks.py notebooks/00_start_here.ipynb   (none named: all of them)

Run it after a change that alters what a notebook shows, and read the difference before you commit it.
"""

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
CELL_SECONDS = 120


def refresh(path: Path) -> None:
    """Execute one notebook where it lies; its outputs are replaced only if every cell ran."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=CELL_SECONDS, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    notebook.metadata["language_info"] = {"name": "python"}  # no version: it differs from machine to machine
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ["DPCOURSE_REFERENCE"] = "1"
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted((ROOT / "notebooks").glob("*.ipynb")):
        print(path, flush=True)
        refresh(path.resolve())
