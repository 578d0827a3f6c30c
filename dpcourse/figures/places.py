"""Who is where: a track for each notebook, from heading to heading, and a dot for each who is there."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas

_ABREAST = 3  # dots beside each other at one heading
_MOST_DOTS = 45  # at one heading; above it all are bars
_LINE, _TRACK = 0.2, 0.62  # inches of a line of dots, and of a track with its numbers
_QUIET = "#999999"


def place_dots(room: Any) -> canvas.Figure:
    """Draw RoomPlaces, which has somebody."""
    tracks = _tracks(room)
    counts = [f"{len(there)} at {where}" for where, there in room.rows().items()]
    return canvas.Figure("Who is where", "; ".join(counts), lambda: _draw(tracks))


def _tracks(room: Any) -> dict[str, dict[int, list[Any]]]:
    """Those in each notebook, by the number of the heading that they are under."""
    tracks: dict[str, dict[int, list[Any]]] = {}
    for there in room.rows().values():
        stop = there[0].stop
        at_work_first = sorted(there, key=lambda place: place.is_quiet)
        tracks.setdefault(stop.notebook, {})[stop.section] = at_work_first
    return tracks


def _draw(tracks: dict[str, dict[int, list[Any]]]) -> Any:
    most = max(len(there) for track in tracks.values() for there in track.values())
    as_bars = most > _MOST_DOTS
    heights = [_height(track, most if as_bars else 0) for track in tracks.values()]
    ax = canvas.axes(width=9, height=sum(heights) + 0.9)
    bottom = 0.0
    for (name, track), height in reversed(list(zip(tracks.items(), heights, strict=True))):
        num_sections = next(iter(track.values()))[0].stop.num_sections
        _track(ax, name, num_sections, bottom)
        for section, there in track.items():
            x = (section + 0.5) / num_sections
            (_bar if as_bars else _dots)(ax, x, bottom, there, most, num_sections)
        bottom += height
    ax.set_xlim(-0.01, 1.01)
    ax.set_ylim(-0.35, bottom)
    ax.set_axis_off()
    canvas.legend_below(ax, num_columns=2)
    return ax.figure


def _height(track: dict[int, list[Any]], most: int) -> float:
    """Inches of a track: its words, and its tallest column."""
    tallest = max(map(len, track.values()))
    lines = 6 * tallest / most if most else -(-tallest // _ABREAST)
    return _TRACK + _LINE * max(lines, 1) + (0.25 if most or tallest > _ABREAST else 0)


def _track(ax: Any, name: str, num_sections: int, y: float) -> None:
    ax.plot([0, 1], [y, y], color=canvas.INK, linewidth=1.2)
    for section in range(num_sections):
        ax.text(
            (section + 0.5) / num_sections, y - 0.05, str(section + 1), ha="center", va="top", fontsize=10
        )
    ax.text(0, y - 0.33, name, ha="left", va="center", fontweight="bold")


def _dots(ax: Any, x: float, y: float, there: Sequence[Any], most: int, num_sections: int) -> None:
    step = min(0.022, 0.8 / num_sections / _ABREAST)
    for number, place in enumerate(there):
        line, column = divmod(number, _ABREAST)
        beside = min(_ABREAST, len(there) - line * _ABREAST)
        left = x + (column - (beside - 1) / 2) * step
        ax.plot([left], [y + _LINE * (line + 0.75)], "o", markersize=10, **_look(place.is_quiet))
    top = y + _LINE * (-(-len(there) // _ABREAST) + 0.75)
    if len(there) > _ABREAST:
        ax.text(x, top, str(len(there)), ha="center", va="center", fontweight="bold")


def _bar(ax: Any, x: float, y: float, there: Sequence[Any], most: int, num_sections: int) -> None:
    each, num_quiet = 6 * _LINE / most, sum(place.is_quiet for place in there)
    num_at_work = len(there) - num_quiet
    for first, number, is_quiet in ((0, num_at_work, False), (num_at_work, num_quiet, True)):
        if number:
            ax.bar(x, number * each, 0.6 / num_sections, bottom=y + first * each, **_look(is_quiet))
    ax.text(x, y + len(there) * each + 0.08, str(len(there)), ha="center", va="bottom", fontweight="bold")


def _look(is_quiet: bool) -> dict[str, Any]:
    if is_quiet:
        return {"color": _QUIET, "label": "ran nothing for ten minutes"}
    return {"color": canvas.SERIES[0], "label": "at work"}
