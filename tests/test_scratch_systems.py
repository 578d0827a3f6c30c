"""The systems from scratch equal one plain model, step by step, as torch's do; wrong ones are refused."""

import copy
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dpcourse as dc
from dpcourse.scratch import bucketed, flat, fsdp, naive, replicated, ring, zero2
from dpcourse.scratch.bucketed import BucketedDDP
from dpcourse.scratch.flat_parameter import FlatParameter
from dpcourse.scratch.replicated import FlatDDP, NaiveDDP
from dpcourse.scratch.zero import Zero1Optimizer
from dpcourse.scratch.zero2 import Zero2Optimizer
from tests.systems import (
    DECAYING,
    LOOKING,
    PLAIN,
    REPLICATED,
    SHARDED,
    TINY_MB,
    TORCH_SHARDED,
    Awkward,
    groups_of,
    share_of,
    side_by_side,
    tokens_of,
    train_step,
)

pytestmark = pytest.mark.long

# Shares averaged and all at once differ in the last bits: below 1e-7 for numbers below 1, over few steps.
ROUNDING = 1e-6
LOOKING_FOR_UNUSED = {
    name: make for name, make in REPLICATED.items() if any(word in name for word in LOOKING)
}


def each(systems, is_split, optimizer):
    return {name: side_by_side(make, is_split, optimizer) for name, make in systems.items()}


def worst(results):
    """The greatest distance of each system, over ranks and steps."""
    return {name: max(max(result[name]) for result in results) for name in results[0]}


@pytest.mark.parametrize(("ranks", "optimizer"), [(2, "momentum"), (3, "adam")])
def test_replicas_equal_a_plain_model_step_by_step_whatever_layers_a_rank_uses(ranks, optimizer):
    systems = LOOKING_FOR_UNUSED
    found = worst(dc.launch(each, systems, True, DECAYING[optimizer], ranks=ranks, everything=True))
    assert len(found) == 6
    assert max(found.values()) < ROUNDING, found


def test_sharded_models_equal_a_plain_model_step_by_step_as_torch_s_do():
    found = worst(
        dc.launch(each, SHARDED | TORCH_SHARDED, False, PLAIN["momentum"], ranks=2, everything=True)
    )
    assert max(found.values()) < ROUNDING, found


def test_sharded_models_equal_a_plain_model_where_ranks_use_different_layers():
    found = worst(dc.launch(each, SHARDED, True, PLAIN["adam"], ranks=3, everything=True))
    assert max(found.values()) < ROUNDING, found


# -- a parameter that no rank used


def test_a_parameter_that_no_rank_used_decays_unless_it_is_looked_for():
    systems = {name: REPLICATED[name] for name in ("flat", "bucketed", "zero 1", "zero 2")}
    systems["fsdp"] = SHARDED["fsdp"]
    found = dc.launch(apart, systems, ranks=2, everything=True)
    assert found[0] == found[1] == {name: {"unused.weight", "unused.bias"} for name in systems}


def apart(systems):
    """In a rank: for each system, the parameters that end elsewhere than a plain model's."""
    return {name: _apart(make) for name, make in systems.items()}


def _apart(make):
    torch.manual_seed(0)
    plain, optimizer = Awkward(), DECAYING["momentum"]
    wrapped, chosen, read = make(copy.deepcopy(plain), optimizer)
    plain_optimizer = optimizer(groups_of(plain))
    for step in range(2):
        batch = tokens_of(step, is_split=False)
        train_step(plain, plain_optimizer, *batch)
        train_step(wrapped, chosen, *share_of(batch))
    whole = dict(plain.named_parameters())
    return {name for name, own in read().items() if (own - whole[name]).abs().max() > ROUNDING}


# -- wrong systems, which the check must refuse


def forgets_a_bucket():
    """The second bucket's gradients stay as this rank found them."""
    average, set_gradients = BucketedDDP._average, flat.set_gradients

    def but_one(self):
        with patch.object(
            flat, "set_gradients", lambda own, row: own is self.buckets[1] or set_gradients(own, row)
        ):
            average(self)

    return patch.object(BucketedDDP, "_average", but_one)


