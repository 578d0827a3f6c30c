"""Lines of code, as a learner reads them: the cell's number and the line itself."""

import itertools
import linecache
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpcourse.show import is_reference

_PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class Place:
    """One line in one function."""

    file: str
    line_number: int
    function: str

    @property
    def line(self) -> str:
        """The line's text; cells are known to the notebook's own process."""
        return linecache.getline(self.file, self.line_number).strip()

    @property
    def is_learners(self) -> bool:
        """Whether it is in code of the learner, not of dpcourse or an installed package."""
        parts = Path(self.file).parts
        is_installed = "site-packages" in parts or "dist-packages" in parts
        is_library = is_installed or self.file.startswith(("<frozen", sys.base_prefix + "/lib"))
        return not (is_library or self.file.startswith(_PACKAGE))

    def __str__(self) -> str:
        text = f": {self.line}" if self.line else ""
        return f"{file_name(self.file)}, line {self.line_number}, in {self.function}{text}"


def file_name(file: str) -> str:
    """A file's name as shown: `Cell In[3]` for a cell, the path else."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    described = shell.compile.format_code_name(file) if shell and hasattr(shell, "compile") else None
    if described and is_reference():
        return described[0]  # cells are numbered as they are run
    return " ".join(described) if described else file


def learner_place(stack: Iterable[Place]) -> Place:
    """The innermost line of the learner's own code, or the innermost line where there is none."""
    places = list(stack)
    # A rank is a fork of a process that python -c has started: that line is nobody's.
    own = places[1:] if places[0].file == "<string>" else places
    return next((place for place in reversed(own) if place.is_learners), places[-1])


def text_of(places: Iterable[Place]) -> str:
    """The places as a traceback prints them, one call a paragraph."""
    lines = []
    for place, repeats in itertools.groupby(places):
        lines.append(f"  {file_name(place.file)}, line {place.line_number}, in {place.function}")
        if place.line:
            lines.append(f"    {place.line}")
        if num_more := len(list(repeats)) - 1:
            lines.append(f"    (the same {num_more} times more)")
    return "\n".join(lines)
