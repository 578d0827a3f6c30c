"""Bytes that each rank sends in a step: the kernel's count in colour, the formula as outlines."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.ledger import TRAFFIC_PHASES, Transfer, select, sums_by
from dpcourse.tables import bytes_text

_HEIGHT = 0.62
_PHASES = [phase for phase in TRAFFIC_PHASES if phase != "init"]


def traffic_bars(part: Any) -> canvas.Figure:
    """Draw a Run's traffic part: one bar a rank, stacked by phase of the step."""
    counted = [row for rank in part.ranks for row in part.sent_rows(rank)]
    title = f"Bytes sent in one step: {part.run.title}"
    return canvas.Figure(title, _words(part, counted), lambda: _draw(part, counted))


def _sent(transfers: Sequence[Transfer], rank: int) -> dict[str, float]:
    return sums_by(select(transfers, rank=rank), "phase", field="sent_bytes")


def _words(part: Any, counted: Sequence[Transfer]) -> str:
    if not counted:
        return "No kernel count here; outlines show what the formula says."
    sums = {rank: sum(_sent(counted, rank).get(phase, 0) for phase in _PHASES) for rank in part.ranks}
    return "One bar a rank. " + "; ".join(
        f"rank {rank} sent {bytes_text(size)}" for rank, size in sums.items()
    )


def _draw(part: Any, counted: Sequence[Transfer]) -> Any:
    ranks, solid = part.ranks, "kernel count" if part.run.is_trained else "calls that were made, by formula"
    ax = canvas.axes(height=1.5 + 0.5 * len(ranks))
    for row, rank in enumerate(ranks):
        sent, formula = (
            _by_phase(which, rank, part.run.parameter_bytes) for which in (counted, part.expected)
        )
        end = canvas.stack(ax, row, sent, _HEIGHT, label="in {}")
        expected_end = canvas.stack(ax, row, formula, _HEIGHT, is_outline=True)
        ax.text(max(end, expected_end), row, f"  {end:.4f}" if counted else "  no kernel count", va="center")
    ax.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    ax.invert_yaxis()
    ax.set_xlim(0, max(0.1, 1.25 * ax.dataLim.x1))
    where = canvas.where(part.run)
    label = f"bytes sent for each byte of parameters (solid: {solid}, outline: formula)"
    ax.set_xlabel(label + (f"\n{where}" if where else ""))
    canvas.legend_below(ax)
    return ax.figure


def _by_phase(transfers: Sequence[Transfer], rank: int, scale: float) -> dict[str, float]:
    sums = _sent(transfers, rank)
    return {phase: sums.get(phase, 0) / scale for phase in _PHASES}
