"""Who sent how many bytes to whom: one row a sender, one column a receiver."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.tables import bytes_text


def who_to_whom(sent_bytes: Sequence[Sequence[int]], title: str) -> canvas.Figure:
    """Draw a square of boxes, the fuller the more bytes; sent_bytes: by sender, then by receiver."""
    return canvas.Figure(title, _words(sent_bytes), lambda: _draw(sent_bytes))


def _words(sent_bytes: Sequence[Sequence[int]]) -> str:
    said = [
        f"rank {source} to rank {target}: {bytes_text(count)}"
        for source, row in enumerate(sent_bytes)
        for target, count in enumerate(row)
        if count
    ]
    return "; ".join(said) + "." if said else "Nobody sent anything."


def _draw(sent_bytes: Sequence[Sequence[int]]) -> Any:
    size, most = len(sent_bytes), max(map(max, sent_bytes)) or 1
    ax = canvas.axes(width=1.6 + 1.05 * size, height=1.3 + 0.75 * size)
    for source, row in enumerate(sent_bytes):
        for target, count in enumerate(row):
            _draw_box(ax, source, target, count, count / most)
    names = [f"rank {rank}" for rank in range(size)]
    ax.set_xticks(range(size), names)
    ax.set_yticks(range(size), names)
    ax.set_xlim(-0.5, size - 0.5)
    ax.set_ylim(size - 0.5, -0.5)
    ax.set_xlabel("receives")
    ax.set_ylabel("sends")
    ax.tick_params(length=0)
    return ax.figure


def _draw_box(ax: Any, source: int, target: int, count: int, share: float) -> None:
    """A box of the colour of communication, with its bytes; a rank's own is crossed out."""
    from matplotlib.patches import Rectangle

    corner = (target - 0.46, source - 0.46)
    if source == target:
        ax.add_patch(Rectangle(corner, 0.92, 0.92, facecolor="#eeeeee", edgecolor="none"))
        return
    colour = canvas.COLOURS["communication"]
    ax.add_patch(Rectangle(corner, 0.92, 0.92, facecolor=colour, alpha=0.75 * share, edgecolor="none"))
    ax.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor="#bbbbbb", linewidth=0.8))
    if count:
        ax.text(target, source, bytes_text(count), ha="center", va="center")
