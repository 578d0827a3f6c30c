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
        sent, formula = (_by_phase(which, rank, parameter_bytes) for which in (counted, part.expected))
        end = canvas.stack(ax, rank, sent, _HEIGHT, label="in {}")
        expected_end = canvas.stack(ax, rank, formula, _HEIGHT, is_outline=True)
        ax.text(max(end, expected_end), rank, f"  {end:.4f}" if counted else "  no kernel count", va="center")
    ax.set_yticks(range(world_size), [f"rank {rank}" for rank in range(world_size)])
    ax.invert_yaxis()
    ax.set_xlim(0, max(0.1, 1.25 * ax.dataLim.x1))
    ax.set_xlabel("bytes sent for each byte of parameters (solid: kernel count, outline: formula)")
    canvas.legend_below(ax)
    return ax.figure


def _by_phase(transfers: Sequence[Transfer], rank: int, scale: float) -> dict[str, float]:
    sums = _sent(transfers, rank)
    return {phase: sums.get(phase, 0) / scale for phase in _PHASES}
