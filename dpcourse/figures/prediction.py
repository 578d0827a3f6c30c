"""A guess, a formula and a measurement, one under the other."""

from typing import Any

from dpcourse.figures import canvas

_HEIGHT = 0.6
_MOST_TIMES = 4.0  # the answers' length, that a guess's bar may have


def prediction_bars(
    question: str, values: dict[str, float | None], unit: str, digits: int = 2
) -> canvas.Figure:
    """Draw guess (hatched), formula (an outline) and measurement (solid), those that there are."""
    known = {name: value for name, value in values.items() if value is not None}
    words = "; ".join(f"{name} {value:,.{digits}f} {unit}".rstrip() for name, value in known.items())
    return canvas.Figure(question, f"Three bars. {words}", lambda: _draw(known, unit, digits))


def _draw(values: dict[str, float], unit: str, digits: int) -> Any:
    ax = canvas.axes(width=8, height=0.9 + 0.5 * len(values))
    end = _end(values)
    for row, (name, value) in enumerate(values.items()):
        _bar(ax, row, name, min(value, end))
        cut = " (cut)" if value > end else ""
        ax.text(min(value, end), row, f"  {value:,.{digits}f}{cut}", va="center")
    ax.set_yticks(range(len(values)), list(values))
    ax.invert_yaxis()
    ax.set_xlim(0, 1.3 * end or 1)  # where all are 0, an axis like any other
    ax.set_xlabel(unit)
    return ax.figure


def _end(values: dict[str, float]) -> float:
    """Where bars are cut: a guess far beyond the answers would leave nothing to see of them."""
    answers = max((value for name, value in values.items() if name != "your guess"), default=0.0)
    largest = max(values.values())
    return min(largest, _MOST_TIMES * answers) if answers else largest


def _bar(ax: Any, row: int, name: str, value: float) -> None:
    if name == "formula":
        canvas.outline(ax, row, 0, value, _HEIGHT)
    elif name == "measured":
        ax.barh(row, value, _HEIGHT, color=canvas.SERIES[0])
    else:
        ax.barh(row, value, _HEIGHT, facecolor=canvas.PAPER, edgecolor=canvas.SERIES[1], hatch="///")
