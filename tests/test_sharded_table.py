"""The table of sharded runs: at most, formula and wire, each held to arithmetic of its own."""

import pytest
import torch

import dpcourse as dc
from dpcourse.experiments.sharded import most_parameters, side_by_side
from dpcourse.models import Mlp

torch.set_num_threads(1)  # other tests run beside these

FOUR = Mlp(features=64, width=64, depth=3, classes=64)  # four units of equal size
COLUMNS = ("held per parameter", "parameters at most", "collectives", "sent, formula")


@pytest.fixture(scope="module")
def runs() -> dict[str, dc.Run]:
    asked = {"model": FOUR, "ranks": 2, "steps": 1, "device": "cpu"}
    return {
        "freed": dc.train("fsdp2", **asked),
        "kept": dc.train("fsdp2", **asked, reshard_after_forward=False),
        "whole": dc.train("ddp", **asked, gradient_as_bucket_view=True),
    }


def test_each_row_is_what_two_ranks_of_four_equal_units_hold_and_send(runs):
    table = side_by_side(runs)
    found = {row[0]: [table.number(place, c) for c in COLUMNS] for place, row in enumerate(table.rows)}
    assert found == {
        "freed": [8, 0.75, 12, 1.5],  # half of all, one unit of four beside it, 3 x 4 calls, 3 x 1/2
        "kept": [8, 1.5, 8, 1.0],  # all units beside the half, no second gather
        "whole": [16, 1.0, 1, 1.0],  # one bucket has room for all
    }


def test_the_wire_of_an_emulated_reduce_scatter_is_not_the_formulas(runs):
    """4 (N - 1)/N for 3 (N - 1)/N, and small messages with their headers: 67 kB of parameters."""
    if runs["freed"].traffic.sent_per_parameter_byte() is None:
        pytest.skip("no kernel count here")
    table = side_by_side(runs)
    assert table.number(0, "sent, wire") == pytest.approx(2.0, rel=0.1)
    assert table.number(0, "sent, formula") == 1.5


def test_another_rank_has_as_much(runs):
    assert most_parameters(runs["freed"], rank=1) == most_parameters(runs["freed"]) == 0.75


def test_what_is_no_run_and_no_runs_at_all_are_refused():
    with pytest.raises(TypeError, match=r"'x' is 3; give a name and what dc.train returned"):
        side_by_side({"x": 3})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="runs given to side_by_side=0"):
        side_by_side({})
