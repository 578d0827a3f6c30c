"""FSDP2, alone and with DDP: equal to one rank alone, and every byte held and moved as expected."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import nn

import dpcourse as dc
from dpcourse.ledger import KERNEL_COUNT, select, total
from dpcourse.models import ConvNet, Mlp
from dpcourse.request import make_request
from dpcourse.strategies import fsdp2
from dpcourse.strategies.base import LEARNING_RATE
from tests.equivalence import LOSS_TOLERANCE, SMALL, SMALL_GPT, WEIGHT_TOLERANCE, distance, trained
from tests.features import possible
from tests.test_train import Awkward, awkward_batch

pytestmark = pytest.mark.long

SMALL_CONV = ConvNet(image_size=4, channels=(6, 5), classes=3)  # 6 and 5 rows: 2 + 2 + 2 + 0 on 4 ranks
EVEN = Mlp(width=512, depth=2, classes=8)  # every first axis divides by 4


class Flagged(nn.Module):
    """Only flagged rows take the second layer: a rank without one never uses its parameters."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(6, 5)

    def forward(self, inputs):
        outputs, flagged = self.first(inputs), inputs[:, 0] > 0
        return outputs.index_add(0, *_addition(self.second, inputs, flagged)) if flagged.any() else outputs


def _addition(layer, inputs, flagged):
    return flagged.nonzero().flatten(), layer(inputs[flagged])


def flagged_batch(batch_size, seed):
    inputs = torch.randn(batch_size, 6, generator=torch.Generator().manual_seed(seed))
    inputs[:, 0] = torch.where(torch.arange(batch_size) < batch_size // 2, 1.0, -1.0)
    return inputs, inputs.flip(1)[:, :5]


class FrozenBelow(nn.Module):
    """Three frozen blocks below one that is trained: backward ends before it reaches the first two."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*[nn.Linear(6, 6).requires_grad_(index > 2) for index in range(4)])
        self.head = nn.Linear(6, 5)

    def forward(self, inputs):
        return self.head(self.blocks(inputs))


# -- equal to one rank alone ----------------------------------------------------


def request_of(
    strategy, ranks, model=SMALL, batch=None, recipe="fp32", optimizer="momentum", checkpointing=False, **more
):
    return make_request(
        strategy,
        more,
        model,
        batch,
        ranks,
        batch_size=12,
        recipe=recipe,
        optimizer=optimizer,
        checkpointing=checkpointing,
    ).placed_on("cpu", "gloo")


EQUAL = {
    "mlp on 2": ("fsdp2", 2, {}),
    "mlp on 3": ("fsdp2", 3, {"wrapping": "layer"}),
    "mlp on 4, over the ring": ("fsdp2", 4, {"comms": "ring"}),
    "gpt, tied, on 2, by layer, kept": (
        "fsdp2",
        2,
        {"model": SMALL_GPT, "wrapping": "layer", "reshard_after_forward": False},
    ),
    "gpt, tied, on 4, hybrid": ("fsdp2", 4, {"model": SMALL_GPT, "mesh": (2, 2)}),
    "gpt on 2, by layer, computed twice": (
        "fsdp2",
        2,
        {"model": SMALL_GPT, "wrapping": "layer", "checkpointing": True},
    ),
    "awkward on 2": ("fsdp2", 2, {"model": Awkward, "batch": awkward_batch, "wrapping": "layer"}),
    "awkward on 4": ("fsdp2", 4, {"model": Awkward, "batch": awkward_batch, "cpu_offload": True}),
    "unused on one rank": (
        "fsdp2",
        2,
        {
            "model": Flagged,
            "batch": flagged_batch,
            "wrapping": "model",
            "reduce_scatter_unused_params": True,
        },
    ),
    "gpt, part and part, on 2": ("ddp-fsdp", 2, {"model": SMALL_GPT}),
    "gpt, part and part, on 4, by layer": (
        "ddp-fsdp",
        4,
        {"model": SMALL_GPT, "wrapping": "layer", "replicated": ("norm", "blocks.0.expand")},
    ),
    "mlp, part and part, on 3": (
        "ddp-fsdp",
        3,
        {"replicated": ("layers.0",), "reshard_after_forward": False},
    ),
    "awkward, part and part, on 2": (
        "ddp-fsdp",
        2,
        {"model": Awkward, "batch": awkward_batch, "wrapping": "layer"},
    ),
}


def trained_on(ranks, request):
    return dc.launch(trained, request, ranks=ranks, everything=True)


@functools.cache
def alone(model, batch=None):
    return trained_on(1, request_of("single", 1, model, batch))


@pytest.mark.parametrize("name", possible(EQUAL))
def test_sharded_equals_one_rank_alone_step_by_step(name):
    strategy, ranks, more = EQUAL[name]
    results = trained_on(ranks, request_of(strategy, ranks, **more))
    weights, losses = distance(results, alone(more.get("model", SMALL), more.get("batch")))
    assert weights < WEIGHT_TOLERANCE
    assert losses < LOSS_TOLERANCE


def like_ddp(recipe):
    """The same models, recipe and ranks under DDP, FSDP2 and both.

    With AVX, torch rounds a bf16 number minus rate times gradient otherwise at a tensor's end than before it,
    and shards end elsewhere: at a power of two there is nothing to round.
    """
    LEARNING_RATE["momentum"] = 2**-7
    asked = [
        ("ddp", SMALL_CONV, {}),
        ("fsdp2", SMALL_CONV, {}),
        ("ddp-fsdp", SMALL_CONV, {"reshard_after_forward": False}),
    ]
    return [trained(request_of(name, 2, model, recipe=recipe, **more)) for name, model, more in asked]


@pytest.mark.parametrize("recipe", ["fp32", "autocast", "mixed-adam", "bf16"])
def test_every_recipe_and_a_batch_norm_train_as_under_ddp(recipe):
    """Halves and sums of two are exact in any format, so that two ranks agree to fp32's last bits."""
    for of_ddp, *others in dc.launch(like_ddp, recipe, ranks=2, everything=True):
        for other in others:
            weights, losses = distance([other], [of_ddp])
            assert weights < WEIGHT_TOLERANCE
            assert losses < LOSS_TOLERANCE


def movement(results):
    weights, _ = results[0]
    return (weights[-1] - weights[0]).abs().max().item()


@pytest.mark.parametrize("reduce_dtype", ["float32", "bfloat16"])
def test_bf16_gathers_train_as_one_rank_with_the_same_formats(reduce_dtype):
    """bf16 has 8 bits: gradients of halves differ by a few 256ths of what weights move."""
    options = {"model": SMALL_GPT, "recipe": "fsdp-mixed", "reduce_dtype": reduce_dtype}
    one, two = (trained_on(ranks, request_of("fsdp2", ranks, **options)) for ranks in (1, 2))
    assert distance(two, one)[0] < 0.05 * movement(one)


# -- wrong answers that the same check refuses -------------------------------------


class OwnPartAlone:
    """A reduce-scatter that keeps this rank's part of its own gradients."""

    def allocate(self, size, *, dtype, device):
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])


