"""Experiments on links: what was measured is solid, what a formula or model says is dashed or an outline."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from dpcourse.figures import canvas
from dpcourse.tables import bytes_text, seconds_text

_STAR, _RING = canvas.SERIES[1], canvas.SERIES[0]
_MEASURED, _MODEL = canvas.SERIES[0], canvas.INK
_DASHED: Any = {"linestyle": (0, (5, 2)), "linewidth": 1.6}
_DOTTED: Any = {"linestyle": (0, (1, 2)), "linewidth": 1.4}
_HOLLOW: Any = {"markerfacecolor": canvas.PAPER, "markeredgewidth": 1.6}
_HEIGHT = 0.6
Bars = Sequence[tuple[str, float, float | None, str]]  # name, measured, expected, what stands beside it


# -- curves


def all_reduce_curve(sweep: Any) -> canvas.Figure:
    """Draw an AllReduceSweep: time against size."""
    title = f"All-reduce against its size: {sweep.links}"
    parts = [f"{bytes_text(t.payload_bytes)} {seconds_text(t.median_seconds)}" for t in sweep.times]
    words = f"Points on logarithmic axes, with the fitted link as a dashed line. {'; '.join(parts)}"
    return canvas.Figure(title, f"{words}. {sweep.words()}", lambda: _draw_all_reduces(sweep))


def _draw_all_reduces(sweep: Any) -> Any:
    from dpcourse.theory.links import ring_seconds

    ax = canvas.axes(width=8, height=4.4)
    ax.set_xscale("log")
    ax.set_yscale("log")
    sizes = [timed.payload_bytes for timed in sweep.times]
    _points(ax, sizes, [timed.seconds for timed in sweep.times], _MEASURED, "o", "measured (median, range)")
    fitted = [1e3 * sweep.predicted(size) for size in sizes]
    ax.plot(sizes, fitted, color=_MODEL, label="fitted: latency and bandwidth", **_DASHED)
    asked = [1e3 * ring_seconds(size, sweep.num_ranks, sweep.links.inter) for size in sizes]
    ax.plot(sizes, asked, color=canvas.SERIES[1], label="the link that was asked for", **_DOTTED)
    ax.set_ylim(bottom=0.5e3 * min(min(timed.seconds) for timed in sweep.times))
    ax.xaxis.set_major_formatter(lambda value, _: bytes_text(value).replace(".00", ""))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.set_xlabel("bytes that are all-reduced")
    ax.set_ylabel(f"milliseconds ({sweep.links.kind} links)")
    canvas.legend_below(ax, num_columns=3)
    return ax.figure


def bucket_curve(sweep: Any) -> canvas.Figure:
    """Draw a BucketSweep: backward's time against the size of a bucket, with both minima."""
    parts = [f"{_mib(row.bucket_cap_mb)} {seconds_text(row.median_seconds)}" for row in sweep.times]
    words = f"Points, with the model's curve dashed. {'; '.join(parts)}. {sweep.words()}"
    return canvas.Figure(sweep.title, words, lambda: _draw_buckets(sweep))


def _draw_buckets(sweep: Any) -> Any:
    ax = canvas.axes(width=8, height=4.6)
    ax.set_xscale("log", base=2)
    caps = [row.bucket_cap_mb for row in sweep.times]
    _points(ax, caps, [row.seconds for row in sweep.times], _MEASURED, "o", "measured (median, range)")
    curve = [(cap, 1e3 * seconds) for cap, seconds in sweep.curve]
    ax.plot(*zip(*curve, strict=True), color=_MODEL, label="model, from all-reduces alone", **_DASHED)
    computing = f"computation alone{' (paced)' if sweep.pace_compute else ''}"
    ax.axhline(1e3 * sweep.compute_seconds, color=canvas.SERIES[2], label=computing, **_DOTTED)
    best, predicted = sweep.measured_best, sweep.predicted_best
    _mark(ax, best.bucket_cap_mb, best.median_seconds, _MEASURED, "*", "best measured", {})
    _mark(ax, predicted.bucket_cap_mb, predicted.predicted_seconds, _MODEL, "*", "the model's best", _HOLLOW)
    ax.set_ylim(bottom=0)
    ax.set_xticks(caps, [str(Fraction(cap).limit_denominator(10**6)) for cap in caps])
    ax.set_xlabel("bucket_cap_mb (MiB)")
    ax.set_ylabel(f"milliseconds of backward ({sweep.all_reduces.links.kind} links)")
    canvas.legend_below(ax, num_columns=3)
    return ax.figure


def _mib(cap_mb: float) -> str:
    return f"{cap_mb:.3g} MiB"


def _mark(ax: Any, x: float, seconds: float, colour: str, marker: str, label: str, look: Any) -> None:
    style = {"color": colour, "marker": marker, "linestyle": "none", "markersize": 17, "zorder": 4}
    ax.plot([x], [1e3 * seconds], label=label, **style, **look)


def _points(ax: Any, xs: Any, repeats: Any, colour: str, marker: str, label: str) -> None:
    """Medians as solid points, with a line from the shortest to the longest repeat."""
    from statistics import median

    middles = [1e3 * median(seconds) for seconds in repeats]
    below = [middle - 1e3 * min(seconds) for middle, seconds in zip(middles, repeats, strict=True)]
    above = [1e3 * max(seconds) - middle for middle, seconds in zip(middles, repeats, strict=True)]
    look: Any = {"fmt": marker, "color": colour, "markersize": 8, "elinewidth": 1.2, "zorder": 3}
    ax.errorbar(xs, middles, yerr=[below, above], label=label, **look)


