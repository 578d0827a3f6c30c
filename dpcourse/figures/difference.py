"""How far runs are from a reference run, step by step, on a logarithmic axis."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas

_ROUNDING = 1.2e-7  # float32's distance from 1 to the next number


def difference_lines(
    lines: Sequence[tuple[str, Sequence[float]]], title: str = "Difference, step by step"
) -> canvas.Figure:
    """Draw named series of differences (absolute, one value a step)."""
    words = "; ".join(f"{name}: at most {max(values):.1e}" for name, values in lines)
    return canvas.Figure(title, f"Lines on a logarithmic axis. {words}", lambda: _draw(lines))


def _draw(lines: Sequence[tuple[str, Sequence[float]]]) -> Any:
    from matplotlib.ticker import MaxNLocator

    ax = canvas.axes(height=4.2)
    for (name, values), colour, marker in zip(lines, _cycle(canvas.SERIES), _cycle("os^Dvx*"), strict=False):
        shown = [value or float("nan") for value in values]  # zero has no place on a logarithmic axis
        ax.plot(range(len(values)), shown, color=colour, marker=marker, label=name)
    ax.set_yscale("log")
    ax.axhline(
        _ROUNDING, color=canvas.INK, linestyle=":", linewidth=1.2, label="one rounding of a float32 near 1"
    )
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_xlabel("step")
    ax.set_ylabel("largest difference")
    canvas.legend_below(ax, num_columns=3)
    return ax.figure


def _cycle(values: Sequence[str]) -> Sequence[str]:
    return list(values) * 8
