"""Paced layers: who takes its time when, told by the order of events, and a run that says it was paced."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import dpcourse as dc
from dpcourse import pacing
from dpcourse.ledger import COMPUTATION, select
from dpcourse.measure.timeline import Event, spans_of
from dpcourse.models import Mlp
from dpcourse.modules import checkpoint_blocks
from dpcourse.request import make_request
from dpcourse.theory.links import Link

pytestmark = pytest.mark.long

LONG = 1000.0  # seconds: nothing that is computed here takes a part of it


@pytest.fixture
def events(monkeypatch):
    """What happens, in order; a sleep is noted and takes no time."""
    found = []
    monkeypatch.setattr(pacing, "_sleep", lambda seconds: found.append(round(seconds)))
    return found


def watched(events):
    """Two layers with a ReLU between them; each gradient of a weight is noted when it is there."""
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    for name in ("0", "2"):
        weight = module.get_submodule(name).weight
        weight.register_post_accumulate_grad_hook(lambda _, name=name: events.append(f"gradient of {name}"))
    return module


def test_a_layer_takes_its_time_in_forward_and_twice_that_before_its_gradients(events):
    module = watched(events)
    pacing.pace(module, LONG)
    loss = module(torch.ones(5, 3)).sum()
    assert events == [LONG, LONG]
    loss.backward()
    assert events[2:] == [2 * LONG, "gradient of 2", 2 * LONG, "gradient of 0"]


def test_without_gradients_there_is_no_time_of_backward(events):
    module = watched(events)
    pacing.pace(module, LONG)
    with torch.no_grad():
        module(torch.ones(5, 3))
    module[2].requires_grad_(False)
    module[0].requires_grad_(False)
    module(torch.ones(5, 3))
    assert events == [LONG] * 4


def test_what_a_strategy_does_with_a_layer_s_output_comes_before_its_backward(events):
    """FSDP gathers a unit's parameters when the gradient of its output is there: then the unit computes."""
    layer = nn.Linear(3, 2)
    pacing.pace(layer, LONG)
    layer.register_forward_hook(
        lambda module, inputs, output: output.register_hook(lambda _: events.append("gather")) and None
    )
    layer(torch.ones(1, 3)).sum().backward()
    assert events == [LONG, "gather", 2 * LONG]


def test_a_forward_pass_that_is_done_again_takes_its_time_again(events):
    module = Mlp(features=3, width=4, depth=1, classes=2).build(0)
    twice = nn.ModuleDict({"blocks": nn.ModuleList([nn.Sequential(module, nn.Linear(2, 2))])})
    pacing.pace(twice, LONG)
    checkpoint_blocks(twice)
    twice["blocks"][0](torch.ones(1, 3, requires_grad=True)).sum().backward()
    # Forward of three; the last one's backward asks for two of them again; then backward of the others.
    assert events == [LONG] * 3 + [2 * LONG] + [LONG] * 2 + [2 * LONG] * 2


def test_numbers_stay_the_same(events):
    plain, paced = (Mlp(width=8).build(0) for _ in range(2))
    pacing.pace(paced, LONG)
    inputs = torch.ones(2, 64)
    assert torch.equal(plain(inputs), paced(inputs))
    assert plain.state_dict().keys() == paced.state_dict().keys()


def test_layers_that_take_longer_by_themselves_are_told_in_words():
    layer = nn.Linear(3, 2)
    late, fine = pacing.pace(layer, 1e-9), pacing.Pace(LONG)
    layer(torch.ones(1, 3))
    fine.note("layer", 1.0)
    assert str(fine) == ""
    assert str(late).startswith("1 of 1 forward passes of layers took longer than the 0 us they were given, ")
    assert "Linear " in str(late)


# -- the timeline -----------------------------------------------------------------


def test_a_paced_layer_is_computation_with_its_name_and_phase():
    main = 1
    recorded = [
        Event("paced layer layers.0", main, 0.0, 5.0),
        Event("aten::mm", main, 0.5, 1.0),
        Event("aten::relu", main, 5.0, 5.5),
        Event("dpcourse phase: forward", main, 6.0, 6.0),
        Event("paced layer layers.0", main, 7.0, 17.0),
        Event("aten::mm", main, 17.0, 18.0),
        Event("dpcourse phase: backward", main, 19.0, 19.0),
    ]
    spans = select(spans_of(recorded, [], 0), lane=COMPUTATION)
    assert [(span.name, span.start_seconds, span.end_seconds) for span in spans] == [
        ("forward", 5.0, pytest.approx(5.5)),
        ("backward", 17.0, pytest.approx(18.0)),
        ("forward: layers.0 (paced)", 0.0, 5.0),
        ("backward: layers.0 (paced)", 7.0, 17.0),
    ]


@pytest.fixture(scope="module")
def run():
    return dc.train("ddp", model=Mlp(width=64, depth=2), steps=2, pace_compute="20ms", bucket_cap_mb=0.01)


def test_a_run_says_that_it_was_paced_and_is_the_same_else(run, tmp_path):
    assert "layers paced to 20.00 ms" in run.title
    assert run.title in run.timeline.plot().alt + run.timeline.plot().title
    plain = dc.train("ddp", model=Mlp(width=64, depth=2), steps=2, bucket_cap_mb=0.01)
    assert "paced" not in plain.title
    assert run.mean_losses == plain.mean_losses
    assert run.traffic.is_exact()
    run.save(tmp_path / "run.json")
    assert dc.Run.load(tmp_path / "run.json").pace_compute == 0.02


def test_each_layer_is_in_the_timeline_of_each_pass_in_order(run):
    for rank in range(2):
        names = [span.name for span in select(run.timeline.measured, rank=rank, lane=COMPUTATION)]
        paced = [name for name in names if name.endswith("(paced)")]
        layers = ["layers.0", "layers.2", "layers.4"]
        assert paced == [f"forward: {name} (paced)" for name in layers] + [
            f"backward: {name} (paced)" for name in reversed(layers)
        ]


def test_a_paced_step_is_predicted_with_the_time_of_its_layers(run):
    spans = run.timeline.predicted(Link(0.0, 1e9))
    computed = [span for span in spans if span.lane == COMPUTATION]
    assert {span.name for span in computed} <= {"forward", "backward", "step"}
    assert sum(span.seconds for span in computed) >= 9 * 0.015  # 3 layers x (1 + 2), real computation beside


def test_late_layers_are_among_a_run_s_facts(run):
    record = replace(run.records[1], environment=run.environment | {"pace": "1 of 2 forward passes"})
    late = replace(run, records=(replace(run.records[0], environment=run.environment), record))
    assert late.facts().endswith("rank 1: 1 of 2 forward passes")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (0, r"pace_compute=0: a layer that takes no time is none; .*\"5ms\""),
        ("-1ms", r"pace_compute='-1ms': give a time of 0 or more"),
        ("5 layers", r"pace_compute='5 layers': give a time with its unit"),
        (True, r"pace_compute=True: give a time with its unit"),
    ],
)
def test_a_pace_that_is_none_is_refused_before_a_process_starts(asked, words, no_process):
    with pytest.raises(ValueError, match=words):
        dc.train("ddp", pace_compute=asked)


def test_a_pace_on_gpus_is_refused():
    request = make_request("ddp", {}, pace_compute="5ms")
    with pytest.raises(
        ValueError, match=r"lets the CPU wait, and the layers would be on 'cuda'; ask for device"
    ):
        request.placed_on("cuda", "nccl")
