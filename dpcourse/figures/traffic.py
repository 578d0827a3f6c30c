"""Bytes that each rank sends in a step: the kernel's count in colour, the formula as outlines."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.ledger import KERNEL_COUNT, TRAFFIC_PHASES, Transfer, select, sums_by
from dpcourse.tables import bytes_text

_HEIGHT = 0.62
_PHASES = [phase for phase in TRAFFIC_PHASES if phase != "init"]


def traffic_bars(part: Any) -> canvas.Figure:
    """Draw a Run's traffic part: one bar a rank, stacked by phase of the step."""
    counted = select(part.measured, collective=KERNEL_COUNT)
    title = f"Bytes sent in one step: {part.run.title}"
    return canvas.Figure(title, _words(part, counted), lambda: _draw(part, counted))


def _sent(transfers: Sequence[Transfer], rank: int) -> dict[str, float]:
    return sums_by(select(transfers, rank=rank), "phase", field="sent_bytes")


def _words(part: Any, counted: Sequence[Transfer]) -> str:
    if not counted:
        return "No kernel count here; outlines show what the formula says."
    sums = [
        sum(_sent(counted, rank).get(phase, 0) for phase in _PHASES) for rank in range(part.run.world_size)
    ]
    return "One bar a rank. " + "; ".join(
        f"rank {rank} sent {bytes_text(size)}" for rank, size in enumerate(sums)
    )


def _draw(part: Any, counted: Sequence[Transfer]) -> Any:
    world_size, parameter_bytes = part.run.world_size, part.run.parameter_bytes
    ax = canvas.axes(height=1.5 + 0.5 * world_size)
    for rank in range(world_size):
        end = _bars(ax, rank, _sent(counted, rank), parameter_bytes, is_outline=False)
        formula = _bars(ax, rank, _sent(part.expected, rank), parameter_bytes, is_outline=True)
        ax.text(max(end, formula), rank, f"  {end:.4f}" if counted else "  no kernel count", va="center")
    ax.set_yticks(range(world_size), [f"rank {rank}" for rank in range(world_size)])
    ax.invert_yaxis()
    ax.set_xlim(0, max(0.1, 1.25 * ax.dataLim.x1))
    ax.set_xlabel("bytes sent for each byte of parameters (solid: kernel count, outline: formula)")
    canvas.legend_below(ax)
    return ax.figure


def _bars(ax: Any, row: int, sums: dict[str, float], scale: float, is_outline: bool) -> float:
    left = 0.0
    for phase in _PHASES:
        width = sums.get(phase, 0) / scale
        if width and is_outline:
            canvas.outline(ax, row, left, width, _HEIGHT)
        elif width:
            ax.barh(row, width, _HEIGHT, left=left, color=canvas.COLOURS[phase], label=f"in {phase}")
        left += width
    return left
