"""FullyShardedDataParallel: equal to one rank alone, flat rows and their shards to the byte, and refusals."""

import pytest
import torch
from torch import nn

import dpcourse as dc
from dpcourse.layout import Layout, Parameter
from dpcourse.ledger import select, sums_by, total
from dpcourse.models import ConvNet, Mlp
from dpcourse.request import make_request
from dpcourse.strategies import Setting, find, options_for
from dpcourse.strategies.flat_shards import row_of, units_in
from dpcourse.theory.flat import flat_row
from dpcourse.theory.recipes import RECIPES
from tests.equivalence import (
    LOSS_TOLERANCE,
    SMALL,
    SMALL_GPT,
    WEIGHT_TOLERANCE,
    distance,
    train_on,
    trained,
    trained_alone,
)
from tests.test_train import Awkward, awkward_batch

fsdp1 = find("fsdp1")
CONVNET = ConvNet(image_size=4, channels=(6, 5), classes=3)
HYBRID = {"sharding": "HYBRID_SHARD", "mesh": (2, 2)}
BLOCKS = Layout(tuple(Parameter(f"blocks.{index}.weight", (500, 100)) for index in range(20)))


def setting(layout=BLOCKS, world_size=4, recipe="fp32", backend="gloo", **options):
    return Setting(
        layout,
        world_size,
        16,
        "adamw",
        options_for("fsdp1", options),
        recipe=RECIPES[recipe],
        backend=backend,
    )


# -- flat rows ----------------------------------------------------------


def test_a_row_begins_each_tensor_at_16_bytes_and_divides_over_the_ranks():
    row = flat_row([5, 3, 1], element_bytes=4, num_shards=2)
    assert (row.starts, row.num_elements) == ((0, 8, 12), 14)
    assert flat_row([5, 3, 1], element_bytes=2, num_shards=4).starts == (0, 8, 16)
    assert row.in_shard(2, 0) == [5, 0, 0]
    assert row.in_shard(2, 1) == [0, 3, 1]


@pytest.mark.parametrize(("ranks", "recipe"), [(2, "fp32"), (3, "bf16"), (3, "fsdp-mixed")])
def test_rows_and_shards_are_torch_s_own(ranks, recipe):
    options = {"wrapping": "model"}
    request = make_request("fsdp1", options, Awkward, awkward_batch, ranks, ranks, recipe=recipe)
    row = row_of(request.setting, units_in(request.setting)[0])
    found = dc.launch(_torch_s_row, request, ranks=ranks, everything=True)
    assert found == [(row.num_elements, row.in_shard(ranks, rank)) for rank in range(ranks)]
    assert row.num_elements > sum(row.sizes)  # there is padding, which a naive count would miss


def _torch_s_row(request):
    from dpcourse.trainer import Trainer

    flat = Trainer(request).wrapped._handle.flat_param
    parts = [info.numel_in_shard or 0 for info in flat._shard_param_infos]
    return sum(flat._numels_with_padding), parts


# -- expected -----------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "on_gloo", "on_a_ring"),
    [
        ({}, 3.0, 2.25),
        ({"sharding": "SHARD_GRAD_OP"}, 2.25, 1.5),
        (HYBRID, 2.5, 2.0),
        ({"sharding": "NO_SHARD"}, 1.5, 1.5),
    ],
    ids=["full", "grad-op", "hybrid", "whole"],
)
def test_bytes_sent_per_parameter_byte_on_4_ranks(options, on_gloo, on_a_ring):
    """gloo's reduce-scatter is an all-reduce, so that it sends more than the algorithm asks for."""
    for backend, factor in (("gloo", on_gloo), ("ring", on_a_ring)):
        transfers = fsdp1.expected_traffic(setting(backend=backend, **options))
        step = [item for item in transfers if item.phase != "init"]
        assert total(step, "sent_bytes", rank=3) / BLOCKS.parameter_bytes == pytest.approx(factor)


def test_full_shard_gathers_each_unit_twice_and_grad_op_once():
    def counts(**options):
        step = [t for t in fsdp1.expected_traffic(setting(**options)) if t.phase != "init" and t.rank == 0]
        return [len(select(step, collective=name)) for name in ("all_gather", "reduce_scatter", "all_reduce")]

    assert counts() == [40, 20, 0]
    assert counts(sharding="SHARD_GRAD_OP") == [20, 20, 0]
    assert counts(**HYBRID) == [40, 20, 20]
    assert counts(sharding="NO_SHARD") == [0, 0, 20]
    assert counts(wrapping="model") == [1, 1, 0]  # the root is not freed between forward and backward


