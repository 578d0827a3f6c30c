"""Golden values of training semantics under DDP: accumulation, the loss's factor, no_sync, the last batch."""

import re
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dpcourse as dc
from dpcourse.strategies.sanity import check_gradients_equal

torch.set_num_threads(1)  # other tests run beside these


def one_weight() -> nn.Linear:
    """A model whose gradient is its input."""
    linear = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(linear.weight)
    return linear


# -- accumulation -----------------------------------------------------------

MICRO_BATCHES = [[1.0, 2.0], [3.0, 5.0]]  # two for each of two ranks


def accumulated(synchronised_step: int) -> tuple[float, str]:
    """This rank's gradient after two micro-batches, and what the check says of it."""
    model = DistributedDataParallel(one_weight())
    for step, value in enumerate(MICRO_BATCHES[dist.get_rank()]):
        with nullcontext() if step == synchronised_step else model.no_sync():
            model(torch.full((1, 1), value)).sum().backward()
    try:
        check_gradients_equal(model.module)
        said = ""
    except RuntimeError as error:
        said = str(error)
    return model.module.weight.grad.item(), said


def test_synchronised_on_the_last_micro_batch_both_ranks_have_5_5_and_the_check_is_content():
    assert dc.launch(accumulated, 1) == [(5.5, ""), (5.5, "")]


def test_synchronised_on_the_wrong_micro_batch_ranks_have_4_and_7_and_the_check_says_so():
    (first, said), (second, other_said) = dc.launch(accumulated, 0)
    assert (first, second) == (4.0, 7.0)
    assert said == other_said
    assert "gradients are not equal on all ranks" in said
    assert "weight[0, 0] is 4 on rank 0, 7 on rank 1" in said
    assert "synchronise on the last micro-batch" in said


def test_gradients_that_one_rank_lacks_or_that_are_not_finite_there_are_not_equal():
    def verdicts():
        found = []
        for mine in ([None, 1.0], [float("nan"), 1.0], [float("nan"), float("nan")], [0.1, 0.1 + 1e-8]):
            model, value = one_weight(), mine[dist.get_rank()]
            model.weight.grad = None if value is None else torch.full((1, 1), value)
            try:
                check_gradients_equal(model)
                found.append(True)
            except RuntimeError:
                found.append(False)
        return found

    assert dc.launch(verdicts) == [[False, False, True, True]] * 2


# -- the factor of the loss -------------------------------------------------


def times_the_true_gradient() -> list[float]:
    """The gradient of each variant over the true one: 4 ranks, 2 accumulation steps of 3 samples each."""
    world_size, num_steps = 4, 2
    samples = torch.arange(1.0, 25.0).view(num_steps, world_size, 3, 1)
    true = samples.mean().item()
    factors = []
    for is_multiplied, is_divided in ((True, False), (True, True), (False, True)):
        model = DistributedDataParallel(one_weight())
        for step in range(num_steps):
            with nullcontext() if step == num_steps - 1 else model.no_sync():
                loss = model(samples[step, dist.get_rank()]).mean()
                loss = loss * (world_size if is_multiplied else 1) / (num_steps if is_divided else 1)
                loss.backward()
        factors.append(model.module.weight.grad.item() / true)
    return factors


def test_multiplied_by_the_world_size_and_not_divided_the_gradient_is_8_times_too_large_half_mended_4_times():
    for factors in dc.launch(times_the_true_gradient, ranks=4):
        assert factors == pytest.approx([8.0, 4.0, 1.0], rel=1e-6)


# -- no_sync ----------------------------------------------------------------


def test_no_sync_around_backward_only_still_reduces_for_ddp_decides_at_forward():
    def gradients():
        value, found = torch.full((1, 1), dist.get_rank() + 1.0), []
        for is_forward_inside in (False, True):
            model = DistributedDataParallel(one_weight())
            if is_forward_inside:
                with model.no_sync():
                    model(value).sum().backward()
            else:
                loss = model(value).sum()
                with model.no_sync():
                    loss.backward()
            found.append(model.module.weight.grad.item())
        return found

    assert dc.launch(gradients) == [[1.5, 1.0], [1.5, 2.0]]


# -- the last batch -----------------------------------------------------------


def test_where_the_finished_rank_leaves_the_other_sees_a_closed_connection():
    """Without a launcher that keeps ranks, the sixth batch fails instead of hanging."""

    def train_until_alone():
        model = DistributedDataParallel(one_weight())
        for batch in range(5 + dist.get_rank()):
            try:
                model(torch.ones(1, 1)).sum().backward()
            except RuntimeError as error:
                return batch, str(error)
        dist.destroy_process_group()
        return 5, ""

    finished, (batch, said) = dc.launch(train_until_alone)
    assert finished == (5, "")
    assert batch == 5
    assert re.search(r"[Cc]onnection (closed|reset) by peer", said)  # reset: it had more to tell


# -- buckets and gradients ----------------------------------------------------


def test_gradient_as_bucket_view_saves_one_copy_of_the_gradients():
    copies = []
    for is_view in (False, True):
        run = dc.train("ddp", steps=1, gradient_as_bucket_view=is_view)
        held = {(h.phase, h.owner): 0 for h in run.memory.measured}
        for holding in run.memory.measured:
            if holding.rank == 0:
                held[holding.phase, holding.owner] += holding.num_bytes
        both = held.get(("backward", "gradients"), 0) + held.get(("backward", "buckets"), 0)
        copies.append(both / run.parameter_bytes)
    assert copies == [2, 1]
