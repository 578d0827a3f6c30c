"""The systems from scratch as strategies: exact lists, a kernel's count at the formula, equal to torch's."""

import pytest

import dpcourse as dc
from dpcourse.layout import Layout, Parameter
from dpcourse.ledger import GATHERED_PEAK, KERNEL_COUNT, STATES, overlap, select, sums_by, total
from dpcourse.models import ConvNet, Mlp
from dpcourse.strategies import Setting, find, options_for
from tests.equivalence import LOSS_TOLERANCE, SMALL_GPT, WEIGHT_TOLERANCE, distance, train_on
from tests.test_train import Awkward, awkward_batch

pytestmark = pytest.mark.long

MILLION = Layout(tuple(Parameter(f"blocks.{index}.weight", (500, 500)) for index in range(4)))
TINY_MB = 0.004
SYSTEMS = {
    "scratch-naive-ddp": {},
    "scratch-flat-ddp": {},
    "scratch-ddp": {"bucket_cap_mb": TINY_MB},
    "scratch-zero1": {},
    "scratch-zero2": {"bucket_cap_mb": TINY_MB},
    "scratch-fsdp": {},
}


def setting(strategy, world_size=4, layout=MILLION, **options):
    return Setting(layout, world_size, 16, "adamw", options_for(strategy, options))


# -- the lists: the figures that are taught


@pytest.mark.parametrize(
    ("strategy", "while_gradients_exist", "after_the_step", "sent"),
    [
        ("scratch-naive-ddp", 16, 12, 1.5),
        ("scratch-flat-ddp", 16, 12, 1.5),
        ("scratch-ddp", 16, 12, 1.5),
        ("scratch-zero1", 10, 6, 1.5),  # 4 + 4 + 8/N
        ("scratch-zero2", 7, 6, 1.5),  # 4 + 4/N + 8/N
        ("scratch-fsdp", 4, 3, 2.25),  # 16/N, and half as much traffic again
    ],
)
def test_bytes_a_parameter_held_and_sent_on_4_ranks(strategy, while_gradients_exist, after_the_step, sent):
    case = setting(strategy)
    held = [h for h in find(strategy).expected_memory(case) if h.rank == 3 and h.owner in STATES]
    found = [round(total(held, phase=phase) / MILLION.num_params, 3) for phase in ("backward", "step")]
    assert found == [while_gradients_exist, after_the_step]
    moved = [t for t in find(strategy).expected_traffic(case) if t.phase != "init" and t.rank == 3]
    assert total(moved, "sent_bytes") / MILLION.parameter_bytes == pytest.approx(sent, abs=1e-4)


def test_the_small_fsdp_gathers_twice_and_reduces_once_a_unit_and_keeps_less_traffic_without_resharding():
    layout = Layout((*MILLION.parameters, Parameter("head.weight", (500, 500))))
    counts, sent = [], []
    for is_resharded in (True, False):
        case = setting("scratch-fsdp", layout=layout, reshard_after_forward=is_resharded)
        step = [t for t in find("scratch-fsdp").expected_traffic(case) if t.phase != "init" and t.rank == 0]
        counts.append({key: len(select(step, collective=key)) for key in ("all_gather", "reduce_scatter")})
        sent.append(total(step, "sent_bytes") / layout.parameter_bytes)
    assert counts == [{"all_gather": 4 * 2 + 1, "reduce_scatter": 5}, {"all_gather": 5, "reduce_scatter": 5}]
    assert sent == pytest.approx(
        [0.75 * (3 - 1 / 5), 1.5]
    )  # the root, a fifth of this model, is gathered once


def test_prefetch_costs_the_memory_of_one_more_unit():
    most = [
        total(
            find("scratch-fsdp").expected_memory(setting("scratch-fsdp", **options)),
            phase=GATHERED_PEAK,
            rank=0,
        )
        for options in ({"prefetch": False}, {}, {"reshard_after_forward": False}, {"wrapping": "model"})
    ]
    assert most == [1_000_000, 2_000_000, 4_000_000, 4_000_000]


def test_a_unit_of_two_formats_and_what_is_no_option_are_refused():
    mixed = Layout((Parameter("blocks.0.weight", (2, 2)), Parameter("blocks.0.bias", (2,), "float64")))
    with pytest.raises(ValueError, match=r"blocks\.0 has parameters of float32 and float64.*one format"):
        find("scratch-fsdp").check(setting("scratch-fsdp", layout=mixed))
    with pytest.raises(ValueError, match="wrapping='blocks': give block, layer, model"):
        options_for("scratch-fsdp", {"wrapping": "blocks"})
    with pytest.raises(ValueError, match=r"bucket_cap_mb=0\.0: give a number of MiB above 0"):
        options_for("scratch-zero2", {"bucket_cap_mb": 0.0})


