"""Who is where in a room: a learner who wants to shows which of the course's cells they ran last.

Nothing is shown unless DPCOURSE_PLACE is "on" when the kernel starts, or a cell calls `show_my_place()`. What
is written is one small file in the room's folder: the cell's id, and a name where one was chosen
(DPCOURSE_NAME). No code, no output, no points.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from dpcourse import learner
from dpcourse.room_files import (
    PLACE,
    Folder,
    chosen_name,
    file_of,
    is_there,
    opened,
    put,
    room_folder,
    skipped_words,
)
from dpcourse.show import Shown
from dpcourse.tables import Table
from dpcourse.workspace import WorkspaceError, course_files, course_root

VARIABLE = "DPCOURSE_PLACE"
_ON, _OFF = ("1", "on", "yes"), ("0", "off", "no")
_QUIET_SECONDS = 600
_MOST_NAMES, _MOST_LETTERS = 12, 20  # of names in a row of the table, and of each


@dataclass(frozen=True, order=True)
class Stop:
    """A part of a notebook of the course: which of them, counted from 0, and its heading."""

    notebook: str
    section: int
    num_sections: int
    heading: str

    @property
    def where(self) -> str:
        """The notebook and the heading, with the number that it has in the figure."""
        return f"{self.notebook} {self.section + 1}/{self.num_sections}: {self.heading}"


@dataclass(frozen=True)
class Place:
    """Where one learner is. name: empty for one who chose none. is_quiet: nothing was run for ten minutes."""

    stop: Stop
    name: str = ""
    is_quiet: bool = False


@dataclass(frozen=True, repr=False)
class RoomPlaces(Shown):
    """All who show where they are. skipped: files that are none of a room's, each with why."""

    places: tuple[Place, ...]
    skipped: tuple[str, ...] = ()

    def rows(self) -> dict[str, list[Place]]:
        """Those at each heading where somebody is, in the course's order."""
        found: dict[str, list[Place]] = {}
        for place in sorted(self.places, key=lambda place: (place.stop, place.name)):
            found.setdefault(place.stop.where, []).append(place)
        return found

    def words(self) -> str:
        """Say how many show where they are, how many are quiet, and what was skipped."""
        if not self.places:
            said = f"Nobody shows where they are: set {VARIABLE}=on, or run show_my_place(), to do so."
        else:
            num_quiet = sum(place.is_quiet for place in self.places)
            quiet = f"; {num_quiet} ran nothing for {_QUIET_SECONDS // 60} minutes" if num_quiet else ""
            said = f"{_people(len(self.places))} where they are{quiet}."
        return " ".join(filter(None, [said, skipped_words(self.skipped)]))

    def table(self, title: str = "Who is where") -> Table:
        rows = [[where, len(there), _names(there)] for where, there in self.rows().items()]
        return Table(["where", "people", "names"], rows, title)

    def plot(self) -> Any:
        """Draw a dot for each at the heading that they are under."""
        from dpcourse.figures.places import place_dots

        return place_dots(self)

    def __str__(self) -> str:
        return "\n".join([*([str(self.table())] if self.places else []), self.words()])

    def to_html(self) -> str:
        from html import escape

        shown = f"{self.plot().to_html()}{self.table('').to_html()}" if self.places else ""
        return f"{shown}<p>{escape(self.words())}</p>"


def _people(number: int) -> str:
    return "1 person shows" if number == 1 else f"{number} people show"


def _names(there: list[Place]) -> str:
    """The names of those at one heading; two of one name are told apart, and the nameless counted."""
    count = Counter(place.name for place in there if place.name)
    names = [
        _short(name) + (f" ({number} of this name)" if number > 1 else "") for name, number in count.items()
    ]
    shown, nameless = names[:_MOST_NAMES], sum(not place.name for place in there)
    shown += [f"{len(names) - _MOST_NAMES} more"] if len(names) > _MOST_NAMES else []
    return ", ".join([*shown, *([f"{nameless} without a name"] if nameless else [])])


def _short(name: str) -> str:
    return name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}\u2026"