def without_reduction(module):
    for unit in module.modules():
        if hasattr(unit, "set_custom_reduce_scatter"):
            unit.set_custom_reduce_scatter(OwnPartAlone())


def without_replicas(module):
    module.set_requires_all_reduce(False)


def trained_wrongly(request, mistake):
    wrap = fsdp2.Fsdp2.wrap

    def wrap_wrongly(self, module, setting):
        wrapped = wrap(self, module, setting)
        mistake(wrapped)
        return wrapped

    fsdp2.Fsdp2.wrap = wrap_wrongly
    return trained(request)


@pytest.mark.parametrize("mistake", [without_reduction, without_replicas])
def test_gradients_that_are_not_averaged_are_caught(mistake):
    request = request_of("fsdp2", 4, mesh=(2, 2))
    weights, _ = distance(
        dc.launch(trained_wrongly, request, mistake, ranks=4, everything=True), alone(SMALL)
    )
    assert weights > 100 * WEIGHT_TOLERANCE


def trained_with_an_early_optimizer(request):
    """The optimizer is built, and only then the model is sharded."""
    wrap, built = fsdp2.Fsdp2.wrap, []

    def wrap_late(self, module, setting):
        built.append(self.build_early(module, setting))
        return wrap(self, module, setting)

    fsdp2.Fsdp2.build_early = fsdp2.Fsdp2.build_optimizer
    fsdp2.Fsdp2.wrap = wrap_late
    fsdp2.Fsdp2.build_optimizer = lambda self, wrapped, setting: built[0]
    return trained(request)


def test_an_optimizer_built_before_sharding_trains_nothing_and_is_caught():
    results = dc.launch(trained_with_an_early_optimizer, request_of("fsdp2", 2), ranks=2, everything=True)
    assert movement(results) == 0
    assert distance(results, alone(SMALL))[0] > 100 * WEIGHT_TOLERANCE


