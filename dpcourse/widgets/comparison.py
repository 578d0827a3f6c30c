"""Strategies side by side, as expected or as they ran: tick those to see, and both ledgers follow."""

from collections.abc import Mapping, Sequence
from typing import Any

from dpcourse.dryrun import expected_run
from dpcourse.figures.canvas import Figure
from dpcourse.figures.comparison import compare_bars
from dpcourse.request import make_request
from dpcourse.run import Run
from dpcourse.show import is_reference
from dpcourse.widgets.controls import Control, tick
from dpcourse.widgets.panel import Panel

# A name, and the strategy with its options.
SHOWN: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ddp": ("ddp", {}),
    "ddp, gradients in the buckets": ("ddp", {"gradient_as_bucket_view": True}),
    "zero1": ("zero1", {}),
    "scratch-zero2": ("scratch-zero2", {}),
    "fsdp2": ("fsdp2", {}),
    "fsdp2, kept after forward": ("fsdp2", {"reshard_after_forward": False}),
}
_AT_FIRST = 3


def ledger_comparison(
    runs: Sequence[Run] = (), model: Any = "gpt-small", ranks: int = 4, recipe: str = "fp32"
) -> Any:
    """Tick strategies, and see side by side what a rank of each holds and sends.

    runs: what dc.train returned, to compare what was measured; without any, what is expected of the course's
    strategies for `model`, `ranks` and `recipe`.
    """
    known = _measured(runs) if runs else _expected(model, ranks, recipe)
    first = list(known)[: len(runs) or _AT_FIRST]

    def compared(**ticked: bool) -> Figure:
        chosen = [run for run, is_ticked in zip(known.values(), ticked.values(), strict=True) if is_ticked]
        if not chosen:
            raise ValueError("nothing is ticked; tick a strategy to see its ledgers")
        return compare_bars(chosen)

    values = {f"run {place}": name in first for place, name in enumerate(known)}
    if is_reference():
        return compared(**values)
    controls: dict[str, Control] = {
        key: tick(name, values[key]) for key, name in zip(values, known, strict=True)
    }
    return Panel(compared, controls)


def _measured(runs: Sequence[Run]) -> dict[str, Run]:
    """Name each by its title; those that share one are numbered."""
    known: dict[str, Run] = {}
    for run in runs:
        number = sum(other.title == run.title for other in known.values()) + 1
        known[run.title if number == 1 else f"{run.title}, number {number}"] = run
    return known


def _expected(model: Any, ranks: int, recipe: str) -> dict[str, Run]:
    return {
        name: expected_run(make_request(strategy, options, model, ranks=ranks, recipe=recipe))
        for name, (strategy, options) in SHOWN.items()
    }
