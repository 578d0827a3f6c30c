"""A panel: controls above one picture that follows them, the same call live, in a batch run and in print.

The picture is an output of its own, drawn at once and then replaced in its place, so that there is one of it:
a page without a kernel has the last that was drawn, with its alternative text, and a line in place of the
controls. It is not part of the widgets' state, which a saved notebook may carry.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from dpcourse.show import is_reference
from dpcourse.widgets.controls import Control, rows

_UNSEEN = "position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap"
_WRONG = "border-left:5px solid #a4390d;background:#fff;color:#1b1f24;padding:.4em .8em;line-height:1.5"
_WIDGET = "application/vnd.jupyter.widget-view+json"


def news() -> Any:
    """A place for words below the controls."""
    import ipywidgets as w

    return w.HTML(layout=rows([]).layout)


def wrong(*sentences: str) -> str:
    """Say what is wrong so that a screen reader says it at once."""
    return f'<div role="alert" style="{_WRONG}">{"<br>".join(map(escape, sentences))}</div>'


def view_of(widget: Any, fallback: str) -> dict[str, Any]:
    """Give a widget's output, with a line that stands in its place where no widgets run."""
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    return {_WIDGET: view, "text/plain": fallback}


class Panel:
    """Controls and their picture. `picture` is the one that stands there now; a cell that ends in a panel
    shows both. `words`: what it last said, the new picture's title or what is wrong.

    draw: takes the controls' values by their keys and gives what to show.
    """

    def __init__(
        self, draw: Callable[..., Any], controls: Mapping[str, Control], buttons: Sequence[Any] = ()
    ) -> None:
        self.draw, self.controls, self.buttons = draw, dict(controls), tuple(buttons)
        self.picture, self.words, self.is_complaining = draw(**self.values), "", False
        self._display_id = uuid.uuid4().hex
        self._news = news()
        held = [control.row for control in self.controls.values()]
        held += [rows(self.buttons, is_beside=True)] if self.buttons else []
        self.widget = rows([*held, self._news])
        for control in self.controls.values():
            control.field.observe(lambda _: self.redraw(), names="value")

    @property
    def values(self) -> dict[str, Any]:
        return {key: control.value for key, control in self.controls.items()}

    def redraw(self) -> None:
        """Draw the picture for the controls as they are; say in words what cannot be drawn."""
        try:
            picture = self.draw(**self.values)
        except Exception as error:  # an error in a callback would be shown nowhere
            self.complain(error)
        else:
            self.show(picture)

    def show(self, picture: Any) -> None:
        """Put another picture in the place of the one that stands there."""
        from IPython.display import update_display

        self.picture = picture
        update_display(picture, display_id=self._display_id)
        self.say(getattr(picture, "title", ""))

    def say(self, words: str, is_seen: bool = False) -> None:
        """Say something below the controls: to a screen reader, and to everyone where `is_seen`."""
        self.words, self.is_complaining = words, False
        style = "" if is_seen else f' style="{_UNSEEN}"'
        self._news.value = f'<div role="status"{style}>{escape(words)}</div>'

    def complain(self, error: Exception) -> None:
        """Say what is wrong; the picture stays as it was."""
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        self.words, self.is_complaining = f"{kind}{error}", True
        self._news.value = wrong(self.words, "The picture is the last that could be drawn.")

    def __repr__(self) -> str:
        return f"{self._fallback()}\n{self.picture}"

    def _fallback(self) -> str:
        names = [control.name for control in self.controls.values()]
        return f"[controls, where a notebook runs: {'; '.join(names)}]"

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(view_of(self.widget, self._fallback()), raw=True)
        display(self.picture, display_id=self._display_id)


def explore(draw: Callable[..., Any], controls: Callable[[], Mapping[str, Control]], **first: Any) -> Any:
    """Give a panel; in the reference configuration the picture of the `first` values alone.

    controls: makes them, where there is somebody to use them.
    """
    return draw(**first) if is_reference() else Panel(draw, controls())
