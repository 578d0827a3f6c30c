"""One step in time: for each rank a lane of computation and, under it, a lane of communication."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.ledger import COMMUNICATION, COMPUTATION, Span, overlap, select

_LANES = (COMPUTATION, COMMUNICATION)
_HEIGHT = 0.4
_NAMED_SHARE = 0.09  # of the width: shorter spans have no room for their name


def timeline_lanes(part: Any) -> canvas.Figure:
    """Draw a Run's timeline part; spans long enough bear their name."""
    spans = part.measured
    title = f"One step in time: {part.run.title}"
    return canvas.Figure(title, _words(spans, part.run.world_size), lambda: _draw(spans, part.run.world_size))


def _words(spans: Sequence[Span], world_size: int) -> str:
    parts = []
    for rank in range(world_size):
        mine = select(spans, rank=rank)
        found = overlap(mine)
        num_calls = len(select(mine, lane=COMMUNICATION))
        hidden = f", {found.hidden_share:.0%} of it hidden behind computation" if num_calls else ""
        parts.append(f"rank {rank}: {num_calls} collectives{hidden}")
    return "Two lanes a rank, computation above communication. " + "; ".join(parts)


def _draw(spans: Sequence[Span], world_size: int) -> Any:
    ax = canvas.axes(height=1.3 + 0.85 * world_size)
    width = max((span.end_seconds for span in spans), default=1e-3) * 1e3
    for rank in range(world_size):
        for offset, lane in zip((-0.21, 0.21), _LANES, strict=True):
            for span in select(spans, rank=rank, lane=lane):
                _bar(ax, rank + offset, span, width)
    ax.set_yticks(range(world_size), [f"rank {rank}" for rank in range(world_size)])
    ax.invert_yaxis()
    ax.set_xlim(0, width * 1.02)
    ax.set_xlabel("milliseconds since the step began")
    canvas.legend_below(ax)
    return ax.figure


def _bar(ax: Any, y: float, span: Span, width: float) -> None:
    start, length = span.start_seconds * 1e3, span.seconds * 1e3
    colour = canvas.COLOURS[span.lane]
    ax.barh(
        y, length, _HEIGHT, left=start, color=colour, edgecolor=canvas.PAPER, linewidth=0.6, label=span.lane
    )
    if length > _NAMED_SHARE * width:
        ax.text(start + length / 2, y, span.name, ha="center", va="center", color=canvas.PAPER, fontsize=10)
