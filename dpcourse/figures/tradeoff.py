"""A plan in two pictures: what each strategy holds against the card, and bytes held against bytes moved."""

from collections.abc import Iterable, Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.planning.peak import PARTS
from dpcourse.planning.ranking import Row
from dpcourse.tables import bytes_text

_COLOURS = canvas.COLOURS | {"logits": "#F0E442", "margin": "#DDDDDD"}
_HATCHES = {"logits": "//", "margin": "..", "other": "xx"}  # told apart without colour too
_SHORT = {
    "reshard_after_forward=False": "kept",
    "gradient_as_bucket_view=True": "view",
    "checkpointing=full": "recompute",
    "checkpointing=selective": "selective",
    "cpu_offload=True": "offload",
    "sharding=": "",
    "HYBRID_SHARD, ": "hybrid, ",
}
_HEIGHT = 0.66
_VISIBLE = 0.003  # of the axis: a part that is smaller is no bar
_OVER: Any = {"facecolor": canvas.PAPER, "edgecolor": "none", "pad": 0.6}  # words over the card's line
_CLIP = 1.9  # capacities that an axis of memory shows; longer bars are cut, and say so
_LABEL_POINTS = 16  # between labels that would lie on one another
_CLOSE = 0.02  # points nearer than this share of the plane are one point with several names
_LOGARITHMIC = 6  # the span of bytes held from which on an axis is logarithmic
_POINT: Any = {
    "markersize": 9, "markerfacecolor": canvas.PAPER, "markeredgewidth": 2, "linestyle": "none",
    "clip_on": False, "zorder": 3,
}  # fmt: skip
_FITS: Any = {"marker": "o", "color": canvas.SERIES[0]}
_TOO_MUCH: Any = {"marker": "X", "color": "#777777"}
_LEADER: Any = {"arrowstyle": "-", "color": "#999999", "linewidth": 0.8, "relpos": (0, 0.5), "shrinkB": 5}


def plan_figure(plan: Any) -> canvas.Figure:
    """Draw a Plan: a stacked bar a strategy with the card's line, then the plane of bytes held and moved."""
    words = f"{_bar_words(plan.shown)} {_plane_words(_in_plane(plan.shown))}"
    return canvas.Figure(plan.title, words, lambda: _draw_plan(plan))


def tradeoff_plane(rows: Sequence[Row], title: str) -> canvas.Figure:
    """Draw the plane alone: one point a strategy, bytes moved to the right, bytes held upwards."""
    shown = _in_plane(rows)
    return canvas.Figure(title, _plane_words(shown), lambda: _draw_plane_alone(shown))


def pareto_front(rows: Iterable[Row]) -> list[Row]:
    """List the rows that no other beats in bytes held and bytes moved at once, by bytes moved."""
    front: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.time.sent_bytes, row.peak_bytes)):
        if not front or row.peak_bytes < front[-1].peak_bytes:
            front.append(row)
    return front


def short(row: Row) -> str:
    """A strategy's name as a figure has room for it."""
    label = row.label
    for long, name in _SHORT.items():
        label = label.replace(long, name)
    return label


# -- words ---------------------------------------------------------------------


def _bar_words(rows: Sequence[Row]) -> str:
    held = "; ".join(
        f"{short(row)} {bytes_text(row.peak_bytes)}, {'fits' if row.fits else 'does not fit'}" for row in rows
    )
    capacity = bytes_text(rows[0].capacity_bytes)
    return f"Stacked bars of the fullest moment beside a card of {capacity}: {held}."


def _plane_words(rows: Sequence[Row]) -> str:
    if not rows:
        return "One card moves nothing."
    points = "; ".join(
        f"{short(row)} {bytes_text(row.peak_bytes)}, {bytes_text(row.time.sent_bytes)}" for row in rows
    )
    front = ", ".join(short(row) for row in pareto_front(rows))
    return f"Points of bytes held and bytes sent in a step: {points}. Beaten in both by none: {front}."


def _in_plane(rows: Sequence[Row]) -> list[Row]:
    """A card that trains alone moves nothing, and is no choice between holding and moving."""
    return [row for row in rows if row.time.sent_bytes and not row.is_alone]


# -- the two pictures, placed by hand: names stand outside of the axes, and a layout would shrink these

_WIDTH, _PLANE_WIDTH, _BETWEEN = 6.6, 5.2, 1.75  # inches


def _draw_plan(plan: Any) -> Any:
    rows, points = plan.shown, _in_plane(plan.shown)
    heights = [0.36 * len(rows) + 0.3, _plane_height(points) if points else 0.0]
    figure, (bars, plane) = _figure(heights)
    _bars(bars, rows)
    if points:
        _plane(plane, points)
    else:
        plane.remove()
    return figure


def _draw_plane_alone(rows: Sequence[Row]) -> Any:
    figure, (bars, plane) = _figure([0.0, _plane_height(rows)])
    bars.remove()
    _plane(plane, rows)
    return figure


def _plane_height(rows: Sequence[Row]) -> float:
    return max(3.0, 0.27 * len(rows))


def _figure(heights: Sequence[float]) -> tuple[Any, tuple[Any, Any]]:
    """Make axes of these heights in inches, one above the other."""
    from matplotlib.figure import Figure as Canvas

    whole = sum(heights) + _BETWEEN
    figure = Canvas(figsize=(_WIDTH, whole))
    plane = figure.add_axes((0, 0, _PLANE_WIDTH / _WIDTH, max(heights[1], 0.1) / whole))
    bars = figure.add_axes((0, (heights[1] + _BETWEEN) / whole, 1, max(heights[0], 0.1) / whole))
    return figure, (bars, plane)


