"""Tables that read the same as text and as HTML, and the way numbers are written in them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from dpcourse.show import Shown

_NUMBER_LIKE = re.compile(r"^[+-]?\d[\d.,]*(e[+-]?\d+)?( ?(%|x|B|kB|MB|GB|TB|us|ms|s|[kMG]?bit/s))?$")
_ABSENT = "-"


def bytes_text(num_bytes: float) -> str:
    """Write a number of bytes in decimal units: 2250000 is "2.25 MB"."""
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:,.2f} {unit}"
    return f"{num_bytes:,.0f} B"


def seconds_text(seconds: float) -> str:
    """Write a duration with a unit that leaves few digits: 0.0042 is "4.20 ms"."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds / 1e-6:.0f} us"


def cell_text(value: Any) -> str:
    """Write one cell: integers with thousands marked, other numbers to four digits, None as a dash."""
    if value is None:
        return _ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return str(value)


@dataclass(frozen=True, repr=False)
class Table(Shown):
    """Rows under named columns, with an optional caption; a column of numbers is aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"a row has {len(row)} cells where the table has {len(self.columns)} columns "
                    f"({', '.join(self.columns)}): {list(row)!r}; give one cell for each column"
                )

    def texts(self) -> list[list[str]]:
        return [[cell_text(cell) for cell in row] for row in self.rows]

    def number(self, row: int, column: str) -> float:
        """Read the number in a cell, without its unit: 51.0 where the table shows "51 %".

        Raises ValueError for a column that is not there, and for a cell that holds no number.
        """
        if column not in self.columns:
            raise ValueError(f"no column {column!r}; the table has {', '.join(self.columns)}")
        text = self.texts()[row][list(self.columns).index(column)]
        if not _NUMBER_LIKE.match(text):
            raise ValueError(f"row {row} has no number under {column!r}: {text!r}")
        return float(text.split()[0].replace(",", ""))

    def is_numeric(self) -> list[bool]:
        """For each column: does every cell read as a number (with or without a unit)?"""
        columns = list(zip(*self.texts(), strict=True)) or [()] * len(self.columns)
        return [
            bool(cells) and all(cell == _ABSENT or _NUMBER_LIKE.match(cell) for cell in cells)
            for cells in columns
        ]

    def __str__(self) -> str:
        texts, is_numeric = self.texts(), self.is_numeric()
        widths = [max(map(len, cells)) for cells in zip(self.columns, *texts, strict=True)]
        lines = [_text_line(self.columns, widths, is_numeric), "  ".join("-" * width for width in widths)]
        lines += [_text_line(row, widths, is_numeric) for row in texts]
        return "\n".join(([self.caption] if self.caption else []) + lines)

    def to_html(self) -> str:
        is_numeric = self.is_numeric()
        caption = f'<caption style="{_CAPTION}">{escape(self.caption)}</caption>' if self.caption else ""
        head = _html_row(self.columns, is_numeric, "th", _HEAD)
        body = "".join(_html_row(row, is_numeric, "td", _CELL) for row in self.texts())
        return f'<table style="{_TABLE}">{caption}<thead>{head}</thead><tbody>{body}</tbody></table>'


# Inline styles, because JupyterLab drops style sheets from outputs it does not trust yet. Colours are the
# theme's own variables, or the text's colour made fainter, so that light and dark themes both read well.
_TABLE = "border-collapse:collapse;border:0;margin:0.5em 0;font-variant-numeric:tabular-nums"
_CAPTION = (
    "caption-side:top;text-align:left;padding:0 0 0.4em;font-weight:600;"
    "color:var(--jp-content-font-color1,inherit)"
)
_RULE = "color-mix(in srgb, currentColor {percent}%, transparent)"
_BASE = "padding:0.3em 0.9em;border:0;color:var(--jp-content-font-color1,inherit);"
_HEAD = _BASE + "font-weight:600;border-bottom:1.5px solid " + _RULE.format(percent=55)
_CELL = _BASE + "border-bottom:1px solid " + _RULE.format(percent=15)


def _text_line(cells: Sequence[str], widths: Sequence[int], is_numeric: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if numeric else cell.ljust(width)
        for cell, width, numeric in zip(cells, widths, is_numeric, strict=True)
    ]
    return "  ".join(padded).rstrip()


def _html_row(cells: Sequence[str], is_numeric: Sequence[bool], tag: str, style: str) -> str:
    scope = ' scope="col"' if tag == "th" else ""
    # A number is not broken before its unit; a heading is, else it widens the column.
    number = "text-align:right" + (";white-space:nowrap" if tag == "td" else "")
    joined = "".join(
        f'<{tag}{scope} style="{style};{number if numeric else "text-align:left"}">{escape(cell)}</{tag}>'
        for cell, numeric in zip(cells, is_numeric, strict=True)
    )
    return f'<tr style="background:none">{joined}</tr>'
