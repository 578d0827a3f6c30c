"""A room's guesses: a dot for each, or bars where they are many, with their median and the answer."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

from dpcourse.figures import canvas

_BINS = 36
_MOST_DOTS = 25  # in one column; above it a column is a bar with its number
_NEAR = 3.0  # spreads around the middle half within which a guess has a place of its own
_LOGARITHMIC = 50.0  # the span from which on an axis of positive guesses is logarithmic


def room_dots(room: Any) -> canvas.Figure:
    """Draw RoomGuesses: what is far out is gathered at the ends, with its number."""
    values = sorted(guess.value for guess in room.guesses)
    low, high, is_log = span_of(values, room.answer)
    outside = sum(not low <= value <= high for value in values)
    answer = "" if room.answer is None else f", the answer {room.text(room.answer)}"
    words = f"{room.num_text} from {room.text(values[0])} to {room.text(values[-1])}, "
    words += f"median {room.text(room.median)}{answer}"
    far = f"; {outside} far out are counted at the ends" if outside else ""
    title = f"{room.question}: the room's guesses"
    return canvas.Figure(title, f"{words}{far}", lambda: _draw(room, values, (low, high, is_log)))


def span_of(values: Sequence[float], answer: float | None) -> tuple[float, float, bool]:
    """Find the ends of the axis, which no wild guess moves, and whether it is logarithmic."""
    known = sorted([*values] if answer is None else [*values, answer])
    is_log = known[0] > 0 and _quantile(known, 0.9) > _LOGARITHMIC * _quantile(known, 0.1)
    scaled = [math.log10(value) for value in known] if is_log else known
    below, above = _quantile(scaled, 0.25), _quantile(scaled, 0.75)
    spread = (above - below) or abs(above) * 0.1 or 1.0
    own = [scaled[0], scaled[-1]]
    shown = [] if answer is None else [math.log10(answer) if is_log else answer]
    low = min(max(own[0], below - _NEAR * spread), *shown, above)
    high = max(min(own[1], above + _NEAR * spread), *shown, below)
    room = 0.06 * (high - low) or spread
    low, high = low - room, high + room
    return (10**low, 10**high, True) if is_log else (low, high, False)


def _quantile(values: Sequence[float], share: float) -> float:
    return values[round(share * (len(values) - 1))]


def _draw(room: Any, values: Sequence[float], span: tuple[float, float, bool]) -> Any:
    low, high, is_log = span
    inside = [value for value in values if low <= value <= high]
    columns: dict[int, list[float]] = {}
    for value in inside:
        columns.setdefault(_place(value, span), []).append(value)
    tallest = max(map(len, columns.values()), default=1)
    ax = canvas.axes(width=9, height=3.6)
    _columns(ax, columns, tallest, span)
    _line(ax, room.median, canvas.INK, (0, (4, 2)), f"median {room.text(room.median)}")
    if room.answer is not None:
        _line(ax, room.answer, canvas.SERIES[1], "solid", f"answer {room.text(room.answer)}")
    ax.set_xscale("log" if is_log else "linear")
    ax.set_xlim(low, high)
    ax.set_ylim(0, 1.12 * max(tallest, 4))
    if tallest <= _MOST_DOTS:
        ax.set_yticks([])
        ax.spines["left"].set_visible(False)
    else:
        ax.set_ylabel("guesses")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    ax.set_xlabel(room.unit or "guess")
    _ends(ax, sum(value < low for value in values), sum(value > high for value in values))
    canvas.legend_below(ax, num_columns=3)
    return ax.figure


def _place(value: float, span: tuple[float, float, bool]) -> int:
    low, high, is_log = span
    share = math.log(value / low) / math.log(high / low) if is_log else (value - low) / (high - low)
    return min(int(share * _BINS), _BINS - 1)


def _columns(ax: Any, columns: dict[int, list[float]], tallest: int, span: tuple[float, float, bool]) -> None:
    look: Any = {"color": canvas.SERIES[0], "label": "a guess" if tallest <= _MOST_DOTS else "guesses"}
    edges = [_edge(place, span) for place in range(_BINS + 1)]
    for place, values in columns.items():
        if tallest <= _MOST_DOTS:
            heights = [0.5 + number for number in range(len(values))]
            size = 8 if tallest <= 12 else 5
            ax.plot([median(values)] * len(values), heights, "o", markersize=size, **look)
        else:
            width = edges[place + 1] - edges[place]
            ax.bar(edges[place], len(values), width, align="edge", edgecolor=canvas.PAPER, **look)


def _edge(place: float, span: tuple[float, float, bool]) -> float:
    low, high, is_log = span
    share = place / _BINS
    return low * (high / low) ** share if is_log else low + (high - low) * share


def _line(ax: Any, value: float, colour: str, style: Any, label: str) -> None:
    ax.axvline(value, color=colour, linestyle=style, linewidth=2.4, label=label, zorder=3)


def _ends(ax: Any, num_below: int, num_above: int) -> None:
    look: Any = {"xycoords": "axes fraction", "va": "top", "fontsize": 12, "fontweight": "bold"}
    look["bbox"] = {"facecolor": canvas.PAPER, "edgecolor": "none", "pad": 2}
    if num_below:
        ax.annotate(f"\u2190 {num_below} lower", (0.005, 1.0), ha="left", **look)
    if num_above:
        ax.annotate(f"{num_above} higher \u2192", (0.995, 1.0), ha="right", **look)