def test_a_rank_holds_4_bytes_a_parameter_and_gradients_outlive_the_step():
    holdings = fsdp1.expected_memory(setting())
    for phase, size in (("forward", 3), ("backward", 4), ("step", 4)):
        held = sums_by(select(holdings, phase=phase, rank=1), "owner")
        per_parameter = (sum(held.values()) - held.get("gathered", 0)) / BLOCKS.num_params
        assert per_parameter == pytest.approx(size, rel=1e-3)


# -- on real ranks ------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "model", "options"),
    [
        (2, SMALL_GPT, {}),
        (4, SMALL_GPT, {"sharding": "SHARD_GRAD_OP", "wrapping": "layer"}),
        (4, SMALL, {**HYBRID, "wrapping": "layer"}),
        (2, SMALL, {"sharding": "NO_SHARD"}),
        (4, Awkward, {"wrapping": "layer"}),
        (2, Awkward, {"sharding": "HYBRID_SHARD", "mesh": (1, 2), "wrapping": "model"}),
    ],
    ids=["full-2", "grad-op-4", "hybrid-4", "whole-2", "awkward-4", "hybrid-of-one-replica-2"],
)
def test_fsdp1_equals_one_rank_alone_step_by_step(ranks, model, options):
    batch = awkward_batch if model is Awkward else None
    alone = trained_alone(model, batch)
    weights, losses = distance(train_on("fsdp1", ranks, model, batch, **options), alone)
    assert weights < WEIGHT_TOLERANCE
    assert losses < LOSS_TOLERANCE


class FrozenFirst(nn.Module):
    """Backward ends before the first layer; the third is frozen and passed through."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 7).requires_grad_(False), nn.Linear(7, 7)
        self.third, self.last = nn.Linear(7, 5).requires_grad_(False), nn.Linear(5, 2)

    def forward(self, inputs):
        return self.last(torch.relu(self.third(torch.relu(self.second(self.first(inputs))))))


def numbers(batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch_size, 3, generator=generator), torch.randn(batch_size, 2, generator=generator)


class FrozenInARow(nn.Module):
    """The root's row has a frozen layer before the blocks and a trained one after them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 7).requires_grad_(False), nn.Linear(7, 2)
        self.blocks = nn.Sequential(nn.Linear(7, 7).requires_grad_(False), nn.Linear(7, 7))

    def forward(self, inputs):
        return self.last(self.blocks(self.first(inputs)))


BATCHES = {Awkward: awkward_batch, FrozenFirst: numbers, FrozenInARow: numbers}


@pytest.mark.parametrize(
    ("ranks", "model", "recipe", "options"),
    [
        (2, SMALL_GPT, "fp32", {}),
        (2, SMALL_GPT, "fp32", {"wrapping": "layer", "checkpointing": True}),
        (2, CONVNET, "autocast", {"sharding": "SHARD_GRAD_OP", "optimizer": "momentum"}),
        (2, CONVNET, "fsdp-mixed", {"reduce_dtype": "float32"}),
        (2, CONVNET, "fsdp-mixed", {"sharding": "NO_SHARD", "wrapping": "layer"}),
        (2, FrozenFirst, "fp32", {"wrapping": "layer"}),
        (2, FrozenInARow, "fp32", {}),
        (3, SMALL, "bf16", {"wrapping": "model", "batch_size": 9}),
        (4, SMALL_GPT, "mixed-adam", HYBRID),
        (4, Awkward, "fsdp-mixed", {"sharding": "SHARD_GRAD_OP", "wrapping": "layer", "backend": "ring"}),
        (1, SMALL, "fp32", {}),
    ],
    ids=[
        "blocks", "checkpointed-layers", "autocast", "norms-in-fp32", "whole", "frozen-first",
        "frozen-in-a-row", "bf16-model", "masters-hybrid", "mixed-ring", "alone",
    ],
)  # fmt: skip
def test_what_each_rank_holds_and_moves_is_exact(ranks, model, recipe, options):
    run = dc.train("fsdp1", model=model, batch=BATCHES.get(model), ranks=ranks, recipe=recipe, **options)
    assert run.memory.is_exact(), str(run.memory.table(ranks - 1))
    assert run.traffic.is_exact(), str(run.traffic.table(ranks - 1))


