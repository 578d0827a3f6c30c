"""FSDP from scratch: when units are there and freed, passes of all kinds, and what is refused."""

import copy
import re
from functools import partial
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import dpcourse as dc
from dpcourse.scratch import naive
from dpcourse.scratch.bucketed import BucketedDDP
from dpcourse.scratch.flat_parameter import FlatParameter
from dpcourse.scratch.fsdp import Unit, full_parameters, shard
from dpcourse.scratch.zero import Zero1Optimizer
from dpcourse.scratch.zero2 import Zero2Optimizer
from tests.systems import TINY_MB, Awkward, share_of, tokens_of, train_step

ROUNDING = 1e-6


# -- what is there, and when


def gathered(model):
    """The units whose row is there now, by the size of its storage."""
    units = model.sharding.units
    return [unit.name for unit in units if any(flat.whole.untyped_storage().nbytes() for flat in unit.flats)]


def watched_step(options):
    """In a rank: which units are there while each block computes, after forward, and after backward."""
    torch.manual_seed(0)
    model = Awkward()
    blocks = list(model.blocks)
    shard(model, units=blocks, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen, on_their_way = {}, {}

    def note(name, is_forward):
        by_name = {unit.name: unit for unit in model.sharding.units}
        seen[name, is_forward] = gathered(model)
        on_their_way[name, is_forward] = [
            n for n, u in by_name.items() if any(f._work is not None for f in u.flats)
        ]

    for index, block in enumerate(blocks):
        block.inner.register_forward_hook(lambda *_, index=index: note(f"blocks.{index}", True))
        block.inner.register_full_backward_hook(lambda *_, index=index: note(f"blocks.{index}", False))
    for step in range(2):  # the second knows the order
        tokens, targets = share_of(tokens_of(step, False))
        loss = nn.functional.cross_entropy(model(tokens), targets)
        seen["after forward"] = gathered(model)
        loss.backward()
        seen["after backward"] = gathered(model)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model(tokens)
    seen["after evaluation"] = gathered(model)
    return seen, on_their_way


def each_watched():
    ways = ({}, {"prefetch": False}, {"reshard_after_forward": False})
    found = [watched_step(options) for options in ways]
    with patch.object(Unit, "free"):
        return found, watched_step({"prefetch": False})


@pytest.fixture(scope="module")
def watched():
    return dc.launch(each_watched, ranks=2)


def test_a_unit_is_there_while_it_computes_with_the_next_on_its_way(watched):
    for ((seen, on_their_way), *_), _ in watched:
        assert seen["blocks.0", True] == ["root", "blocks.0", "blocks.1"]
        assert seen["blocks.2", True] == ["root", "blocks.2"]
        assert seen["blocks.2", False] == ["root", "blocks.1", "blocks.2"]
        assert seen["blocks.0", False] == ["root", "blocks.0"]
        assert on_their_way["blocks.0", True] == ["blocks.1"]  # the messages are not waited for
        assert on_their_way["blocks.2", False] == ["blocks.1"]
        assert seen["after forward"] == ["root"]
        assert seen["after backward"] == seen["after evaluation"] == []


def test_without_prefetch_one_unit_is_there_and_without_resharding_all(watched):
    for (_, (alone, on_their_way), (kept, _)), _ in watched:
        assert [alone[f"blocks.{index}", way] for index in range(3) for way in (True, False)] == [
            ["root", f"blocks.{index}"] for index in range(3) for _ in (True, False)
        ]
        assert not any(on_their_way.values())
        assert kept["after forward"] == ["root", "blocks.0", "blocks.1", "blocks.2"]
        assert kept["after backward"] == kept["after evaluation"] == []


def test_the_same_check_sees_a_unit_that_is_not_freed(watched):
    for _, (seen, _) in watched:
        assert len(seen["after forward"]) == len(seen["after backward"]) == 4


def evaluate_before_the_step():
    """In a rank: a forward pass with gradients on, between backward and step, leaves the root gathered."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    model = shard(copy.deepcopy(plain), units=[])
    optimizers = [torch.optim.SGD(trained.parameters(), lr=0.5) for trained in (plain, model)]
    inputs, targets = torch.ones(2, 4), torch.tensor([0, 1])
    for trained, optimizer in zip((plain, model), optimizers, strict=True):
        nn.functional.cross_entropy(trained(inputs), targets).backward()
        trained(inputs)
        optimizer.step()
    return (plain(inputs) - model(inputs)).abs().max().item()


def each_evaluates():
    def gather_only_what_is_empty(flat_parameter):
        if flat_parameter._version is None:
            start_gather(flat_parameter)

    start_gather = FlatParameter.start_gather
    right = evaluate_before_the_step()
    with patch.object(FlatParameter, "start_gather", gather_only_what_is_empty):
        return right, evaluate_before_the_step()


def test_a_row_gathered_before_the_step_is_not_computed_with_after_it():
    for right, stale in dc.launch(each_evaluates, ranks=2):
        assert right < ROUNDING
        assert stale > 1000 * ROUNDING


def checkpointed(is_outside):
    """In a rank: gradients of a sharded model whose blocks compute their forward pass again in backward."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5)) for _ in range(3)))
    model = copy.deepcopy(plain)
    shard(model, units=list(model))
    for block in model:
        if not is_outside:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    inputs = torch.ones(2, 5, requires_grad=True)
    stream = inputs
    for block in model:
        stream = checkpoint(block, stream, use_reentrant=False) if is_outside else block(stream)
    stream.square().sum().backward()
    plain(torch.ones(2, 5)).square().sum().backward()
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    apart = []
    for unit, block in zip(model.sharding.units[1:], plain, strict=True):
        whole = torch.cat([parameter.grad.flatten() for parameter in block.parameters()])
        own = whole.tensor_split(num_ranks)[rank]
        apart.append((unit.flats[0].slice.grad - own).abs().max().item())
    return max(apart), gathered(model)


@pytest.mark.parametrize("is_outside", [False, True], ids=["inside the unit", "around the unit"])
def test_a_checkpointed_unit_is_there_when_it_computes_again(is_outside):
    for apart, left in dc.launch(checkpointed, is_outside, ranks=2):
        assert apart < ROUNDING
        assert left == []


# -- passes that come in other ways than one forward, one backward


class Twice(nn.Module):
    """Calls its block twice in a forward pass."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])

    def forward(self, stream):
        for block in (*self.blocks, self.blocks[0]):
            stream = torch.tanh(block(stream))
        return stream


def accumulated(module):
    """Two forward passes before one backward pass, then a third of its own, on top."""
    (module(torch.ones(2, 5)).sum() + module(torch.zeros(2, 5)).sum()).backward()
    module(torch.full((2, 5), 0.5)).sum().backward()


def gradients_in_other_ways(has_failed):
    """In a rank: how far each system's slices or gradients are from a plain model's after unusual passes."""
    torch.manual_seed(0)
    plain = Twice()
    models = {name: copy.deepcopy(plain) for name in ("bucketed", "zero 2", "fsdp", "fsdp, kept")}
    bucketed = BucketedDDP(models["bucketed"], bucket_cap_mb=TINY_MB)
    second = Zero2Optimizer(models["zero 2"].parameters(), torch.optim.SGD, lr=1.0, bucket_cap_mb=TINY_MB)
    shard(models["fsdp"], units=list(models["fsdp"].blocks))
    shard(models["fsdp, kept"], units=list(models["fsdp, kept"].blocks), reshard_after_forward=False)
    for module in (plain, bucketed, models["zero 2"], models["fsdp"], models["fsdp, kept"]):
        if has_failed:
            breaks_off(module)
            (second if module is models["zero 2"] else module).zero_grad()
        accumulated(module)
    for module in (plain, bucketed, models["fsdp"], models["fsdp, kept"]):
        torch.optim.SGD(module.parameters(), lr=1.0).step()
    second.step()
    found = {name: dict(models[name].named_parameters()) for name in ("bucketed", "zero 2")}
    for name in ("fsdp", "fsdp, kept"):
        with full_parameters(models[name]) as parameters:
            found[name] = {key: parameter.clone() for key, parameter in parameters.items()}
    expected = dict(plain.named_parameters())
    return {
        name: max((parameters[key] - expected[key]).abs().max().item() for key in expected)
        for name, parameters in found.items()
    }


def breaks_off(module):
    """A backward pass that ends with an error after the first gradients, on all ranks alike."""

    def fail(gradient):
        raise ZeroDivisionError

    stream = torch.ones(2, 5, requires_grad=True)
    output = module(stream)
    stream.register_hook(fail)  # the last gradient of all
    with pytest.raises(ZeroDivisionError):
        output.sum().backward()


@pytest.mark.parametrize("has_failed", [False, True], ids=["alone", "after a failed pass"])
def test_gradients_add_up_over_passes_and_calls(has_failed):
    for found in dc.launch(gradients_in_other_ways, has_failed, ranks=2):
        assert max(found.values()) < ROUNDING, found


def read_whole():
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    shard(model, units=[model[0]])
    with full_parameters(model) as parameters:
        shapes = {name: list(parameter.shape) for name, parameter in parameters.items()}
        total = sum(parameter.sum().item() for parameter in parameters.values())
        assert torch.equal(model[0].weight, parameters["0.weight"])
    with pytest.raises(AttributeError, match="weight"):
        model[0].weight  # noqa: B018
    with pytest.raises(ValueError, match=r"Linear is not sharded; give the module that shard\(\) was given"):
        full_parameters(nn.Linear(1, 1)).__enter__()
    names = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return shapes, total, gathered(model), names


def test_full_parameters_have_their_names_and_are_rank_0s_and_are_gone_after_that():
    (shapes, total, left, names), second = dc.launch(read_whole, ranks=2)
    assert shapes == {"0.weight": [4, 3], "0.bias": [4], "1.weight": [5, 4], "1.bias": [5]}
    assert total == second[1]
    assert left == []
    assert names == {"flat_trained": 13, "0.flat_trained": 8}  # 25 numbers need one of padding


def refused(make, units):
    model = make()
    with pytest.raises(ValueError) as found:  # noqa: PT011
        shard(model, units=units(model))
    return str(found.value)


@pytest.mark.parametrize(
    ("make", "units", "message"),
    [
        (Awkward, lambda model: [model.embedding], r"embedding\.weight and head\.weight are one tensor"),
        (Awkward, lambda model: [nn.Linear(1, 1)], r"units\[0\], a Linear, is not inside the Awkward"),
        (Awkward, lambda model: [model.blocks], r"units\[0\] is a ModuleList, which is never called"),
        (
            lambda: nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1).double()),
            lambda model: [],
            r"parameters of torch\.float32 and torch\.float64, and a row",
        ),
    ],
    ids=["tied", "elsewhere", "list", "formats"],
)
def test_what_cannot_be_a_unit_is_refused(make, units, message):
    for found in dc.launch(refused, make, units, ranks=2):
        assert re.search(message, found), found


# -- batch norms keep the statistics of their rank, as torch's FSDP does: parameters equal DDP's


def parameters_beside_ddp():
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    naive.broadcast_state(model)
    models = {name: copy.deepcopy(model) for name in ("DDP", "zero 1", "zero 2", "fsdp")}
    shard(models["fsdp"], units=[models["fsdp"][0]])
    wrapped = models | {"DDP": DistributedDataParallel(models["DDP"])}
    kinds = {
        "zero 1": partial(Zero1Optimizer, optimizer_class=torch.optim.SGD),
        "zero 2": partial(Zero2Optimizer, optimizer_class=torch.optim.SGD),
    }
    optimizers = {
        name: kinds.get(name, torch.optim.SGD)(models[name].parameters(), lr=0.1, momentum=0.9)
        for name in models
    }
    for step in range(3):
        inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        for name in models:
            train_step(wrapped[name], optimizers[name], inputs, torch.tensor([0, 1, 2, 0]))
    with full_parameters(models["fsdp"]) as parameters:
        whole = {name: parameter.clone() for name, parameter in parameters.items()}
    found = {name: dict(models[name].named_parameters()) for name in ("DDP", "zero 1", "zero 2")} | {
        "fsdp": whole
    }
    return {
        name: max((found[name][key] - found["DDP"][key]).abs().max().item() for key in found["DDP"])
        for name in ("zero 1", "zero 2", "fsdp")
    }


def test_a_model_with_batch_norm_trains_as_with_ddp():
    for found in dc.launch(parameters_beside_ddp, ranks=2, everything=True):
        assert max(found.values()) < ROUNDING, found
