"""DeepSpeed, an optional extra: refused where it is not installed; where it is, equal to one rank and exact."""

import importlib.util
import os
from pathlib import Path

import psutil
import pytest
import torch

import dpcourse as dc
from dpcourse.ledger import STATES, select, sums_by, total
from dpcourse.models import Mlp
from dpcourse.request import make_request
from dpcourse.strategies import Setting, find, options_for
from dpcourse.strategies.deepspeed_lists import padded_row, touched
from dpcourse.theory.recipes import RECIPES
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
    """(N - 1)/N each: an all-reduce is two; gloo has no reduce-scatter of its own, and an all-gather is one."""
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


def requests_for(strategy, ranks, cases, **others):
    return [
        make_request(strategy, options, model, batch, ranks, 8, optimizer="momentum", **others).placed_on(
            "cpu", "gloo"
        )
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