# -- to the byte -----------------------------------------------------------------

EXACT = {
    "gpt": ("fsdp2", 4, {"model": SMALL_GPT}),
    "gpt, one unit, momentum": (
        "fsdp2",
        2,
        {"model": SMALL_GPT, "wrapping": "model", "optimizer": "momentum"},
    ),
    "gpt, the root too": ("fsdp2", 2, {"model": SMALL_GPT, "reshard_after_forward": True}),
    "gpt, by layer, computed twice": (
        "fsdp2",
        2,
        {"model": SMALL_GPT, "wrapping": "layer", "checkpointing": True},
    ),
    "convnet, uneven, bf16": ("fsdp2", 4, {"model": SMALL_CONV, "recipe": "bf16", "cpu_offload": True}),
    "convnet, masters, hybrid": ("fsdp2", 4, {"model": SMALL_CONV, "recipe": "mixed-adam", "mesh": (2, 2)}),
    "gpt, replicas alone": ("fsdp2", 4, {"model": SMALL_GPT, "mesh": (4, 1)}),
    "gpt, bf16 gathers, fp32 sums": (
        "fsdp2",
        4,
        {"model": SMALL_GPT, "recipe": "fsdp-mixed", "reduce_dtype": "float32", "mesh": (2, 2)},
    ),
    "awkward, over the ring": (
        "fsdp2",
        3,
        {"model": Awkward, "batch": awkward_batch, "wrapping": "layer", "comms": "ring"},
    ),
    "mlp on the ring backend": ("fsdp2", 4, {"model": SMALL, "backend": "ring", "mesh": (2, 2)}),
    "unused on one rank": (
        "fsdp2",
        2,
        {
            "model": Flagged,
            "batch": flagged_batch,
            "wrapping": "model",
            "reduce_scatter_unused_params": True,
        },
    ),
    "frozen below": ("fsdp2", 2, {"model": FrozenBelow, "batch": flagged_batch}),
    "frozen below, trained under ddp": (
        "ddp-fsdp",
        2,
        {"model": FrozenBelow, "batch": flagged_batch, "replicated": ("blocks.3",)},
    ),
    "alone": ("fsdp2", 1, {"model": SMALL, "recipe": "autocast"}),
    "convnet, part and part": ("ddp-fsdp", 3, {"model": SMALL_CONV}),
    "gpt, part and part": (
        "ddp-fsdp",
        4,
        {"model": SMALL_GPT, "recipe": "mixed-adam", "reshard_after_forward": False},
    ),
    "gpt, part and part, by layer": (
        "ddp-fsdp",
        2,
        {"model": SMALL_GPT, "wrapping": "layer", "replicated": ("norm",)},
    ),
}
UNSEEN = ("gloo's copy", "gather buffer")  # a thread of gloo's own lets these go a little later


@functools.cache
def exact_run(name):
    strategy, ranks, more = EXACT[name]
    return dc.train(strategy, ranks=ranks, batch_size=12, steps=1, **more)


@pytest.mark.parametrize("name", possible(EXACT))
def test_every_option_and_recipe_is_exact_to_the_byte(name):
    run = exact_run(name)
    assert run.memory.is_exact(), "\n".join(str(run.memory.table(rank)) for rank in range(run.world_size))
    assert run.traffic.is_exact(), str(run.traffic)
    known = {(h.phase, h.owner) for h in run.memory.expected}
    left = [h for h in run.memory.measured if (h.phase, h.owner) not in known and h.phase != "peak"]
    if "batch" not in EXACT[name][2]:  # what their batches and autograd keep is not predicted
        assert [h for h in left if h.unit not in UNSEEN] == []


# Every way to shard that has a ratio of its own.
WAYS = {
    "full": {},
    "kept": {"reshard_after_forward": False},
    "hybrid": {"mesh": (2, 2)},
    "ring": {"comms": "ring"},
}


@functools.cache
def on_four(way):
    """A model whose rows divide, on 4 ranks."""
    return dc.train("fsdp2", EVEN, ranks=4, steps=1, **WAYS[way])


@pytest.mark.parametrize(("way", "ratio"), [("full", 3.0), ("kept", 2.25), ("hybrid", 2.5), ("ring", 2.25)])
def test_the_kernel_counts_what_gloo_makes_of_each_way_to_shard(way, ratio):
    run = on_four(way)
    assert run.traffic.is_exact()
    assert run.traffic.expected_sent_bytes() == ratio * run.parameter_bytes
    for rank in range(4):
        if run.traffic.sent_bytes(rank) is not None:
            assert run.traffic.sent_per_parameter_byte(rank) == pytest.approx(ratio, rel=0.005)