# -- on real ranks


@pytest.mark.parametrize("strategy", SYSTEMS)
def test_what_was_held_and_moved_is_what_was_expected_to_the_byte(strategy):
    options = SYSTEMS[strategy]
    run = dc.train(strategy, model=SMALL_GPT, ranks=3, batch_size=6, **options)
    assert run.memory.is_exact(), run.memory.table()
    assert run.traffic.is_exact(), run.traffic.table()
    assert sums_by(select(run.memory.measured, rank=2, phase="step"), "owner")["optimizer"] > 0


@pytest.mark.parametrize(
    ("strategy", "model", "options"),
    [
        ("scratch-ddp", ConvNet(image_size=8, channels=(6, 7)), {"find_unused_parameters": True}),
        ("scratch-zero1", Awkward, {"find_unused_parameters": True, "batch": awkward_batch}),
        ("scratch-fsdp", Awkward, {"wrapping": "model", "batch": awkward_batch}),
        ("scratch-fsdp", SMALL_GPT, {"wrapping": "layer", "prefetch": False, "recipe": "mixed-adam"}),
        ("scratch-fsdp", SMALL_GPT, {"reshard_after_forward": False, "checkpointing": True}),
    ],
    ids=["buffers", "tied-frozen", "tied-frozen-sharded", "layers-mixed", "kept-checkpointed"],
)
def test_lists_are_exact_with_buffers_frozen_and_tied_parameters_and_other_units(strategy, model, options):
    run = dc.train(strategy, model=model, ranks=2, batch_size=6, **options)
    assert run.memory.is_exact(), run.memory.table()
    assert run.traffic.is_exact(), run.traffic.table()


def test_every_system_equals_one_rank_alone_as_torchs_do_step_by_step():
    alone = train_on("single", 1, SMALL_GPT)
    torchs = {"ddp": {}, "zero1": {}, "fsdp2": {}}
    for strategy, options in (SYSTEMS | torchs).items():
        weights_apart, loss_apart = distance(train_on(strategy, 2, SMALL_GPT, **options), alone)
        assert weights_apart < WEIGHT_TOLERANCE, strategy
        assert loss_apart < LOSS_TOLERANCE, strategy


WIDE = Mlp(features=64, width=384, depth=5, classes=10)  # so large that headers hardly count
WIDE_SYSTEMS = {
    "scratch-ddp": {"bucket_cap_mb": 0.5},
    "scratch-zero1": {},
    "scratch-zero2": {"bucket_cap_mb": 0.5},
    "scratch-fsdp": {},
}


def test_on_a_wider_model_bytes_meet_the_formula_peaks_fall_stage_by_stage_and_messages_overlap():
    runs = {
        strategy: dc.train(strategy, model=WIDE, ranks=3, steps=1, **options)
        for strategy, options in WIDE_SYSTEMS.items()
    }
    _check_kernel_counts_the_formula(runs)
    _check_peaks_fall(runs)
    for strategy in ("scratch-ddp", "scratch-fsdp"):
        spans = [span for record in runs[strategy].records for span in record.spans if span.rank == 0]
        assert overlap(spans).overlap_seconds > 0, strategy


def _check_kernel_counts_the_formula(runs):
    for strategy, run in runs.items():
        if select(run.traffic.measured, collective=KERNEL_COUNT):  # not every system counts bytes of sockets
            ideal = 3 if strategy == "scratch-fsdp" else 2  # each layer is a unit: there is no root
            sent = run.traffic.sent_bytes() / run.parameter_bytes
            assert sent == pytest.approx(ideal * 2 / 3, rel=2e-3), strategy


def _check_peaks_fall(runs):
    """In bytes a parameter: stage 1 saves states, stage 2 full gradients and rows, sharding parameters."""
    peaks = {
        strategy: total(select(run.memory.measured, phase="peak", rank=0)) / run.num_params
        for strategy, run in runs.items()
    }
    assert peaks["scratch-zero1"] < peaks["scratch-ddp"] - 4
    assert peaks["scratch-zero2"] < peaks["scratch-zero1"] - 4
    assert peaks["scratch-fsdp"] < peaks["scratch-zero2"]
