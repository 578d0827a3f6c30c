"""Memory of one rank from moment to moment of a step: a stacked area, an owner a colour."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.ledger import OWNERS, Moment
from dpcourse.tables import bytes_text

_ROOM_ABOVE = 1.22  # of the peak: for the names of the phases and the peak's value
_NAMED_SHARE = 0.1  # of the width: a shorter phase has no room for its name
_PAPER = {"facecolor": canvas.PAPER, "edgecolor": "none", "pad": 0.5}
# What stays the same through a step lies below what comes and goes.
_BOTTOM_UP = ("parameters", "optimizer", "buckets", "gradients", "gathered", "activations", "other")


def memory_over_time(part: Any, rank: int = 0) -> canvas.Figure:
    """Draw what a rank of a Run held over one step, with its phases and its fullest moment marked."""
    moments = part.over_time(rank)
    title = f"Memory of rank {rank} of {part.run.world_size} over the time of one step: {part.run.title}"
    return canvas.Figure(title, _words(moments), lambda: _draw(moments, part.run.is_trained))


def _fullest(moments: Sequence[Moment]) -> Moment:
    return max(moments, key=lambda moment: moment.total_bytes)


def _words(moments: Sequence[Moment]) -> str:
    if not moments:
        return "No moments were recorded."
    peak = _fullest(moments)
    owners = [owner for owner in OWNERS if owner in peak.num_bytes]
    held = ", ".join(f"{owner} {bytes_text(peak.num_bytes[owner])}" for owner in owners)
    whole = bytes_text(peak.total_bytes)
    return f"Stacked areas. At the fullest moment, in {peak.phase}: {whole}, of which {held}"


def _draw(moments: Sequence[Moment], has_times: bool) -> Any:
    ax = canvas.axes(height=4.2)
    if moments:
        _areas(ax, moments)
        _phases(ax, moments)
        _peak(ax, _fullest(moments), moments[-1].seconds * 1e3)
        canvas.legend_below(ax, num_columns=7)
    ax.set_xlabel("milliseconds since the step began (the meter slows it down)")
    if not has_times:
        ax.set_xlabel("the order of one step (no time passed in it)")
        ax.set_xticks([])
    return ax.figure


def _areas(ax: Any, moments: Sequence[Moment]) -> None:
    peak_bytes = _fullest(moments).total_bytes
    unit, size = canvas.byte_unit(peak_bytes)
    owners = [owner for owner in _BOTTOM_UP if any(moment.num_bytes.get(owner) for moment in moments)]
    times = [moment.seconds * 1e3 for moment in moments]
    held = [[moment.num_bytes.get(owner, 0) / size for moment in moments] for owner in owners]
    colours = [canvas.COLOURS[owner] for owner in owners]
    # What is held at a moment is held until the next one: steps, and no slopes between them. The areas' own
    # colour on their edges keeps one that lasts a moment only as wide as a line.
    ax.stackplot(times, held, labels=owners, colors=colours, step="post", edgecolor=colours, linewidth=0.7)
    ax.set_xlim(0, times[-1])
    ax.set_ylim(0, _ROOM_ABOVE * peak_bytes / size)
    ax.set_ylabel(f"{unit} held")


def _phases(ax: Any, moments: Sequence[Moment]) -> None:
    """Name each phase above the areas, with a line where it ends; a short one's name runs on."""
    begin, top, width = 0.0, ax.get_ylim()[1], moments[-1].seconds * 1e3
    for phase in dict.fromkeys(moment.phase for moment in moments):
        end = max(moment.seconds for moment in moments if moment.phase == phase) * 1e3
        ax.axvline(end, color=canvas.INK, linewidth=0.8, linestyle=(0, (4, 3)))
        is_last, is_short = end == width, end - begin < _NAMED_SHARE * width
        place = (begin + end) / 2 if not is_short else end if is_last else begin
        side = "center" if not is_short else "right" if is_last else "left"
        # Five points in from a side, so that the paper behind a name covers no axis.
        shift = {"center": 0, "left": 5, "right": -5}[side]
        points = {"xytext": (shift, 0), "textcoords": "offset points"}
        ax.annotate(phase, (place, top), ha=side, va="top", bbox=_PAPER, **points)
        begin = end


def _peak(ax: Any, peak: Moment, width: float) -> None:
    _, size = canvas.byte_unit(peak.total_bytes)
    time, height = peak.seconds * 1e3, peak.total_bytes / size
    ax.plot([time], [height], marker="v", color=canvas.INK, markersize=8, clip_on=False)
    is_right = time > width / 2
    ax.annotate(
        f"peak {bytes_text(peak.total_bytes)}",
        (time, height),
        xytext=(-9 if is_right else 9, 5),
        textcoords="offset points",
        ha="right" if is_right else "left",
        fontweight="bold",
        bbox=_PAPER,
    )
