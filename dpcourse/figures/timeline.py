"""One step in time: for each rank a lane of computation and, under it, lanes of communication."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.ledger import COMMUNICATION, COMPUTATION, Span, overlap, select, side_by_side

_LANE_INCHES, _BETWEEN_INCHES = 0.3, 0.16  # the height of a lane, and of the space between two ranks
_BAR = 0.92  # of a lane
_WIDTH_INCHES = 7.2  # of the axes, without what stands beside them
_LETTER_INCHES = 0.085  # the width of a letter of a span's name


def timeline_lanes(part: Any) -> canvas.Figure:
    """Draw a Run's timeline part; spans long enough bear their name, those that overlap lie side by side."""
    spans = part.measured
    title = f"One step in time: {part.run.title}"
    num_ranks = part.run.world_size if spans else 0
    return canvas.Figure(
        title, _words(spans, num_ranks), lambda: _draw(spans, num_ranks, canvas.where(part.run))
    )


def _words(spans: Sequence[Span], world_size: int) -> str:
    parts = [] if world_size else ["No time passed in this run, so that there are none."]
    for rank in range(world_size):
        mine = select(spans, rank=rank)
        num_calls = len(select(mine, lane=COMMUNICATION))
        hidden = f", {_hidden(mine)} behind computation" if num_calls else ""
        parts.append(f"rank {rank}: {num_calls} collectives{hidden}")
    return "Lanes for each rank, computation above communication. " + "; ".join(parts)


def _hidden(spans: Sequence[Span]) -> str:
    return f"{100 * overlap(spans).hidden_share:.0f} % hidden"


def _draw(spans: Sequence[Span], world_size: int, where: str) -> Any:
    by_rank = [_lanes(select(spans, rank=rank)) for rank in range(world_size)]
    height = sum(len(lanes) * _LANE_INCHES + _BETWEEN_INCHES for lanes in by_rank)
    ax = canvas.axes(height=1.2 + height)
    width = max((span.end_seconds for span in spans), default=1e-3) * 1e3
    middles, y = [], 0.0
    for rank, lanes in enumerate(by_rank):
        for place, lane in enumerate(lanes):
            for span in lane:
                _bar(ax, y + (place + 0.5) * _LANE_INCHES, span, width)
        middles.append(y + len(lanes) * _LANE_INCHES / 2)
        _note_hidden(ax, middles[-1], select(spans, rank=rank), width)
        y += len(lanes) * _LANE_INCHES + _BETWEEN_INCHES
    ax.set_yticks(middles, [f"rank {rank}" for rank in range(world_size)])
    ax.set_ylim(y, -_BETWEEN_INCHES)
    ax.set_xlim(0, width * 1.02)
    ax.set_xlabel("milliseconds since the step began" + (f" ({where})" if where else ""))
    canvas.legend_below(ax)
    return ax.figure


def _lanes(spans: Sequence[Span]) -> list[list[Span]]:
    """One lane of computation, and as many of communication as it takes."""
    lanes = [row for lane in (COMPUTATION, COMMUNICATION) for row in side_by_side(select(spans, lane=lane))]
    return lanes or [[]]


def _bar(ax: Any, y: float, span: Span, width: float) -> None:
    start, length = span.start_seconds * 1e3, span.seconds * 1e3
    colour = canvas.COLOURS[span.lane]
    look = {"color": colour, "edgecolor": canvas.PAPER, "linewidth": 0.6, "label": span.lane}
    ax.barh(y, length, _LANE_INCHES * _BAR, left=start, **look)
    if length / width * _WIDTH_INCHES > _LETTER_INCHES * (len(span.name) + 1):
        ax.text(start + length / 2, y, span.name, ha="center", va="center", color=canvas.PAPER, fontsize=10)


def _note_hidden(ax: Any, y: float, spans: Sequence[Span], width: float) -> None:
    if select(spans, lane=COMMUNICATION):
        ax.annotate(_hidden(spans), (width * 1.02, y), xytext=(6, 0), textcoords="offset points", va="center")