def test_the_kernel_counts_what_gloo_really_sends():
    run = dc.train("fsdp1", model=Mlp(width=400), ranks=4, wrapping="layer")
    assert run.memory.is_exact()
    assert run.traffic.is_exact()
    unnamed = select(run.memory.measured, owner="other", unit="without an owner", phase="step")
    assert total(unnamed) == 0
    for rank in range(4) if run.traffic.sent_bytes() is not None else ():
        assert run.traffic.sent_per_parameter_byte(rank) == pytest.approx(3.0, rel=0.01)


def test_tied_tables_in_the_root_stay_tied():
    request = make_request("fsdp1", {"wrapping": "layer"}, SMALL_GPT, ranks=2, batch_size=8)
    assert dc.launch(_tied, request, ranks=2, everything=True) == [True, True]


def _tied(request):
    from torch.distributed.fsdp import FullyShardedDataParallel

    from dpcourse.trainer import Trainer

    trainer = Trainer(request)
    trainer.step()
    with FullyShardedDataParallel.summon_full_params(trainer.wrapped):
        gpt = trainer.wrapped.module
        return gpt.head.weight.data_ptr() == gpt.token_embedding.weight.data_ptr()


# -- wrong answers that the proof refuses -------------------------------


def _without_averaging():
    from torch.distributed.fsdp import _runtime_utils

    _runtime_utils._div_if_needed = lambda tensor, factor: None


def _from_own_weights():
    from dpcourse.strategies import fsdp1 as file

    file.broadcast_from_rank_0 = lambda module: None


@pytest.mark.parametrize("mistake", [_without_averaging, _from_own_weights])
def test_a_mistake_in_a_rank_is_caught(mistake):
    alone = trained_alone(Awkward, awkward_batch)
    wrong = dc.launch(_trained_with, mistake, ranks=2, everything=True)
    assert distance(wrong, alone)[0] > 100 * WEIGHT_TOLERANCE


def _trained_with(mistake):
    mistake()
    request = make_request("fsdp1", {}, Awkward, awkward_batch, 2, 8, optimizer="momentum")
    return trained(request)


# -- refusals: no process is started ------------------------------------

REFUSALS = {
    "hybrid without a mesh": (
        {"sharding": "HYBRID_SHARD", "ranks": 4},
        r"hybrid sharding was asked for on a mesh of \(4,\).*needs two.*mesh=\(2, 2\)",
    ),
    "one axis": ({"sharding": "HYBRID_SHARD", "mesh": (4,), "ranks": 4}, r"mesh of \(4,\), which has 1 axis"),
    "shards of one": (
        {"sharding": "HYBRID_SHARD", "mesh": (4, 1), "ranks": 4},
        r"fsdp1 on a mesh of \(4, 1\).*drift apart; take \"ddp\"",
    ),
    "places": ({"sharding": "HYBRID_SHARD", "mesh": (2, 2), "ranks": 2}, r"has 4 places for 2 ranks"),
    "mesh": ({"mesh": (1, 2)}, r"mesh=\(1, 2\) goes with sharding='HYBRID_SHARD'.*leave mesh out"),
    "sharding": ({"sharding": "ZERO3"}, r"sharding='ZERO3': give 'FULL_SHARD', 'SHARD_GRAD_OP'"),
    "wrapping": ({"wrapping": "blocks"}, r"wrapping='blocks': give 'block', 'layer' or 'model'"),
    "reduce": ({"reduce_dtype": "bfloat16"}, r"goes with recipe='fsdp-mixed', and 'fp32' reduces"),
    "reduce dtype": ({"reduce_dtype": "fp16"}, r"reduce_dtype='fp16': give None, 'float32'"),
    "offload": ({"cpu_offload": True, "device": "cpu"}, r"cpu_offload=True moves shards from GPUs.*fsdp2"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_run_is_refused_before_a_process_starts(name, no_process):
    asked, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        dc.train("fsdp1", **asked)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([Parameter("scale", ())], r"scale is a single number without an axis.*shape \(1,\)"),
        (
            [Parameter("a", (2,)), Parameter("b", (2,), "bfloat16")],
            r"root has parameters of bfloat16 and float32.*one row of one format; convert",
        ),
    ],
)
def test_parameters_that_make_no_row_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        fsdp1.check(setting(Layout(tuple(parameters))))
