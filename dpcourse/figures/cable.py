"""Two hosts and the cable between them, drawn as thick as what it carries in a step."""

from typing import Any

from dpcourse.figures import canvas

_ROW = 1.0  # height of one run's row
_HOST_WIDTH, _CABLE_LEFT, _CABLE_RIGHT = 2.6, 2.9, 7.1
_THICKEST = 0.34  # of one direction of the cable, for the run that sends most
_MOST_DOTS = 8
_BOX = "round,pad=0.02,rounding_size=0.08"


def cable_picture(found: Any) -> canvas.Figure:
    """Draw Crossings: for each run two hosts, and in both directions what a card sends.

    Solid: measured; outline: expected. Of more than two hosts, host 0 and the next.
    """
    parts = [f"{row.name} sends {row.across:.2f} across and {row.inside:.2f} inside" for row in found.rows]
    words = f"Two boxes of ranks and a cable between them for each run: {'; '.join(parts)}."
    return canvas.Figure(found.title, words, lambda: _draw(found))


def _draw(found: Any) -> Any:
    ax = canvas.axes(width=9.5, height=0.3 + 1.45 * len(found.rows))
    ax.set_axis_off()
    most = max(max(row.across, row.expected_across) for row in found.rows)
    for place, row in enumerate(found.rows):
        y = -place * _ROW
        for host, left in enumerate((0.2, _CABLE_RIGHT + 0.1)):
            _host(ax, left, y, host, found.links.ranks_per_host, row)
        _cable(ax, y, row, most)
    ax.set_xlim(0, _CABLE_RIGHT + _HOST_WIDTH + 0.3)
    ax.set_ylim(-_ROW * (len(found.rows) - 0.6), 0.55 * _ROW)
    return ax.figure


def _host(ax: Any, left: float, y: float, host: int, num_ranks: int, row: Any) -> None:
    from matplotlib.patches import FancyBboxPatch

    look: Any = {"boxstyle": _BOX, "facecolor": "#f2f2f2", "edgecolor": canvas.INK}
    ax.add_patch(FancyBboxPatch((left, y - 0.32), _HOST_WIDTH, 0.62, **look))
    ax.text(left + 0.08, y + 0.2, f"host {host}", va="center", fontsize=10)
    shown = min(num_ranks, _MOST_DOTS)
    for rank in range(shown):
        centre = left + _HOST_WIDTH * (rank + 1) / (shown + 1)
        ax.plot(centre, y - 0.02, "o", color=canvas.SERIES[0], markersize=12 if shown < 5 else 8)
    middle = left + _HOST_WIDTH / 2
    ax.text(middle, y - 0.22, f"inside: {row.inside:.2f}", ha="center", va="center", fontsize=10)


def _cable(ax: Any, y: float, row: Any, most: float) -> None:
    """One bar for each direction, with an arrow's head; the one above goes right."""
    from matplotlib.patches import Polygon

    for sign in (1, -1):
        middle = y + sign * (_THICKEST / 2 + 0.02)
        for value, look in (
            (row.across, {"facecolor": canvas.COLOURS["communication"], "edgecolor": "none"}),
            (row.expected_across, {"fill": False, "edgecolor": canvas.INK, "linewidth": 1.6}),
        ):
            ax.add_patch(Polygon(_arrow(middle, _THICKEST * value / most, sign), closed=True, **look))
    label = f"{row.name}: {row.across:.2f} each way, holds {row.held:.0f}"
    middle = (_CABLE_LEFT + _CABLE_RIGHT) / 2
    ax.text(middle, y + _THICKEST + 0.1, label, ha="center", va="center", weight="bold")


def _arrow(middle: float, thickness: float, sign: int) -> list[tuple[float, float]]:
    half, head = thickness / 2, min(0.3, 0.25 + thickness)
    tail, tip = (_CABLE_LEFT, _CABLE_RIGHT) if sign > 0 else (_CABLE_RIGHT, _CABLE_LEFT)
    neck = tip - sign * head
    return [
        *((tail, middle - half), (neck, middle - half)),
        (tip, middle),
        *((neck, middle + half), (tail, middle + half)),
    ]
