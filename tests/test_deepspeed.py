"""DeepSpeed, an optional extra: refused where it is not installed, else equal to one rank and exact."""

import importlib.util
from pathlib import Path

import pytest

import dpcourse as dc
from dpcourse.ledger import STATES, UNNAMED, select, sums_by, total
from dpcourse.models import Mlp
from dpcourse.request import make_request
from dpcourse.strategies import Setting, find, options_for
from dpcourse.strategies.deepspeed_lists import padded_row, touched
from dpcourse.theory.recipes import RECIPES
from dpcourse.trainer import Trainer
from tests.equivalence import LOSS_TOLERANCE, SMALL, SMALL_GPT, WEIGHT_TOLERANCE, distance, trained
from tests.test_train import Awkward, awkward_batch

STAGES = (0, 1, 2, 3)
ODD = Mlp(features=12, width=41, depth=2, classes=5)  # no number of ranks divides its 2,465 parameters
deepspeed = find("deepspeed")
installed = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason='needs `pip install ".[deepspeed]"`, an extra'
)


def setting(model, world_size, recipe="fp32", **options):
    layout = model.layout().cast(RECIPES[recipe].parameter_dtype)
    options = options_for("deepspeed", options)
    return Setting(layout, world_size, 16, options=options, recipe=RECIPES[recipe])


# -- refused ------------------------------------------------------------


