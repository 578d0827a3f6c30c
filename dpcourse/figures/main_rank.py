"""The star's three flaws drawn: bytes of the main rank, memory of each rank, cores that threads keep busy."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.ledger import OWNERS, select, sums_by

_HEIGHT = 0.62
_DASHED: Any = {"linestyle": (0, (5, 2)), "linewidth": 1.6}
_LOOKS: dict[str, dict[str, Any]] = {
    "dp": {"color": canvas.SERIES[1], "marker": "s"},
    "ddp": {"color": canvas.SERIES[0], "marker": "o"},
}
_NAMES = {"dp": "the star's main rank", "ddp": "each rank of DDP"}


def main_rank_curves(found: Any) -> canvas.Figure:
    """Draw a MainRank: what rank 0 sent against the number of ranks."""
    parts = [
        f"{_NAMES[name]} on {run.world_size} ranks: {expected:.2f}"
        for name in _LOOKS
        for run, expected in zip(found.of(name), found.expected(name), strict=True)
    ]
    words = f"Points on the dashed lines of what is expected. {'; '.join(parts)}. {found.words()}"
    return canvas.Figure(found.title, words, lambda: _draw_main_rank(found))


def _draw_main_rank(found: Any) -> Any:
    ax = canvas.axes(width=8, height=4)
    for name, look in _LOOKS.items():
        ranks = [run.world_size for run in found.of(name)]
        known = [(x, y) for x, y in zip(ranks, found.sent(name), strict=True) if y is not None]
        if known:
            ax.plot(*zip(*known, strict=True), linestyle="none", label=f"{_NAMES[name]}, counted", **look)
        label = f"{_NAMES[name]}, expected"
        ax.plot(ranks, found.expected(name), color=look["color"], label=label, **_DASHED)
    ax.set_ylim(bottom=0)
    ax.set_xticks(ranks, [str(count) for count in ranks])
    ax.set_xlabel("ranks")
    ax.set_ylabel("bytes sent in a step\nfor each byte of parameters")
    canvas.legend_below(ax, num_columns=2)
    return ax.figure


def memory_by_rank(part: Any, phases: Sequence[str]) -> canvas.Figure:
    """Draw what each rank of a run held at the end of some phases, by owner; expected as outlines."""
    title = f"Memory of each rank: {part.run.title}"
    parts = [
        f"{_when(phase)}, rank {rank}: {sum(_held(part.measured, phase, rank, part).values()):.2f}"
        for phase in phases
        for rank in part.ranks
    ]
    words = f"Stacked bars, bytes for each parameter of the model. {'; '.join(parts)}"
    return canvas.Figure(title, words, lambda: _draw_memory(part, phases))


def _held(holdings: Any, phase: str, rank: int, part: Any) -> dict[str, float]:
    """Bytes for each parameter by owner, in the order of the legend."""
    sums = sums_by(select(holdings, phase=phase, rank=rank), "owner")
    return {owner: sums[owner] / part.run.num_params for owner in OWNERS if owner in sums}


def _when(phase: str) -> str:
    return "at its fullest moment" if phase == "peak" else f"end of {phase}"


def _draw_memory(part: Any, phases: Sequence[str]) -> Any:
    drawn = canvas.axes(width=11, height=1.5 + 0.45 * len(part.ranks), columns=len(phases))
    panels = [drawn] if len(phases) == 1 else list(drawn)
    for ax, phase in zip(panels, phases, strict=True):
        for row, rank in enumerate(part.ranks):
            end = canvas.stack(ax, row, _held(part.measured, phase, rank, part), _HEIGHT)
            canvas.stack(ax, row, _held(part.expected, phase, rank, part), _HEIGHT, is_outline=True)
            ax.text(end, row, f"  {end:.2f}", va="center")
        ax.set_yticks(range(len(part.ranks)), [f"rank {rank}" for rank in part.ranks])
        ax.invert_yaxis()
        ax.set_xlabel(f"bytes for each parameter,\n{_when(phase)}")
    for ax in panels:  # one scale, so that bars of two phases can be compared
        ax.set_xlim(0, 1.25 * max(panel.dataLim.x1 for panel in panels))
    canvas.legend_below(panels[0])
    return panels[0].figure


def workers_bars(found: Any) -> canvas.Figure:
    """Draw ThreadsOrProcesses: time (left) and busy cores (right)."""
    parts = [
        f"{_who(row)}: {1e3 * row.seconds:.0f} ms, {row.cores_busy:.2f} cores busy" for row in found.rows
    ]
    return canvas.Figure(
        found.title, f"Bars. {'; '.join(parts)}. {found.words()}", lambda: _draw_workers(found)
    )


def _who(row: Any) -> str:
    return row.kind if row.num_workers == 1 else f"{row.num_workers} {row.kind}"


def _draw_workers(found: Any) -> Any:
    panels = canvas.axes(width=10, height=2.6, columns=2)
    values = [1e3 * row.seconds for row in found.rows], [row.cores_busy for row in found.rows]
    labels = "milliseconds for all workers", "cores busy"
    for place, (ax, numbers, label) in enumerate(zip(panels, values, labels, strict=True)):
        ax.barh(range(len(numbers)), numbers, _HEIGHT, color=canvas.SERIES[place])
        for row, number in enumerate(numbers):
            ax.text(number, row, f"  {number:.2f}" if place else f"  {number:.0f}", va="center")
        ax.set_yticks(range(len(numbers)), [_who(row) if not place else "" for row in found.rows])
        ax.invert_yaxis()
        ax.set_xlim(0, 1.25 * max(numbers))
        ax.set_xlabel(label)
    return panels[0].figure
