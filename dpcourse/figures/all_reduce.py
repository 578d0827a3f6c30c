"""All-reduces compared: bytes of the fullest rank against the number of ranks; times of three algorithms."""

from typing import Any

from dpcourse.figures import canvas
from dpcourse.figures.links import bar_figure
from dpcourse.tables import bytes_text, seconds_text

_LOOKS: dict[str, dict[str, Any]] = {
    "star": {"color": canvas.SERIES[1], "marker": "s", "markersize": 9},
    "ring": {"color": canvas.SERIES[0], "marker": "o", "markersize": 11},
    "gloo": {"color": canvas.SERIES[4], "marker": "D", "markersize": 5, "zorder": 4},
}
_NAMES = {"star": "star's main rank", "ring": "each rank of the ring", "gloo": "each rank of gloo's"}
_DASHED: Any = {"linestyle": (0, (5, 2)), "linewidth": 1.6}


def wire_count_curves(found: Any) -> canvas.Figure:
    """Draw WireCounts: payloads that the fullest rank sent, and that all sent together."""
    parts = [
        f"{_NAMES[row.algorithm]} of {row.num_ranks}: {max(row.expected_bytes) / found.payload_bytes:.2f}"
        for row in found.rows
        if row.algorithm != "gloo"
    ]
    words = f"Points on the dashed lines of the formulas, in payloads. {'; '.join(parts)}. {found.words()}"
    return canvas.Figure(found.title, words, lambda: _draw_wire_counts(found))


def _draw_wire_counts(found: Any) -> Any:
    fullest, together = canvas.axes(width=10, height=4, columns=2)
    for name, look in _LOOKS.items():
        rows, colour = found.of(name), look["color"]
        ranks = [row.num_ranks for row in rows]
        _count_points(
            fullest, [(row.num_ranks, row.most) for row in rows], found.payload_bytes, _NAMES[name], look
        )
        _count_points(together, [(row.num_ranks, row.whole) for row in rows], found.payload_bytes, None, look)
        if name != "gloo":  # its formula is the ring's
            for ax, total in ((fullest, max), (together, sum)):
                formula = [total(row.expected_bytes) / found.payload_bytes for row in rows]
                label = f"{name}, formula" if ax is fullest else None
                ax.plot(ranks, formula, color=colour, label=label, **_DASHED)
    for ax, label in (
        (fullest, "payloads that one rank sends"),
        (together, "payloads that all send together"),
    ):
        ax.set_ylim(bottom=0)
        ax.set_xlabel("ranks")
        ax.set_ylabel(label)
    canvas.legend_below(fullest, num_columns=3)
    return fullest.figure


def _count_points(ax: Any, counts: Any, payload_bytes: int, label: str | None, look: dict[str, Any]) -> None:
    known = [(ranks, count / payload_bytes) for ranks, count in counts if count is not None]
    if known:
        ax.plot(*zip(*known, strict=True), linestyle="none", label=label and f"{label}, counted", **look)


def few_or_many_bars(found: Any) -> canvas.Figure:
    """Draw FewOrMany: a panel for each payload, the formulas as outlines."""
    panels = []
    for size in dict.fromkeys(row.payload_bytes for row in found.rows):
        rows = [
            (
                f"{row.num_ranks} hosts, {row.algorithm}",
                1e3 * row.median_seconds,
                1e3 * row.expected_seconds,
                seconds_text(row.median_seconds),
            )
            for row in found.rows
            if row.payload_bytes == size
        ]
        kind = f"{found.links.kind} links"
        label = f"milliseconds for {bytes_text(size)}, {kind}\n(solid: measured, outline: formula)"
        panels.append((rows, label))
    return bar_figure(found, panels)
