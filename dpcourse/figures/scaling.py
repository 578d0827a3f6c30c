"""A step's time against the number of ranks, computed: a broken line a strategy, with its wall marked."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.tables import seconds_text

# Told apart without colour too; all are broken, since all are computed.
_DASHES: Any = [(0, (6, 2)), (0, (1, 1.3)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1.5)), (0, (8, 2, 2, 2, 2, 2))]
_MARKERS = "os^Dv"
_HOLLOW: Any = {"markerfacecolor": canvas.PAPER, "markersize": 8, "markeredgewidth": 2}
_LEADER: Any = {"arrowstyle": "-", "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 5}
_ABOVE: Any = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "va": "bottom"}
_LABEL_POINTS = 15  # between the names of two lines that end near each other


def scaling_lines(scaling: Any, mark: int | None = None) -> canvas.Figure:
    """Draw a Scaling: each strategy's step, the computation alone, and from where it is under half.

    mark: a number of ranks to mark, and to say of each strategy how much of its step computes there.
    """
    walls = {strategy: scaling.wall(strategy).half_from for strategy in scaling.strategies}
    title = scaling.title if mark is None else f"{scaling.title}; {_marked_words(scaling, mark)}"
    return canvas.Figure(title, _words(scaling, walls), lambda: _draw(scaling, walls, mark))


def _marked_words(scaling: Any, mark: int) -> str:
    shares = [f"{name} {100 * scaling.point(name, mark).efficiency:.0f} %" for name in scaling.strategies]
    return f"on {mark:,} {'rank' if mark == 1 else 'ranks'} the computing share is {', '.join(shares)}"


def _words(scaling: Any, walls: dict[str, int | None]) -> str:
    parts = []
    for strategy, wall in walls.items():
        last = scaling.point(strategy, scaling.ranks[-1])
        parts.append(f"{strategy}: {seconds_text(last.step_seconds)} at the end, {_wall_words(wall)}")
    return "Lines on logarithmic axes, a step's time against the number of ranks. " + "; ".join(parts)


def _wall_words(wall: int | None) -> str:
    return "never under 50 %" if wall is None else f"under 50 % from {wall:,}"


def _draw(scaling: Any, walls: dict[str, int | None], mark: int | None) -> Any:
    ax = canvas.axes(width=9.5, height=4.8)
    ax.set_xscale("log")
    ax.set_yscale("log")
    _computation(ax, scaling)
    for index, (strategy, wall) in enumerate(walls.items()):
        _line(ax, scaling, strategy, wall, index)
    ax.set_xlim(scaling.ranks[0], scaling.ranks[-1])
    ax.set_ylim(bottom=0.7 * ax.get_ylim()[0])
    ax.set_xlabel("ranks")
    ax.set_ylabel("seconds a step (computed)")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if mark is not None:
        ax.axvline(mark, color=canvas.INK, linewidth=1.5, zorder=0)
        ax.annotate(f"{mark:,} ranks", (mark, 1), xycoords=("data", "axes fraction"), **_ABOVE)
    _names(ax, scaling, walls)
    return ax.figure


def _computation(ax: Any, scaling: Any) -> None:
    """What would be left without communication, and twice that: above it, less than half computes."""
    alone = [point.compute_seconds for point in scaling.points(scaling.strategies[0])]
    twice = [2 * seconds for seconds in alone]
    ax.plot(scaling.ranks, alone, color=canvas.INK, linewidth=0.9, linestyle=(0, (1, 3)))
    ax.plot(scaling.ranks, twice, color=canvas.INK, linewidth=0.9)
    paper = {"facecolor": canvas.PAPER, "edgecolor": "none", "pad": 1}  # a mark may run through the words
    look: Any = {"textcoords": "offset points", "fontsize": 10, "bbox": paper}
    ax.annotate("50 % of a step computes", (scaling.ranks[0], twice[0]), xytext=(6, 4), **look)
    middle = len(alone) // 2
    place = (scaling.ranks[middle], alone[middle])
    ax.annotate("computation alone", place, xytext=(-4, -13), ha="right", **look)


def _line(ax: Any, scaling: Any, strategy: str, wall: int | None, index: int) -> None:
    """A line, with the strategy's sign at its end and where its wall stands."""
    colour = canvas.SERIES[index % len(canvas.SERIES)]
    seconds = {number: scaling.point(strategy, number).step_seconds for number in scaling.ranks}
    ax.plot(*zip(*seconds.items(), strict=True), color=colour, linewidth=2, linestyle=_DASHES[index % 5])
    signed = {scaling.ranks[-1], wall} - {None}
    for number in signed:
        if scaling.ranks[0] <= number <= scaling.ranks[-1]:
            height = scaling.point(strategy, number).step_seconds
            ax.plot(number, height, _MARKERS[index % 5], color=colour, clip_on=False, zorder=3, **_HOLLOW)


def _names(ax: Any, scaling: Any, walls: dict[str, int | None]) -> None:
    """Name each line at its end, with its wall; names of lines that end together are moved apart."""
    last = scaling.ranks[-1]
    ends = {strategy: scaling.point(strategy, last).step_seconds for strategy in walls}
    colours = dict(zip(walls, [*canvas.SERIES] * len(walls), strict=False))
    by_height = sorted(ends, key=lambda strategy: ends[strategy])
    ax.figure.canvas.draw()
    heights = [ax.transData.transform((last, ends[strategy]))[1] for strategy in by_height]
    gap = _LABEL_POINTS * ax.figure.dpi / 72
    for strategy, height, place in zip(by_height, heights, _apart(heights, gap), strict=True):
        ax.annotate(
            f"{strategy}: {_wall_words(walls[strategy])}",
            (last, ends[strategy]),
            xytext=(26, (place - height) * 72 / ax.figure.dpi),
            arrowprops={"color": colours[strategy], **_LEADER},
            textcoords="offset points",
            va="center",
            fontsize=11,
        )


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending heights up where needed, so that each stands a gap above the one before."""
    places: list[float] = []
    for height in heights:
        places.append(max(height, places[-1] + gap) if places else height)
    return places
