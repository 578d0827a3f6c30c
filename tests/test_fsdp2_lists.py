"""FSDP2's lists alone, and with DDP: ratios, rows, ties, frozen units; and what is refused."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import dpcourse as dc
from dpcourse.layout import Layout, Parameter
from dpcourse.ledger import select, sums_by, total
from dpcourse.models import GptSmall
from dpcourse.request import make_request
from dpcourse.strategies import Setting, fsdp2, options_for
from dpcourse.strategies.sharding import Mesh, check_mesh, padded_shard_bytes, shard_of
from tests.equivalence import SMALL
from tests.test_fsdp2 import EVEN, SMALL_CONV, flagged_batch


def setting(model, world_size, **options):
    return Setting(model.layout(), world_size, 16, "adamw", options_for("fsdp2", options))


def ratio_of(model, world_size, backend="gloo", **options):
    case = replace(setting(model, world_size, **options), backend=backend)
    expected = [t for t in fsdp2.Fsdp2().expected_traffic(case) if t.phase != "init" and t.rank == 0]
    return total(expected, "sent_bytes") / model.layout().parameter_bytes


@pytest.mark.parametrize("n", [2, 4, 8])
def test_full_sharding_moves_4_on_gloo_and_3_on_a_ring_and_one_less_when_nothing_is_gathered_twice(n):
    assert ratio_of(EVEN, n) == 4 * (n - 1) / n
    assert ratio_of(EVEN, n, "ring") == ratio_of(EVEN, n, "nccl") == 3 * (n - 1) / n
    assert ratio_of(EVEN, n, reshard_after_forward=False) == 3 * (n - 1) / n
    assert ratio_of(EVEN, n, wrapping="model") == 3 * (n - 1) / n  # the root is gathered once


def test_six_rows_on_four_ranks_are_2_2_2_and_0_in_storages_of_2():
    table = Parameter("table.weight", (6, 5))
    assert [shard_of(table, 4, place).shape[0] for place in range(4)] == [2, 2, 2, 0]
    assert padded_shard_bytes(table, 4) == 2 * 5 * 4
    case = Setting(Layout((table,)), 4, 16, "adamw", options_for("fsdp2", {}))
    held = select(fsdp2.Fsdp2().expected_memory(case), phase="backward")
    assert sums_by(select(held, rank=3), "owner") == {
        "parameters": 40,  # no row, and room for two
        "optimizer": 4,  # the counter of steps
        "gradients": 40,
        "other": 16,
    }
    assert total(select(held, owner="optimizer", rank=0)) == 2 * 40 + 4


def test_tied_tables_are_one_unit_and_count_once():
    case = setting(GptSmall(), 4, wrapping="layer")
    expected = select(fsdp2.Fsdp2().expected_traffic(case), phase="forward", rank=0)
    units = {t.unit: t.payload_bytes for t in expected}
    assert units["root"] == 4 * 256 * 128
    assert "head" not in units
    assert "token_embedding" not in units


def test_a_frozen_unit_is_gathered_and_never_reduced():
    first = Parameter("layers.0.weight", (8, 4))
    layout = Layout((first, Parameter("layers.1.weight", (8, 4), is_trainable=False)))
    case = Setting(layout, 2, 16, "adamw", options_for("fsdp2", {}))
    expected = select(fsdp2.Fsdp2().expected_traffic(case), rank=0, unit="layers.1")
    assert [(t.phase, t.collective) for t in expected] == [
        ("forward", "all_gather"),
        ("backward", "all_gather"),
    ]


def test_bf16_gathers_and_reductions_move_6_bytes_a_parameter_and_ddp_under_autocast_8():
    def moved(strategy, recipe):
        request = make_request(strategy, {}, EVEN, ranks=4, recipe=recipe)
        step = [t for t in request.expected_traffic() if t.rank == 0 and t.phase != "init"]
        ideal = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
        return sum(ideal[t.collective] * t.payload_bytes for t in step) / EVEN.layout().num_params

    assert moved("fsdp2", "fsdp-mixed") == 6
    assert moved("ddp", "autocast") == 8


@pytest.mark.parametrize(
    ("mesh", "shards", "replicas"),
    [
        (Mesh(1, 4), (0, 1, 2, 3), (3,)),
        (Mesh(2, 2), (2, 3), (1, 3)),
        (Mesh(4, 1), (3,), (0, 1, 2, 3)),
    ],
)
def test_a_mesh_says_who_shares_with_rank_3(mesh, shards, replicas):
    assert mesh.shard_group(3) == shards
    assert mesh.replica_group(3) == replicas


# -- refusals: no process is started -------------------------------------------------


class SingleNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, inputs):
        return inputs[:, :5] * self.scale


class NoNumber(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.nothing = nn.Linear(5, 5), nn.Parameter(torch.ones(0, 3))

    def forward(self, inputs):
        return self.layer(inputs[:, :5]) + self.nothing.sum()


REFUSALS = {
    "one axis": ({"mesh": (4,)}, r"hybrid sharding was asked for on a mesh of \(4,\).*mesh=\(2, 2\)"),
    "product": ({"mesh": (3, 2)}, r"mesh=\(3, 2\) has 6 places for 4 ranks; give .* product 4, or leave"),
    "nothing": ({"mesh": (-2, -2)}, r"mesh=\(-2, -2\) has 4 places for 4 ranks; give"),
    "wrapping": ({"wrapping": "blocks"}, r"wrapping='blocks': give 'block', 'layer' or 'model'"),
    "comms": ({"comms": "tree"}, r"comms='tree': give 'ring' or None"),
    "reduce": ({"reduce_dtype": "fp8", "recipe": "fsdp-mixed"}, r"reduce_dtype='fp8': give 'float32', 'b"),
    "reduce without": ({"reduce_dtype": "bfloat16"}, r"goes with recipe='fsdp-mixed', and 'fp32' reduces"),
    "buffers": ({"model": SMALL_CONV, "recipe": "fsdp-mixed"}, r"running_mean stay in float32; take recipe="),
    "no axis": ({"model": SingleNumber, "batch": flagged_batch}, r"scale is a single number.*shape \(1,\)"),
    "no number": (
        {"model": NoNumber, "batch": flagged_batch},
        r"nothing has the shape \(0, 3\) and holds no",
    ),
}
BOTH_REFUSALS = {
    "recipe": ({"recipe": "fsdp-mixed"}, r"ddp-fsdp cannot train with the recipe 'fsdp-mixed'.*fsdp2"),
    "wrapping": ({"wrapping": "model"}, r"wrapping='model': give 'block' or 'layer'"),
    "no such unit": ({"replicated": ("head",)}, r"replicated='head' is no unit of this model; there is lay"),
    "no unit": (
        {"model": NoNumber, "batch": flagged_batch, "replicated": ("layer",)},
        r"wrapping='block' finds no unit in this model.*ask for wrapping=\"layer\"",
    ),
    "nothing whole": ({}, r'DDP would have none; name units to keep whole, such as replicated=\("layers.0",'),
    "nothing sharded": (
        {"replicated": ("layers.0", "layers.2", "layers.4")},
        r"no unit is left to shard.*take \"ddp\"",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_fully_shard_cannot_do_is_refused_before_a_process_starts(name, no_process):
    _refuses("fsdp2", *REFUSALS[name])


@pytest.mark.parametrize("name", BOTH_REFUSALS)
def test_a_model_that_does_not_divide_between_ddp_and_fsdp_is_refused(name, no_process):
    _refuses("ddp-fsdp", *BOTH_REFUSALS[name])


def _refuses(strategy, asked, message):
    with pytest.raises(ValueError, match=message):
        dc.train(strategy, **{"model": SMALL, "ranks": 4, **asked})


def test_a_mesh_that_fits_is_not_refused():
    for shape in (None, (2, 2), (4, 1), (1, 4)):
        check_mesh(shape, 4, "fsdp2")
