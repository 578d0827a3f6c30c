"""A plan's lists against real runs of small GPTs on 2 ranks: states, gathered units, buckets, to the byte."""

from dataclasses import replace

import pytest

import dpcourse as dc
from dpcourse.planning import confirmation
from dpcourse.planning.confirmation import SIZES, Confirmation

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def whole_copies() -> Confirmation:
    return dc.plan("gpt-small", gpus=2, recipe="fp32").confirm(num_strategies=1)


@pytest.fixture(scope="module")
def shards() -> Confirmation:
    plan = dc.plan("llama-2-7b", gpus=8, recipe="mixed-adam")
    full = next(row for row in plan.rows if row.label == "fsdp2")
    checks = [check for model in SIZES for check in confirmation.checked(full, model, ranks=2)]
    return Confirmation(tuple(checks), ranks=2)


def test_whole_copies_of_three_sizes_are_held_and_reduced_as_predicted(whole_copies):
    assert whole_copies.is_exact
    assert {check.model for check in whole_copies.checks} == set(SIZES)
    assert {"parameters", "gradients", "optimizer", "buckets", "collectives' payload"} == {
        check.what for check in whole_copies.checks
    }
    assert all(check.label == "ddp" for check in whole_copies.checks)


def test_shards_of_three_sizes_are_held_and_gathered_as_predicted(shards):
    assert shards.is_exact
    kinds = {check.what for check in shards.checks}
    assert {"parameters", "optimizer", "gathered at the end of forward", "gathered at most"} <= kinds
    assert all(check.measured > 0 for check in shards.checks)


def test_a_confirmation_lays_out_runs_and_numbers(shards):
    assert len(shards.table().rows) == len(SIZES)
    assert len(shards.table(everything=True).rows) == len(shards.checks)
    assert [cells[-1] for cells in shards.table().rows] == ["6 of 6"] * len(SIZES)
    assert f"{len(shards.checks)} of {len(shards.checks)} numbers to the byte" in str(shards)


def test_a_byte_too_few_is_seen(shards):
    first, *others = shards.checks
    wrong = replace(shards, checks=(replace(first, predicted=first.predicted - 1), *others))
    assert not wrong.is_exact
    assert wrong.table().rows[0][-1] == "5 of 6"
    assert f"{len(others)} of {len(shards.checks)}" in wrong.words()


def test_twelve_bytes_a_parameter_divided_evenly_would_be_refused(shards):
    """Adam counts steps, four bytes a tensor, which the ideal leaves out."""
    optimizer = [check for check in shards.checks if check.what == "optimizer"]
    assert all(check.measured != 12 * check.num_params // 2 for check in optimizer)


def test_confirming_nothing_is_refused():
    plan = dc.plan("gpt-small", gpus=2, recipe="fp32")
    for wrong in ({"num_strategies": 0}, {"ranks": 0}):
        with pytest.raises(ValueError, match="give a whole number from 1 on"):
            plan.confirm(**wrong)
    only_deepspeed = tuple(row for row in plan.rows if row.candidate.strategy == "deepspeed")
    with pytest.raises(ValueError, match="none of the plan's strategies runs small"):
        replace(plan, rows=only_deepspeed).confirm()