def test_each_rank_of_four_holds_a_quarter_and_half_of_it_all_with_hybrid():
    for way, per_parameter in (("full", 16 / 4), ("kept", 16 / 4), ("hybrid", 16 / 2)):
        assert on_four(way).memory.is_exact()
        assert on_four(way).memory.bytes_per_parameter("backward") == pytest.approx(per_parameter, abs=0.001)


def test_without_resharding_a_whole_model_is_there_after_forward_and_else_one_unit_at_a_time():
    assert total(select(on_four("kept").memory.measured, owner="gathered", phase="forward", rank=1)) == (
        on_four("kept").parameter_bytes
    )
    assert total(select(on_four("full").memory.measured, owner="gathered", phase="forward")) == 0
    largest = 4 * (512 * 512 + 512)
    most = [h.num_bytes for h in on_four("full").memory.measured if h.unit == "most at once"]
    assert most == [largest] * 4


def test_collectives_come_in_the_order_expected_each_unit_gathered_before_the_last_is_reduced():
    run = exact_run("gpt, the root too")
    measured, expected = (
        [(t.phase, t.collective, t.unit) for t in items if t.rank == 1 and t.collective != KERNEL_COUNT]
        for items in (run.traffic.measured, run.traffic.expected)
    )
    assert measured == expected
    assert expected[-5:] == [
        ("backward", "all_gather", "blocks.1"),
        ("backward", "all_gather", "blocks.0"),
        ("backward", "reduce_scatter", "blocks.1"),
        ("backward", "reduce_scatter", "blocks.0"),
        ("backward", "reduce_scatter", "root"),
    ]


def payloads_by_step(requests):
    from dpcourse.measure.collectives import CollectiveMeter
    from dpcourse.trainer import Trainer

    found = []
    for request in requests:
        trainer = Trainer(request)
        for _ in range(4):
            meter = CollectiveMeter()
            with meter:
                trainer.step(meter.mark)
            found.append(sorted((t.phase, t.collective, t.payload_bytes) for t in meter.transfers))
    return found


def test_all_steps_of_fsdp2_are_alike_and_with_ddp_the_first_ones_differ_as_ddp_s_do():
    requests = [request_of("fsdp2", 2, SMALL_GPT), request_of("ddp-fsdp", 2, SMALL_GPT)]
    measured = dc.launch(payloads_by_step, requests, ranks=2, everything=True)[1]
    expected = [
        sorted(
            (t.phase, t.collective, t.payload_bytes)
            for t in request.expected_traffic(step)
            if t.rank == 1 and t.phase != "init"
        )
        for request in requests
        for step in range(1, 5)
    ]
    assert measured == expected
    assert measured[0] == measured[3]
    assert len(measured[5]) > len(measured[7])  # the order of rebuilt buckets


def test_lists_without_padding_are_refused_by_the_same_check(monkeypatch):
    run = exact_run("convnet, uneven, bf16")

    def without_padding(parameter, num_shards):
        return parameter.num_bytes // num_shards

    monkeypatch.setattr("dpcourse.strategies.fsdp2_lists.padded_shard_bytes", without_padding)
    wrong = request_of("fsdp2", 4, SMALL_CONV, recipe="bf16", optimizer="adamw")
    assert run.memory.is_exact()
    assert run.traffic.is_exact()
    assert not replace(run, expected_holdings=tuple(wrong.expected_memory())).memory.is_exact()
    assert not replace(run, expected_transfers=tuple(wrong.expected_traffic())).traffic.is_exact()


def test_zeros_for_unused_parameters_are_refused_where_torch_cannot_reduce_them():
    from dpcourse.strategies.fsdp2 import _reduce_unused

    with pytest.raises(
        ValueError, match=r"reduce_scatter_unused_params=True needs FSDP2 of a newer torch than"
    ):
        _reduce_unused(torch.nn.Linear(2, 2))


def test_groups_of_parameters_are_found_under_the_names_of_both_versions_of_torch():
    from types import SimpleNamespace

    from dpcourse.strategies.fsdp_tensors import _groups_of

    assert _groups_of(SimpleNamespace(_fsdp_param_groups=["a", "b"])) == ["a", "b"]
    assert _groups_of(SimpleNamespace(_fsdp_param_group="a")) == ["a"]  # 2.11
    assert _groups_of(SimpleNamespace(_fsdp_param_group=None)) == []
