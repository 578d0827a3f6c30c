"""Memory of one rank through a step: stacked bars, measured in colour, expected as outlines."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.ledger import GATHERED_PEAK, MEMORY_PHASES, OWNERS, Holding, select, sums_by
from dpcourse.tables import bytes_text

_HEIGHT = 0.62


def memory_bars(part: Any) -> canvas.Figure:
    """Draw a Run's memory part: one bar for the end of each phase, stacked by owner."""
    rank = part.run.first_rank
    measured, expected = select(part.measured, rank=rank), select(part.expected, rank=rank)
    title = f"Memory of rank {rank} of {part.run.world_size} through one step: {part.run.title}"
    return canvas.Figure(title, _words(measured), lambda: _draw(measured, expected, part.run.num_params))


def _phases(holdings: Sequence[Holding]) -> list[str]:
    """The phases that get a bar: at the peak of gathered one owner is known, and a bar shows all."""
    return [phase for phase in MEMORY_PHASES if phase != GATHERED_PEAK and select(holdings, phase=phase)]


def _words(holdings: Sequence[Holding]) -> str:
    parts = []
    for phase in _phases(holdings):
        sums = sums_by(select(holdings, phase=phase), "owner")
        held = ", ".join(f"{owner} {bytes_text(sums[owner])}" for owner in OWNERS if sums.get(owner))
        parts.append(f"{_name(phase)}: {held}")
    return "Stacked bars. " + "; ".join(parts)


def _name(phase: str) -> str:
    return "at the peak" if phase == "peak" else f"end of {phase}"


def _draw(measured: Sequence[Holding], expected: Sequence[Holding], num_params: int) -> Any:
    shown = measured or expected  # of an expected list there are outlines alone
    phases = _phases(shown)
    largest = max(sum(sums_by(select(shown, phase=phase), "phase").values()) for phase in phases)
    unit, size = canvas.byte_unit(largest)
    ax = canvas.axes(height=1.2 + 0.62 * len(phases))
    for row, phase in enumerate(phases):
        end = canvas.stack(ax, row, _by_owner(measured, phase, size), _HEIGHT)
        outline = canvas.stack(ax, row, _by_owner(expected, phase, size), _HEIGHT, is_outline=True)
        end = end if measured else outline
        ax.text(end, row, f"  {end * size / num_params:.2f} bytes per parameter", va="center", fontsize=11)
    ax.set_yticks(range(len(phases)), [_name(phase) for phase in phases])
    ax.invert_yaxis()
    ax.set_xlim(0, 1.38 * largest / size)
    ax.set_xlabel(f"{unit} held (solid: measured, outline: expected)")
    canvas.legend_below(ax, num_columns=7)
    return ax.figure


def _by_owner(holdings: Sequence[Holding], phase: str, size: float) -> dict[str, float]:
    sums = sums_by(select(holdings, phase=phase), "owner")
    return {owner: sums.get(owner, 0) / size for owner in OWNERS}
