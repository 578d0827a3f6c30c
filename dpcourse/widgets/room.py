"""The room's board, for whoever teaches: who is where, what was guessed, and the answer when asked for."""

import asyncio
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dpcourse import learner
from dpcourse.room import RoomGuesses
from dpcourse.room import gathered as guesses_in
from dpcourse.room_files import GUESS, Folder, opened
from dpcourse.room_places import RoomPlaces
from dpcourse.room_places import gathered as places_in
from dpcourse.show import Shown
from dpcourse.widgets.controls import choice, tick
from dpcourse.widgets.panel import Panel

_NEWEST = "the newest"
_BEAT_SECONDS = 3.0
_UNKNOWN = "No answer to {!r} is known here: reveal it in your own copy of the chapter, or give answers={{}}."


@dataclass(frozen=True, repr=False)
class Board(Shown):
    """What a room's folder says at one moment. guesses: None while nobody has guessed anything."""

    places: RoomPlaces
    guesses: RoomGuesses | None
    note: str = ""
    title = "The room"

    def parts(self) -> list[Shown]:
        return [self.places, *([self.guesses] if self.guesses else [])]

    def __str__(self) -> str:
        return "\n".join(filter(None, [*map(str, self.parts()), self.note]))

    def to_html(self) -> str:
        from html import escape

        boxes = [f'<div style="flex:1 1 44em;min-width:0">{part.to_html()}</div>' for part in self.parts()]
        note = f'<p role="status">{escape(self.note)}</p>' if self.note else ""
        return f'<div style="display:flex;flex-wrap:wrap;gap:0 1.5em">{"".join(boxes)}</div>{note}'


class RoomPanel(Panel):
    """A board that is drawn again whenever something in the folder changes.

    It looks every few seconds, between two cells, on the kernel's own event loop: there is no thread, and
    nothing goes on when the kernel ends. Of several boards of a kernel the last one is live.
    """

    _live: "weakref.ref[RoomPanel] | None" = None

    def __init__(self, folder: Folder, answers: Mapping[str, float]) -> None:
        self.folder, self.answers = folder, dict(answers)
        self._is_offering = False
        self._question = choice("Question", {_NEWEST: ""}, _NEWEST)
        controls = {
            "question": self._question,
            "is_answered": tick("Show the answer", False),
            "is_live": tick("Live", True),
        }
        super().__init__(self._drawn, controls)
        RoomPanel._live = weakref.ref(self)
        self._wait()

    def _drawn(self, question: str, is_answered: bool, is_live: bool) -> Board:
        papers = sorted(self.folder.papers(GUESS), key=lambda paper: paper.written_at)
        questions = [paper.plain["question"] for paper in papers]
        self._offer(sorted(set(questions)))
        newest = questions[-1] if questions else None
        asked = question if question in questions else newest
        guesses, note = None, ""
        if asked is not None:
            answer = self._answer(asked) if is_answered else None
            guesses = replace(guesses_in(self.folder, asked, answer), skipped=())  # said beside it
            note = _UNKNOWN.format(asked) if is_answered and answer is None else ""
        return Board(places_in(self.folder), guesses, note)

    def _offer(self, questions: list[str]) -> None:
        """Let a question be chosen as soon as somebody has guessed."""
        field, wanted = self._question.field, ((_NEWEST, ""), *((text, text) for text in questions))
        if field.options == wanted:
            return
        chosen, self._is_offering = field.value, True
        try:
            field.options = wanted  # which takes the first
            field.value = chosen if chosen in questions else ""
        finally:
            self._is_offering = False

    def redraw(self) -> None:
        """Draw for what was chosen; a longer list to choose from is no choice."""
        if not self._is_offering:
            super().redraw()

    def _answer(self, question: str) -> float | None:
        """The answer given, else what your own run of the chapter came to: measured, or by the formula."""
        if question in self.answers:
            return self.answers[question]
        path = learner.record_file()
        try:
            row = learner.read_record(path)["predictions"].get(question, {}) if path else {}
        except learner.NotKept:
            return None
        return row.get("formula") if row.get("measured") is None else row.get("measured")

    def _wait(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # no kernel: what was drawn stays
        loop.call_later(_BEAT_SECONDS, _beat, weakref.ref(self))

    def beat(self) -> None:
        """Look once, and again later; end where another board is live, or this one was closed."""
        last = RoomPanel._live
        if last is None or last() is not self or self.widget.comm is None:
            return
        if self.values["is_live"]:
            self.look()
        self._wait()

    def look(self) -> None:
        """Draw what has changed since the last look; say what cannot be read."""
        try:
            board = self._drawn(**self.values)
        except Exception as error:  # an error in a callback would be shown nowhere
            self.complain(error)
        else:
            if board != self.picture or self.is_complaining:
                self.show(board)


def _beat(panel: "weakref.ref[RoomPanel]") -> None:
    if live := panel():
        live.beat()


def room_board(folder: Any = None, answers: Mapping[str, float] | None = None) -> RoomPanel:
    """Show a room while it works: who is where, what was guessed, and the answer beside it when you tick it.

    It is drawn again as soon as somebody locks a guess or goes on. Only what participants chose to write into
    the folder is there to be shown.

    Args:
        folder: the room's; None takes DPCOURSE_ROOM.
        answers: a number for a question; without it, what you revealed in your own copy of the chapter.

    Raises:
        ValueError: there is no such folder.
    """
    return RoomPanel(opened(folder), answers or {})
