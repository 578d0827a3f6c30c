"""Backward's time against the size of a bucket as it is being measured, one point after the other."""

from typing import Any

from dpcourse.figures import canvas
from dpcourse.tables import bytes_text, seconds_text

_KIB = 1024
_DASHED: Any = {"linestyle": (0, (5, 2)), "linewidth": 1.6, "color": canvas.INK}
_DOTTED: Any = {"linestyle": (0, (1, 2)), "linewidth": 1.6, "color": canvas.SERIES[2]}
_POINT: Any = {"fmt": "o", "markersize": 9, "elinewidth": 1.4, "zorder": 3, "color": canvas.SERIES[0]}
_LAST: Any = {**_POINT, "fmt": "D", "markersize": 12, "color": canvas.SERIES[1], "zorder": 4}


def live_bucket_curve(points: Any) -> canvas.Figure:
    """Draw LivePoints: the model's curve dashed, what has been measured solid, the last point larger."""
    of = f"DDP's backward, {bytes_text(points.gradient_bytes)} of gradients, {points.links}"
    title = f"{of}, layers paced to {points.pace_compute}: {_last_words(points)}"
    rows = [
        f"{row.bucket_cap_mb * _KIB:g} KiB in {row.num_buckets} buckets {seconds_text(row.median_seconds)}, "
        f"by the model {seconds_text(row.predicted_seconds)}"
        for row in points.times
    ]
    curve = "; ".join(f"{cap * _KIB:.3g} KiB {seconds_text(seconds)}" for cap, seconds in points.curve[::4])
    words = f"The model's curve, for the link as it was {_of(points)}: {curve}"
    measured = f"Measured: {'; '.join(rows)}" if rows else "Nothing is measured yet"
    return canvas.Figure(title, f"{words}. {measured}", lambda: _draw(points))


def _of(points: Any) -> str:
    return "measured" if points.is_fitted else "asked for"


def _last_words(points: Any) -> str:
    if not points.times:
        return "nothing measured yet"
    last = points.times[-1]
    measured, predicted = seconds_text(last.median_seconds), seconds_text(last.predicted_seconds)
    return f"{last.bucket_cap_mb * _KIB:g} KiB took {measured}, the model says {predicted}"


def _draw(points: Any) -> Any:
    ax = canvas.axes(width=9, height=4.4)
    ax.set_xscale("log", base=2)
    curve = [(cap * _KIB, 1e3 * seconds) for cap, seconds in points.curve]
    ax.plot(*zip(*curve, strict=True), label=f"model, for the link as it was {_of(points)}", **_DASHED)
    ax.axhline(1e3 * points.compute_seconds, label="computation alone (paced)", **_DOTTED)
    for row in points.times[:-1]:
        _point(ax, row, _POINT, "measured (median, range)")
    for row in points.times[-1:]:
        _point(ax, row, _LAST, "measured last")
    ax.set_ylim(bottom=0)
    ax.set_xticks([2**exponent for exponent in range(0, 11, 2)])
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    ax.set_xlabel("size of a bucket in KiB (bucket_cap_mb x 1024)")
    ax.set_ylabel(f"milliseconds of backward\n({points.links.kind} links)")
    canvas.legend_below(ax, num_columns=2)
    return ax.figure


def _point(ax: Any, row: Any, look: Any, label: str) -> None:
    middle = 1e3 * row.median_seconds
    ends = [[middle - 1e3 * min(row.seconds)], [1e3 * max(row.seconds) - middle]]
    ax.errorbar([row.bucket_cap_mb * _KIB], [middle], yerr=ends, label=label, **look)