def test_without_deepspeed_it_is_refused_in_one_line_before_any_process_starts(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("dpcourse.training._launch", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(
        ValueError, match=r"which is not installed; install it with `pip install .*fsdp2"
    ) as error:
        dc.train("deepspeed", stage=3)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stage": 4}, "stage=4: give 0, 1, 2 or 3"),
        ({"reduce_bucket_size": 0}, "reduce_bucket_size=0: give a number of elements"),
        ({"grad_accum_dtype": "fp64"}, "grad_accum_dtype='fp64': give \"fp32\""),
        ({"stage": 0, "grad_accum_dtype": "fp32"}, "from stage 1 on; give stage=1"),
        ({"cpu_offload": True}, "deepspeed has no option 'cpu_offload'; there is stage, reduce_bucket_size"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_deepspeed_cannot_do_is_refused_with_what_to_give(options, message):
    with pytest.raises(ValueError, match=message):
        dc.train("deepspeed", recipe="mixed-adam", **options)


# -- the lists ----------------------------------------------------------


def kept_per_parameter(model, world_size, stage, phase="step", **options):
    """Bytes of rank 0 in bf16 mode, the buffer for gradients aside."""
    case = setting(model, world_size, "mixed-adam", stage=stage, **options)
    held = select(deepspeed.expected_memory(case), rank=0, phase=phase)
    states = [holding for holding in held if holding.owner in STATES and holding.owner != "buckets"]
    return round(total(states) / case.layout.num_params, 2)


def test_bf16_keeps_14_5_5_and_4_bytes_a_parameter_on_four_ranks():
    """The headline 2 + 2 + 12 counts gradients, which stages 0 to 2 drop after the step."""
    assert [kept_per_parameter(Mlp(width=512), 4, stage) for stage in STAGES] == [14, 5, 5, 4]


def test_gradients_accumulated_in_fp32_lie_there_all_the_time():
    """One rank: 2 + 12, and 4 for the row of gradients; while backward's own exist 2 more."""
    phases = ("step", "backward")
    fp32 = [kept_per_parameter(Mlp(width=512), 1, 1, phase, grad_accum_dtype="fp32") for phase in phases]
    assert fp32 == [18, 20]


def test_stage_3_keeps_its_buffer_for_gradients_even_between_steps():
    default = select(
        deepspeed.expected_memory(setting(ODD, 4, stage=3, reduce_bucket_size=500_000_000)), rank=0
    )
    assert sums_by(select(default, owner="buckets"), "phase") == dict.fromkeys(
        ("forward", "backward", "step"), 2_000_000_000
    )


def test_a_step_sends_2_parts_and_on_gloo_from_stage_1_on_3():
    """(N - 1)/N each: an all-reduce is two, so is a reduce-scatter on gloo, and an all-gather is one."""
    for num_ranks in (2, 4, 8):
        for stage, parts in zip(STAGES, (2, 3, 3, 3), strict=True):
            case = setting(Mlp(width=512), num_ranks, stage=stage)
            step = [
                item for item in deepspeed.expected_traffic(case) if item.phase != "init" and item.rank == 1
            ]
            sent = total(step, "sent_bytes") / case.layout.parameter_bytes
            assert sent == pytest.approx(parts * (num_ranks - 1) / num_ranks, rel=1e-3)


def test_a_row_is_padded_to_twice_the_ranks():
    assert [padded_row(setting(ODD, num_ranks)) for num_ranks in (1, 2, 3, 4)] == [2466, 2468, 2466, 2472]


def test_a_slice_keeps_whole_the_tensors_that_it_cuts_and_zeros_at_the_end():
    """Tensors of 2, 1, 4 and 1 in slices of 3: the third has elements of the last two, and the first zero."""
    assert [touched([2, 1, 4, 1], 3, rank) for rank in range(4)] == [(3, 0), (4, 0), (4 + 1, 1), (0, 3)]


# -- on real ranks ------------------------------------------------------


def trained_each(requests):
    return [trained(request) for request in requests]


def trained_with_clipping(requests):
    """Train as DeepSpeed does unasked, with a limit that these small gradients reach."""
    from dpcourse.strategies import deepspeed as strategy

    config = strategy._config
    strategy._config = lambda setting: {**config(setting), "gradient_clipping": 0.1}
    return trained_each(requests)


def adam_steps(requests):
    """What the optimizer's states say of how many steps there were, after two."""
    counts = []
    for request in requests:
        trainer = Trainer(request)
        trainer.step()
        trainer.step()
        states = trainer.wrapped.optimizer.state.values()
        counts.append(sorted({state["step"].item() for state in states}))
    return counts


def requests_for(strategy, ranks, cases, **others):
    others = {"optimizer": "momentum", "batch_size": 8, **others}
    return [
        make_request(strategy, options, model, batch, ranks, **others).placed_on("cpu", "gloo")
        for model, batch, options in cases
    ]


def results_of(strategy, ranks, cases, function=trained_each, **others):
    """For each case, what each rank gave; one launch for all."""
    requests = requests_for(strategy, ranks, cases, **others)
    results = dc.launch(function, requests, ranks=ranks, everything=True, deadline_seconds=110)
    return list(zip(*results, strict=True))


@installed
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_stage_equals_one_rank_alone_step_by_step(ranks):
    models = [(SMALL, None), (SMALL_GPT, None), (Awkward, awkward_batch)]
    cases = [(model, batch, {"stage": stage}) for model, batch in models for stage in STAGES]
    alone = results_of("single", 1, [(model, batch, {}) for model, batch in models])
    for index, results in enumerate(results_of("deepspeed", ranks, cases)):
        weights, losses = distance(results, alone[index // len(STAGES)])
        assert weights < WEIGHT_TOLERANCE, cases[index]
        assert losses < LOSS_TOLERANCE, cases[index]


@installed
def test_clipped_gradients_are_caught_by_the_same_check():
    (alone,) = results_of("single", 1, [(SMALL, None, {})])
    (results,) = results_of("deepspeed", 2, [(SMALL, None, {"stage": 1})], trained_with_clipping)
    assert distance(results, alone)[0] > 100 * WEIGHT_TOLERANCE


@installed
def test_no_stage_counts_a_step_that_nobody_took():
    cases = [(SMALL, None, {"stage": stage}) for stage in STAGES]
    found = results_of("deepspeed", 2, cases, adam_steps, optimizer="adamw", recipe="mixed-adam")
    assert found == [([2.0], [2.0])] * len(STAGES)


@installed
@pytest.mark.parametrize(
    ("ranks", "model", "recipe", "options"),
    [
        (2, SMALL_GPT, "fp32", {"stage": 0}),
        (2, ODD, "mixed-adam", {"stage": 0}),
        (3, Awkward, "fp32", {"stage": 1}),
        (4, ODD, "mixed-adam", {"stage": 1}),
        (2, SMALL_GPT, "mixed-adam", {"stage": 1, "grad_accum_dtype": "fp32"}),
        (2, SMALL_GPT, "fp32", {"stage": 2, "reduce_bucket_size": 300}),
        (3, Awkward, "mixed-adam", {"stage": 2, "grad_accum_dtype": "fp32"}),
        (2, SMALL_GPT, "mixed-adam", {"stage": 3, "reduce_bucket_size": 300}),
        (3, Awkward, "fp32", {"stage": 3}),
        (1, ODD, "fp32", {"stage": 2}),
        (1, ODD, "mixed-adam", {"stage": 3}),
    ],
    ids=[
        "0",
        "0-bf16",
        "1-awkward",
        "1-bf16",
        "1-fp32-row",
        "2-full-buckets",
        "2-fp32-slice",
        "3-full-buckets",
        "3-awkward",
        "2-alone",
        "3-alone",
    ],
)
def test_what_each_rank_holds_and_moves_is_exact(ranks, model, recipe, options, capfd):
    batch, size = (awkward_batch, 12) if model is Awkward else (None, 4 * ranks)
    files = set(Path("/dev/shm").iterdir()) if Path("/dev/shm").is_dir() else set()
    run = dc.train(
        "deepspeed", model=model, batch=batch, ranks=ranks, batch_size=size, recipe=recipe, **options
    )
    assert run.memory.is_exact(), str(run.memory)
    assert run.traffic.is_exact(), str(run.traffic)
    nameless = [h for h in run.memory.measured if h.unit == UNNAMED and h.phase != "peak"]
    assert nameless == []
    assert capfd.readouterr() == ("", "")
    if files:
        assert [path for path in set(Path("/dev/shm").iterdir()) - files if "allreduce" in path.name] == []


@installed
@pytest.mark.parametrize("stage", STAGES)
def test_the_kernel_counts_two_parts_or_three(stage):
    run = dc.train("deepspeed", model=Mlp(width=600), stage=stage, ranks=2)
    sent = run.traffic.sent_bytes(1)
    if sent is None:
        pytest.skip("this kernel does not count what a socket sends")
    assert sent / run.parameter_bytes == pytest.approx((2 if stage == 0 else 3) / 2, rel=2e-3)
    assert sent == pytest.approx(run.traffic.expected_sent_bytes(1), rel=2e-3)