def star_or_ring_curves(found: Any) -> canvas.Figure:
    """Draw a StarOrRing: time, and bytes from the main rank, against the number of hosts."""
    parts = [
        f"{row.algorithm} on {row.num_ranks}: {seconds_text(row.median_seconds)}, "
        f"{bytes_text(row.expected_bytes)} from rank 0"
        for row in found.rows
    ]
    words = f"Points, with the formulas dashed. {'; '.join(parts)}. {found.words()}"
    return canvas.Figure(found.title, words, lambda: _draw_star_or_ring(found))


def _draw_star_or_ring(found: Any) -> Any:
    times, bytes_ax = canvas.axes(width=10, height=4, columns=2)
    unit, size = canvas.byte_unit(max(row.expected_bytes for row in found.rows))
    for algorithm, colour, marker in (("star", _STAR, "s"), ("ring", _RING, "o")):
        rows = found.of(algorithm)
        hosts = [row.num_ranks for row in rows]
        _points(times, hosts, [row.seconds for row in rows], colour, marker, f"{algorithm}, measured")
        formula = [1e3 * row.expected_seconds for row in rows]
        times.plot(hosts, formula, color=colour, label=f"{algorithm}, formula", **_DASHED)
        sent = [(row.num_ranks, row.sent_bytes / size) for row in rows if row.sent_bytes is not None]
        if sent:
            bytes_ax.plot(*zip(*sent, strict=True), marker, color=colour, markersize=8)
        bytes_ax.plot(hosts, [row.expected_bytes / size for row in rows], color=colour, **_DASHED)
    for ax in (times, bytes_ax):
        ax.set_ylim(bottom=0)
        ax.set_xticks(hosts, [str(count) for count in hosts])
        ax.set_xlabel("hosts of one rank")
    times.set_ylabel(f"milliseconds ({found.links.kind} links)")
    bytes_ax.set_ylabel(f"{unit} sent by rank 0")
    canvas.legend_below(times, num_columns=4)
    return times.figure


# -- bars


def overlap_bars(found: Any) -> canvas.Figure:
    """Draw OverlapRuns: each way's step, with the least it could take as an outline."""
    rows = [
        (
            s.name,
            1e3 * s.seconds,
            1e3 * found.bound_seconds,
            f"{s.hidden_share:.0%} hidden, {found.over_bound(s):+.0%}",
        )
        for s in found.steps
    ]
    solid = "solid: measured, outline: the longer of computation and communication"
    return bar_figure(found, [(rows, f"milliseconds of a step, {canvas.where(found)}\n({solid})")])


def prefetch_bars(found: Any) -> canvas.Figure:
    """Draw PrefetchRuns: both steps, the model's as outlines."""
    rows = [
        (s.name, 1e3 * s.seconds, 1e3 * s.predicted_seconds, f"{s.hidden_share:.0%} hidden")
        for s in (found.off, found.on)
    ]
    label = f"milliseconds of a step, {canvas.where(found)}\n(solid: measured, outline: model)"
    return bar_figure(found, [(rows, label)])


def hybrid_bars(found: Any) -> canvas.Figure:
    """Draw HybridRuns: what crosses (left) and a step's time (right)."""
    pairs = [(f"{shape.name} {step.name}", step) for shape in found.shapes for step in shape.steps]
    crossing = [
        (name, (s.between_hosts_bytes or 0) / s.parameter_bytes, _expected_share(s), _share_text(s))
        for name, s in pairs
    ]
    times = [(n, 1e3 * s.seconds, 1e3 * s.predicted_seconds, seconds_text(s.seconds)) for n, s in pairs]
    kind = f"{found.shapes[0].links.kind} links"
    across_label = "bytes out of a host per parameter-byte\n(solid: measured, outline: expected)"
    time_label = f"milliseconds of a step, {kind}\n(solid: measured, outline: model)"
    return bar_figure(found, [(crossing, across_label), (times, time_label)])


def _expected_share(step: Any) -> float | None:
    expected = step.expected_between_hosts_bytes
    return None if expected is None else expected / step.parameter_bytes


def _share_text(step: Any) -> str:
    sent = step.between_hosts_bytes
    return "no count" if sent is None else f"{sent / step.parameter_bytes:.2f}"


def bar_figure(found: Any, panels: Sequence[tuple[Bars, str]]) -> canvas.Figure:
    parts = [f"{name}: {measured:.3g}, {text}" for rows, _ in panels for name, measured, _, text in rows]
    words = f"Bars, with what is expected as outlines. {'; '.join(parts)}. {found.words()}"
    return canvas.Figure(found.title, words, lambda: _draw_bars(panels))


def _draw_bars(panels: Sequence[tuple[Bars, str]]) -> Any:
    height = 1.1 + 0.5 * len(panels[0][0])
    found = canvas.axes(width=9 if len(panels) == 1 else 11, height=height, columns=len(panels))
    drawn = [found] if len(panels) == 1 else list(found)
    for place, (ax, (rows, label)) in enumerate(zip(drawn, panels, strict=True)):
        for row, (_, measured, expected, text) in enumerate(rows):
            ax.barh(row, measured, _HEIGHT, color=canvas.SERIES[place])
            if expected is not None:
                canvas.outline(ax, row, 0, expected, _HEIGHT)
            ax.text(max(measured, expected or 0), row, f"  {text}", va="center", fontsize=11)
        ax.set_yticks(range(len(rows)), [name if not place else "" for name, *_ in rows])
        ax.invert_yaxis()
        ax.set_xlim(0, 1.4 * max(max(measured, expected or 0) for _, measured, expected, _ in rows))
        ax.set_xlabel(label)
    return drawn[0].figure
