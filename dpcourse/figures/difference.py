"""How far runs are from a reference run, step by step, on a logarithmic axis."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas

_FOOT = 1e-9  # so that rounding stands low in every picture
_ROUNDING = 1.2e-7  # float32's distance from 1 to the next number


def difference_lines(differences: Sequence[Any], title: str = "Difference, step by step") -> canvas.Figure:
    """Draw differences (each with `title`, `steps` and, a value a step, `parameters`)."""
    words = "; ".join(f"{one.title}: at most {max(one.parameters):.1e}" for one in differences)
    return canvas.Figure(title, f"Lines on a logarithmic axis. {words}", lambda: _draw(differences))


def _draw(differences: Sequence[Any]) -> Any:
    from matplotlib.ticker import MaxNLocator

    ax = canvas.axes(height=4.2)
    for one, colour, marker in zip(differences, _cycle(canvas.SERIES), _cycle("os^Dvx*"), strict=False):
        shown = [value or float("nan") for value in one.parameters]  # zero has no place on such an axis
        ax.plot(one.steps, shown, color=colour, marker=marker, label=one.title)
    ax.set_yscale("log")
    largest = max([_ROUNDING, *(value for one in differences for value in one.parameters)])
    ax.set_ylim(_FOOT, 5 * largest)
    ax.axhline(
        _ROUNDING, color=canvas.INK, linestyle=":", linewidth=1.2, label="one rounding of a float32 near 1"
    )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("step")
    ax.set_ylabel("largest difference of a parameter")
    canvas.legend_below(ax, num_columns=1)
    return ax.figure


def _cycle(values: Sequence[str]) -> Sequence[str]:
    return list(values) * 8