def rolled(reduce_scatter):
    """A reduction of a row shifted by one: padding goes into one slice, a neighbour's number into each."""
    return lambda row, **kwargs: reduce_scatter(row.roll(1), **kwargs)


def sums(optimizer):
    """A slice's gradient that is a sum, not a mean."""
    mean_slice = optimizer._mean_slice
    return patch.object(
        optimizer, "_mean_slice", lambda self, index: mean_slice(self, index) * dist.get_world_size()
    )


@contextmanager
def never_fresh():
    """Units that are not freed, and a gathered row that is never taken for old."""
    start_gather, free = FlatParameter.start_gather, FlatParameter.free

    def only_first(flat_parameter):
        if flat_parameter._version is None:
            start_gather(flat_parameter)

    def only_in_the_constructor(flat_parameter):
        if flat_parameter._version is None:
            free(flat_parameter)

    with (
        patch.object(FlatParameter, "start_gather", only_first),
        patch.object(FlatParameter, "free", only_in_the_constructor),
    ):
        yield


ONE_RANK = SimpleNamespace(get_world_size=lambda: 1)
MUTANTS = {
    "naive sums": ("naive", lambda: patch.object(naive, "average_gradients", naive.sum_gradients)),
    "flat sums": ("flat", lambda: patch.object(replicated, "dist", ONE_RANK)),
    "bucketed sums": ("bucketed", lambda: patch.object(bucketed, "dist", ONE_RANK)),
    "a bucket is forgotten": ("bucketed", forgets_a_bucket),
    "replicas start apart": ("flat", lambda: patch.object(flat, "broadcast")),
    "zero 1 sums": ("zero 1", lambda: sums(Zero1Optimizer)),
    "zero 2 sums": ("zero 2", lambda: sums(Zero2Optimizer)),
    "zero 1 in a neighbour's slice": (
        "zero 1",
        lambda: patch.object(ring, "reduce_scatter", rolled(ring.reduce_scatter)),
    ),
    "zero 2 in a neighbour's slice": (
        "zero 2",
        lambda: patch.object(zero2, "start_reduce_scatter", rolled(zero2.start_reduce_scatter)),
    ),
    "zero 1 gathers nothing": ("zero 1", lambda: patch.object(ring, "all_gather_into")),
    "fsdp sums": ("fsdp", lambda: patch.object(fsdp, "place_in", lambda: (0, 1))),
    "fsdp in a neighbour's slice": (
        "fsdp",
        lambda: patch.object(fsdp, "start_reduce_scatter", rolled(fsdp.start_reduce_scatter)),
    ),
    "fsdp computes with what it gathered before": ("fsdp", never_fresh),
}


def each_mutant(mutants):
    found = {}
    for what, (system, mutate) in mutants.items():
        make = (REPLICATED | SHARDED)[system]
        with mutate():
            found[what] = side_by_side(make, False, PLAIN["momentum"], steps=2)
    return found


def test_the_same_check_refuses_wrong_systems():
    found = worst(dc.launch(each_mutant, MUTANTS, ranks=3, everything=True))
    assert set(found) == set(MUTANTS)
    assert min(found.values()) > 1000 * ROUNDING, found


# -- as DDP does it


def norms():
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


def buffers_beside_ddp(wrapper):
    """In a rank: how far buffers are from DDP's after each step, and how far gradients."""
    torch.manual_seed(dist.get_rank())
    theirs = DistributedDataParallel(norms())
    torch.manual_seed(dist.get_rank())
    ours = wrapper(norms())
    distances = []
    for step in range(3):
        inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        for wrapped in (theirs, ours):
            wrapped.zero_grad()
            wrapped(inputs).square().mean().backward()
        distances += [apart_from(ours.module.buffers(), theirs.module.buffers())]
        distances += [apart_from(_gradients(ours), _gradients(theirs))]
    assert ours.module[1].num_batches_tracked == 3
    return max(distances)


