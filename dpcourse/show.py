"""How values show themselves: HTML with a plain-text twin, or stable plain text alone."""

import os
from html import escape

REFERENCE_VARIABLE = "DPCOURSE_REFERENCE"


def is_reference() -> bool:
    """Tell whether outputs must be the same on every machine: no times, no HTML, no pictures."""
    return os.environ.get(REFERENCE_VARIABLE, "") not in ("", "0")


class Shown:
    """A value that a notebook shows when a cell ends in its name.

    A subclass gives `__str__` (the plain-text twin) and `to_html`; both must say the same things.
    """

    def to_html(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str | None:
        return None if is_reference() else self.to_html()

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        html = self._repr_html_()
        return {"text/plain": str(self)} | ({"text/html": html} if html is not None else {})