def places_in(folder: Any = None) -> RoomPlaces:
    """Gather who is where in a room.

    Raises ValueError where there is no such folder.
    """
    return gathered(opened(folder))


def gathered(room: Folder) -> RoomPlaces:
    """The same of a folder that is read again and again."""
    now, known = time.time(), stops()
    papers = room.papers(PLACE)
    places = tuple(
        Place(known[paper.plain["at"]], paper.name, now - paper.written_at > _QUIET_SECONDS)
        for paper in papers
        if paper.plain["at"] in known
    )
    odd = sum(paper.plain["at"] not in known for paper in papers)
    skipped = (f"{odd} at cells that this course does not have",) if odd else ()
    return RoomPlaces(places, (*room.skipped, *skipped))


@cache
def stops() -> Mapping[str, Stop]:
    """Where each code cell of the course stands, by its id, of those whose id no other has."""
    try:
        root = course_root()
        found = [pair for name in course_files(root) for pair in _stops_of(root / name)]
    except (WorkspaceError, OSError, ValueError, KeyError):
        return {}
    count = Counter(cell_id for cell_id, _ in found)
    return {cell_id: stop for cell_id, stop in found if count[cell_id] == 1}


def _stops_of(path: Path) -> list[tuple[str, Stop]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    name = f"lab {path.stem}" if path.parent.name == "labs" else path.stem
    headings, found = ["opening"], []
    for cell in cells:
        if cell["cell_type"] == "code":
            found.append((cell["id"], len(headings) - 1))
        else:
            lines = "".join(cell["source"]).splitlines()
            headings += [line[3:].strip() for line in lines if line.startswith("## ")]
    return [(each, Stop(name, section, len(headings), headings[section])) for each, section in found]


# --- what a learner shows ---


class _Shower:
    """Writes after each of the course's cells, until it is told to stop or cannot."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.learner = folder, learner.learner_number()

    @property
    def file(self) -> Path:
        return file_of(self.folder, PLACE, self.learner)

    def after_cell(self, result: Any) -> None:
        cell_id = getattr(getattr(result, "info", None), "cell_id", None)
        if cell_id in stops():
            self.show(str(cell_id))

    def show(self, cell_id: str) -> None:
        try:
            put(self.file, {"kind": PLACE, "at": cell_id, "name": chosen_name()})
        except OSError as error:
            print(f"Where you are did not reach the room ({error.strerror or error}).")
            hide_my_place()


_showing: list[_Shower] = []


def show_my_place(room: Any = None) -> None:
    """Show the room, from now on, which of the course's cells you ran last; `hide_my_place()` ends it.

    room: the folder; None takes DPCOURSE_ROOM.

    Raises:
        ValueError: no room is named, or it is not there.
        RuntimeError: this is no notebook.
    """
    folder, shell = room_folder(room), _shell()
    if folder is None or not is_there(folder):
        raise ValueError(f"there is no room at {folder}: give the folder, or set DPCOURSE_ROOM to its path")
    if shell is None:
        raise RuntimeError("a place is a notebook's cell, and this is no notebook: call it in one")
    hide_my_place()
    _showing.append(_Shower(folder))
    shell.events.register("post_run_cell", _showing[0].after_cell)


def hide_my_place() -> None:
    """Show the room no longer where you are, and take away what was shown."""
    while _showing:
        shower, shell = _showing.pop(), _shell()
        with suppress(OSError):
            shower.file.unlink(missing_ok=True)
        if shell is not None:
            shell.events.unregister("post_run_cell", shower.after_cell)


def show_where_chosen() -> None:
    """Show the place of whoever has set DPCOURSE_PLACE to "on", in a notebook; where it cannot, say why.

    Called while the course is imported, so that it never raises.
    """
    asked = os.environ.get(VARIABLE, "")
    if _shell() is None or not asked or asked.lower() in _OFF:
        return
    try:
        if asked.lower() not in _ON:
            raise ValueError(f'{VARIABLE}={asked!r}: set it to "on", or to nothing')
        show_my_place()
    except (OSError, ValueError) as error:
        print(f"Where you are is not shown ({error}).")


def _shell() -> Any:
    from IPython import get_ipython

    return get_ipython()
