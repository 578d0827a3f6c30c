"""What one rank would hold, computed: stacked bars of owners, beside a whole copy and a card."""

from collections.abc import Mapping
from typing import Any

from dpcourse.figures import canvas
from dpcourse.ledger import OWNERS
from dpcourse.tables import bytes_text

_HEIGHT = 0.62
# In a column beside the axes, where neither a bar nor the card's line comes.
_BESIDE: Any = {"xytext": (10, 0), "textcoords": "offset points", "va": "center", "fontsize": 11}
Rows = Mapping[str, Mapping[str, float]]  # of each bar its name, and the bytes of its owners


def calculator_bars(title: str, rows: Rows, num_params: float, card_bytes: float) -> canvas.Figure:
    """Draw bars of expected bytes by owner, with a line where a card is full."""
    parts = [
        f"{name}: {bytes_text(sum(held.values()))} ({_fits(held, card_bytes)})" for name, held in rows.items()
    ]
    words = f"Stacked bars, expected, with a line at a card of {bytes_text(card_bytes)}. {'; '.join(parts)}"
    return canvas.Figure(title, words, lambda: _draw(rows, num_params, card_bytes))


def _fits(held: Mapping[str, float], card_bytes: float) -> str:
    return "fits" if sum(held.values()) <= card_bytes else "too much"


def _draw(rows: Rows, num_params: float, card_bytes: float) -> Any:
    largest = max(max(sum(held.values()) for held in rows.values()), card_bytes)
    unit, size = canvas.byte_unit(largest)
    ax = canvas.axes(width=9, height=1.7 + 0.6 * len(rows))
    for row, held in enumerate(rows.values()):
        canvas.computed_stack(ax, row, {owner: held.get(owner, 0) / size for owner in OWNERS}, _HEIGHT)
        whole = sum(held.values())
        text = f"{bytes_text(whole)}, {whole / num_params:.3g} bytes per parameter: {_fits(held, card_bytes)}"
        ax.annotate(text, (1, row), xycoords=ax.get_yaxis_transform(), **_BESIDE)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.set_ylim(len(rows) - 0.5, -0.55)
    ax.set_xlim(0, 1.05 * largest / size)
    ax.set_xlabel(f"{unit} of one rank (expected)")
    _card(ax, card_bytes, card_bytes / size)
    canvas.legend_below(ax, num_columns=7)
    return ax.figure


def _card(ax: Any, card_bytes: float, place: float) -> None:
    ax.axvline(place, color=canvas.INK, linewidth=2, linestyle=(0, (4, 2)), zorder=3)
    look: Any = {"xytext": (0, 5), "textcoords": "offset points", "va": "bottom", "fontsize": 11}
    side = "left" if place < 0.2 * ax.get_xlim()[1] else "center"
    ax.annotate(f"a card: {bytes_text(card_bytes)}", (place, -0.55), ha=side, **look)