def apart_from(tensors, others):
    pairs = zip(tensors, others, strict=True)
    return max((tensor - other).abs().max().item() for tensor, other in pairs)


def _gradients(module):
    return [parameter.grad for parameter in module.parameters()]


def each_beside_ddp():
    found = [buffers_beside_ddp(wrapper) for wrapper in (NaiveDDP, FlatDDP, BucketedDDP)]
    with patch.object(replicated.Replica, "forward", lambda self, inputs: self.module(inputs)):
        return found, buffers_beside_ddp(FlatDDP)


def test_buffers_begin_each_forward_pass_as_rank_0s_like_ddps():
    results = dc.launch(each_beside_ddp, ranks=2, everything=True)
    assert max(distance for found, _ in results for distance in found) < ROUNDING
    assert results[1][1] > 1000 * ROUNDING  # without the broadcast rank 1 keeps statistics of its own


def accumulate(wrapper, where):
    """In a rank: the gradient after each of two passes, the first of them (or a part of it) under no_sync."""
    wrapped = wrapper(nn.Linear(1, 1, bias=False))
    found = []
    for step in range(2):
        value = torch.tensor([[float(1 + 2 * step + dist.get_rank())]])  # rank 0: 1, 3; rank 1: 2, 4
        quiet = wrapped.no_sync() if step == 0 else nullcontext()
        if where == "around both":
            with quiet:
                wrapped(value).sum().backward()
        else:
            output = wrapped(value)
            with quiet:
                output.sum().backward()
        found.append(wrapped.module.weight.grad.item())
    return found


def each_accumulates():
    wrappers = {"naive": NaiveDDP, "flat": FlatDDP, "bucketed": BucketedDDP, "DDP": DistributedDataParallel}
    return {
        where: {name: accumulate(wrapper, where) for name, wrapper in wrappers.items()}
        for where in ("around both", "around backward")
    }


def test_no_sync_keeps_own_gradients_until_they_are_averaged_and_forward_decides():
    first, second = dc.launch(each_accumulates, ranks=2, everything=True)
    assert all(found == [1, 5] for found in first["around both"].values())  # mean of 1 + 3 and 2 + 4
    assert all(found == [2, 5] for found in second["around both"].values())
    assert all(found == [1.5, 5] for found in first["around backward"].values()), first
    assert second["around backward"] == first["around backward"]


def fails_in_no_sync():
    wrapped = NaiveDDP(nn.Linear(1, 1))
    with pytest.raises(ZeroDivisionError), wrapped.no_sync():
        1 / 0  # noqa: B018
    wrapped(torch.tensor([[float(dist.get_rank())]])).sum().backward()
    return wrapped.module.weight.grad.item()


def test_an_error_in_no_sync_leaves_synchronisation_on():
    assert dc.launch(fails_in_no_sync, ranks=2) == [0.5, 0.5]


# -- communication beside computation


def started_before_the_last_gradient():
    """In a rank: how many buckets of four were under way when the first layer's weight had its gradient."""
    torch.manual_seed(0)
    seen = []
    model = nn.Sequential(*(nn.Linear(9, 9) for _ in range(4)))
    wrapped = BucketedDDP(model, bucket_cap_mb=TINY_MB)
    model[0].weight.register_post_accumulate_grad_hook(lambda _: seen.append(len(wrapped._works)))
    wrapped(torch.ones(2, 9)).sum().backward()
    return seen[0], [[parameter.numel() for parameter in bucket] for bucket in wrapped.buckets]


def test_buckets_fill_from_the_last_layer_and_start_while_backward_goes_on():
    for seen, sizes in dc.launch(started_before_the_last_gradient, ranks=2):
        assert sizes == [[9, 81]] * 4  # a bias comes after its weight
        assert seen >= 3  # the first layer's bucket is complete with its bias, before or after its weight