# -- bars ----------------------------------------------------------------------


def _bars(ax: Any, rows: Sequence[Row]) -> None:
    capacity = rows[0].capacity_bytes
    largest = min(max(max(row.peak_bytes for row in rows), 1.05 * capacity), _CLIP * capacity)
    unit, size = canvas.byte_unit(capacity)
    for place, row in enumerate(rows):
        _bar(ax, place, row, size, largest)
    ax.axvline(capacity / size, color=canvas.INK, linewidth=2, linestyle=(0, (4, 2)))
    ax.text(capacity / size, -0.75, f"a card: {bytes_text(capacity)}", ha="center", va="bottom", fontsize=11)
    ax.set_yticks(range(len(rows)), [short(row) for row in rows], fontsize=10)
    ax.set_ylim(len(rows) - 0.4, -0.7)
    ax.set_xlim(0, 1.2 * largest / size)
    ax.set_xlabel(f"{unit} held at the fullest moment (predicted)")
    known = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    parts = [part for part in PARTS if part in known]
    handles = [known[part] for part in parts]
    ax.legend(
        handles, parts, ncols=5, loc="upper center", bbox_to_anchor=(0.4, -0.5 / (0.36 * len(rows) + 0.3))
    )


def _bar(ax: Any, place: int, row: Row, size: float, largest: float) -> None:
    left = 0.0
    for part in PARTS:
        width = min(row.peak.num_bytes.get(part, 0), largest - left)
        if width > _VISIBLE * largest:
            ax.barh(place, width / size, _HEIGHT, left=left / size, label=part, **_look(part))
        left += max(width, 0)
    cut = " (cut)" if row.peak_bytes > largest else ""
    words = f"{bytes_text(row.peak_bytes)}{cut}{'' if row.fits else ', too much'}"
    beside: Any = {"xytext": (7, 0), "textcoords": "offset points"}
    ax.annotate(words, (left / size, place), va="center", fontsize=10, bbox=_OVER, **beside)


def _look(part: str) -> dict[str, Any]:
    """A prediction: the part's colour as an outline, its inside faint."""
    from matplotlib.colors import to_rgba

    colour = _COLOURS[part]
    return {
        "facecolor": to_rgba(colour, 0.45),
        "edgecolor": canvas.INK,
        "linewidth": 0.8,
        "hatch": _HATCHES.get(part),
    }


# -- the plane -----------------------------------------------------------------


def _plane(ax: Any, rows: Sequence[Row]) -> None:
    moved, held = _coordinates(rows)
    (x_unit, x_size), (y_unit, y_size) = canvas.byte_unit(max(moved)), canvas.byte_unit(max(held))
    points = [(x / x_size, y / y_size) for x, y in zip(moved, held, strict=True)]
    ax.set_xlim(0, 1.06 * max(moved) / x_size)
    if max(held) > _LOGARITHMIC * min(held):
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        ax.set_ylim(0, 1.12 * max(held) / y_size)
    front = [(row.time.sent_bytes / x_size, row.peak_bytes / y_size) for row in pareto_front(rows)]
    ax.step(*zip(*front, strict=True), where="post", color=canvas.SERIES[0], linestyle=(0, (3, 1.5)))
    for row, point in zip(rows, points, strict=True):
        ax.plot(*point, **_POINT, **(_FITS if row.fits else _TOO_MUCH))
    _capacity(ax, rows[0].capacity_bytes, y_size)
    ax.set_xlabel(f"{x_unit} that a rank sends in a step (predicted)\ncircle: fits, cross: does not")
    ax.set_ylabel(f"{y_unit} held")
    _names(ax, rows, points)


def _capacity(ax: Any, capacity: int, size: float) -> None:
    """The card's line, where it is within the axes."""
    low, high = ax.get_ylim()
    if low < capacity / size < high:
        ax.axhline(capacity / size, color=canvas.INK, linewidth=2, linestyle=(0, (4, 2)))
        ax.text(0, capacity / size, f" a card: {bytes_text(capacity)}", va="bottom", fontsize=11)


def _coordinates(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row.time.sent_bytes for row in rows], [float(row.peak_bytes) for row in rows]


def _names(ax: Any, rows: Sequence[Row], points: Sequence[tuple[float, float]]) -> None:
    """Name the points in a column beside the plane; those that lie together have one line of names."""
    ax.figure.canvas.draw()
    to_axes = ax.transData + ax.transAxes.inverted()
    named: list[tuple[tuple[float, float], tuple[float, float], list[str]]] = []
    for point, row in sorted(zip(points, rows, strict=True), key=lambda pair: pair[0][1]):
        x, y = to_axes.transform(point)
        near = (names for _, at, names in named if abs(at[0] - x) + abs(at[1] - y) < _CLOSE)
        if (names := next(near, None)) is not None:
            names.append(short(row))
        else:
            named.append((point, (x, y), [short(row)]))
    gap = _LABEL_POINTS * ax.figure.dpi / 72 / ax.bbox.height
    heights = _apart([at[1] for _, at, _ in named], gap)
    for (point, _, names), height in zip(named, heights, strict=True):
        place = {"xytext": (1.04, height), "textcoords": "axes fraction", "va": "center"}
        ax.annotate(", ".join(names), point, arrowprops=_LEADER, fontsize=10, **place)


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Move ascending heights apart, up from below; then down again, so that none is above the axes."""
    places: list[float] = []
    for height in heights:
        places.append(max(height, places[-1] + gap) if places else height)
    highest = 1.0
    for index in reversed(range(len(places))):
        places[index] = min(places[index], highest)
        highest = places[index] - gap
    return places
