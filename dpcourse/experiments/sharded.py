"""Sharded runs side by side: what a rank holds, how much of the model it has at once, formula beside wire."""

from collections.abc import Mapping
from typing import Any

from dpcourse.checks import check_count
from dpcourse.experiments.base import check_named_runs
from dpcourse.ledger import GATHERED_PEAK, select, total
from dpcourse.run import Run
from dpcourse.tables import Table

COLUMNS = (
    "",
    "held per parameter",
    "parameters at most",
    "collectives",
    "sent, formula",
    "sent, wire",
)


def side_by_side(runs: Mapping[str, Run]) -> Table:
    """Lay runs side by side under the names that they are given. All is of rank 0.

    "parameters at most": of the parameters, its slice and what is gathered, the most at one time; the whole
    model is 1. "sent, formula": bytes per parameter-byte and step, each collective at its best. "sent, wire":
    what the kernel counted.

    Raises ValueError for no run, TypeError for what is no run.
    """
    check_named_runs(runs)
    check_count("runs given to side_by_side", len(runs))
    return Table(COLUMNS, [[name, *_numbers(run)] for name, run in runs.items()])


def most_parameters(run: Run, rank: int = 0) -> float:
    """How much of the model's parameters a rank has at one time at most: its slice, and what is gathered."""
    own = select(run.memory.measured, owner="parameters", phase="backward", rank=rank)
    gathered = select(run.memory.measured, phase=GATHERED_PEAK, rank=rank)
    return total([*own, *gathered]) / run.parameter_bytes


def _numbers(run: Run) -> list[Any]:
    wire = run.traffic.sent_per_parameter_byte()
    return [
        f"{run.memory.bytes_per_parameter():.2f}",
        f"{most_parameters(run):.2f}",
        run.traffic.num_collectives(),
        f"{run.traffic.ideal_sent_bytes() / run.parameter_bytes:.2f}",
        None if wire is None else f"{wire:.2f}",
    ]
