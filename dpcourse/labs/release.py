"""Makes a lab's student copy from its source: solutions become stubs, hidden tests and outputs go.

`python -m dpcourse.labs.release` writes the copies beside labs/source; a test fails when the two differ.
The markers are nbgrader's, so a course that uses nbgrader can release labs/source itself.
"""

import json
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

from dpcourse.notebook_files import notebook_text

BEGIN_SOLUTION, _END_SOLUTION = "### BEGIN SOLUTION", "### END SOLUTION"
_BEGIN_HIDDEN, _END_HIDDEN = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
_STUB = "raise NotImplementedError"


def student_source(source: str) -> str:
    """A cell's text as the student gets it.

    A solution inside a function becomes `raise NotImplementedError`; one at the left margin only goes, so
    that an unsolved lab runs from top to bottom: what stands before it, a script to mend, say, is the stub.

    Raises:
        ValueError: a marker without its partner.
    """
    kept: list[str] = []
    closing = ""
    for line in source.splitlines():
        marker = line.strip()
        if closing:
            closing = "" if marker == closing else closing
        elif marker in (BEGIN_SOLUTION, _BEGIN_HIDDEN):
            closing = _END_SOLUTION if marker == BEGIN_SOLUTION else _END_HIDDEN
            indent = line[: len(line) - len(line.lstrip())]
            kept += [indent + _STUB] if marker == BEGIN_SOLUTION and indent else []
        elif marker in (_END_SOLUTION, _END_HIDDEN):
            raise ValueError(f"{marker!r} has no beginning; put its BEGIN line before it")
        else:
            kept.append(line)
    if closing:
        raise ValueError(f"{closing!r} is missing; put it on a line of its own after the region")
    return "\n".join(kept).rstrip("\n")


def solutions_in(source: str) -> list[str]:
    """The solutions of a cell's text, one for each region."""
    parts = source.split(BEGIN_SOLUTION)[1:]
    return [part.split(_END_SOLUTION)[0] for part in parts]


def student_copy(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook without solutions, hidden tests and outputs; `notebook` stays as it is."""
    copy = deepcopy(notebook)
    for cell in copy["cells"]:
        if cell["cell_type"] == "code":
            cell["source"] = student_source("".join(cell["source"])).splitlines(keepends=True)
            cell["outputs"], cell["execution_count"] = [], None
    return copy


def release(source: Path, target: Path) -> None:
    """Write the student copy of one lab."""
    notebook = json.loads(source.read_text(encoding="utf-8"))
    target.write_text(notebook_text(student_copy(notebook)), encoding="utf-8")


def main() -> int:
    """Make every student copy in the labs folder of this working copy."""
    labs = Path(__file__).parents[2] / "labs"
    for source in sorted((labs / "source").glob("*.ipynb")):
        release(source, labs / source.name)
        print(f"labs/{source.name} made from labs/source/{source.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
