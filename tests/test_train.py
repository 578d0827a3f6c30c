"""`dc.train`: the parallel run equals the plain run, measured equals expected, and refusals."""

import os
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import dpcourse as dc
from dpcourse.ledger import KERNEL_COUNT, Transfer
from dpcourse.models import ConvNet, Mlp
from dpcourse.ranks.cluster import Hardware
from dpcourse.request import make_request
from dpcourse.trainer import Trainer, check_all_seen, check_captured
from tests.equivalence import LOSS_TOLERANCE, SMALL, SMALL_GPT, WEIGHT_TOLERANCE, distance, train_on


class Awkward(nn.Module):
    """Tied tables, a frozen layer, odd sizes, and weights that differ from rank to rank."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(100 + int(os.environ.get("RANK", 0)))
        self.embedding = nn.Embedding(11, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.bias = nn.Parameter(torch.zeros(11))

    def forward(self, tokens):
        return self.head(torch.tanh(self.frozen(self.embedding(tokens)))) + self.bias


def awkward_batch(batch_size, seed):
    tokens = torch.randint(11, (batch_size, 6), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1], tokens[:, 1:]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(
    ("model", "batch", "options"),
    [
        (SMALL, None, {}),
        (SMALL, None, {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True}),
        (SMALL_GPT, None, {"static_graph": True}),
        (Awkward, awkward_batch, {}),
    ],
    ids=["mlp", "small-buckets", "tied-gpt", "tied-frozen-ranks-differ"],
)
def test_ddp_equals_one_rank_alone_step_by_step(ranks, model, batch, options):
    alone = train_on("single", 1, model, batch)
    weights, losses = distance(train_on("ddp", ranks, model, batch, **options), alone)
    assert weights < WEIGHT_TOLERANCE
    assert losses < LOSS_TOLERANCE


def test_without_averages_the_same_check_fails(monkeypatch):
    monkeypatch.setattr("dpcourse.strategies.single.Single.check", lambda self, setting: None)
    alone = train_on("single", 1)
    weights, losses = distance(train_on("single", 2), alone)
    assert weights > 100 * WEIGHT_TOLERANCE
    assert losses > 10 * LOSS_TOLERANCE


def test_a_batch_norm_makes_ddp_differ_for_real():
    """Each rank normalises by its own share: a difference far beyond rounding, and no bug of ours."""
    model = ConvNet(image_size=4, channels=(6,), classes=3)
    weights, _ = distance(train_on("ddp", 2, model), train_on("single", 1, model))
    assert weights > 100 * WEIGHT_TOLERANCE


def test_a_run_of_ddp_says_what_is_taught():
    run = dc.train("ddp", model=Mlp(width=128), ranks=4)
    assert run.memory.is_exact()
    assert run.traffic.is_exact()
    assert round(run.memory.bytes_per_parameter("backward"), 2) == 20.00
    assert round(run.memory.bytes_per_parameter("step"), 2) == 16.00
    assert run.world_size == 4
    assert run.num_params == Mlp(width=128).layout().num_params
    assert len(run.losses) == 4
    assert run.environment["measured"].startswith("times in bare steps")
    assert run.traffic.expected_sent_bytes() == 1.5 * 4 * run.num_params
    if run.traffic.sent_bytes() is not None:
        for rank in range(4):
            assert run.traffic.sent_per_parameter_byte(rank) == pytest.approx(1.5, rel=0.01)


def test_nothing_that_a_rank_holds_goes_unnamed():
    run = dc.train("ddp", model=ConvNet(image_size=4, channels=(6,), classes=3), ranks=2)
    unnamed = [holding for holding in run.memory.measured if holding.unit == "without an owner"]
    assert {holding.phase for holding in unnamed} == {"peak"}  # what operations hold for a moment
    assert {item.verdict for item in run.memory.differences() if item.key[0] != "peak"} == {"exact"}


def test_single_holds_4_and_4_and_8_and_equals_ddp():
    alone, together = (dc.train(name, model=SMALL) for name in ("single", "ddp"))
    assert round(alone.memory.bytes_per_parameter("backward"), 1) == 16.0
    assert alone.memory.is_exact()
    assert alone.traffic.measured == []
    assert alone.mean_losses == pytest.approx(together.mean_losses, abs=1e-5)
    first, second = (run.records[0].parameter_norms for run in (alone, together))
    assert first == pytest.approx(second, rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True, "bucket_cap_mb": 0.05},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "model", [SMALL_GPT, ConvNet(image_size=4, channels=(6, 5), classes=3)], ids=["gpt", "conv"]
)
def test_every_option_is_exact_to_the_byte_on_models_with_ties_and_buffers(model, options):
    run = dc.train("ddp", model=model, ranks=2, batch_size=4, **options)
    assert run.memory.is_exact(), str(run.memory)
    assert run.traffic.is_exact(), str(run.traffic)
    is_view = "gradient_as_bucket_view" in options
    assert run.memory.bytes_per_parameter("backward") == pytest.approx(16 if is_view else 20, abs=0.15)


def test_a_model_of_ones_own_is_exact_too():
    run = dc.train("ddp", model=Awkward, batch=awkward_batch, ranks=2, batch_size=4, bucket_cap_mb=0.0001)
    assert run.model == "Awkward"
    assert run.memory.is_exact(), str(run.memory)
    assert run.traffic.is_exact(), str(run.traffic)
    sent_once = [t for t in run.traffic.measured if (t.phase, t.rank) == ("init", 1) and "weights" in t.unit]
    assert [t.payload_bytes for t in sent_once] == [4 * (77 + 49 + 7 + 11)]


def test_first_steps_of_ddp_differ_from_the_later_ones_as_declared():
    """The expected list of steps 1, 2 and 3, where buckets are rebuilt, against the recorder."""
    for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
        request = make_request("ddp", {"bucket_cap_mb": 0.002, **options}, SMALL, ranks=2, batch_size=8)
        for step, seen in enumerate(
            dc.launch(_transfers_by_step, request, ranks=2, everything=True)[1], start=1
        ):
            expected = [t for t in request.expected_traffic(step) if t.rank == 1 and t.phase != "init"]
            assert seen == [(t.phase, t.collective, t.unit, t.payload_bytes) for t in expected], (
                options,
                step,
            )


def _transfers_by_step(request):
    from dpcourse.measure.collectives import CollectiveMeter

    trainer, steps = Trainer(request), []
    for _ in range(4):
        meter = CollectiveMeter()
        with meter:
            trainer.step(meter.mark)
        named = trainer.strategy.name_transfers(meter.transfers, trainer.setting)
        steps.append([(t.phase, t.collective, t.unit, t.payload_bytes) for t in named])
    return steps


def test_the_timeline_names_each_bucket_and_all_ranks_share_a_clock():
    run = dc.train("ddp", model=SMALL, ranks=2, bucket_cap_mb=0.002)
    num_buckets = len([t for t in run.traffic.expected if t.rank == 0 and t.phase == "backward"])
    assert num_buckets > 1
    for rank in (0, 1):
        lanes = [span for span in run.timeline.measured if span.rank == rank]
        reduced = [span.name for span in lanes if span.lane == "communication"]
        assert sorted(reduced) == [f"bucket {index}" for index in range(num_buckets)]
        assert {span.name for span in lanes if span.lane == "computation"} == {"forward", "backward", "step"}
    first = {span.rank: span for span in run.timeline.measured if span.name == "bucket 0"}
    # No rank ends an all-reduce before the other has begun it.
    assert max(span.start_seconds for span in first.values()) <= min(s.end_seconds for s in first.values())


# -- refusals: no process is started ------------------------------------

REFUSALS = {
    "strategy": (
        {"strategy": "fdsp2"},
        r"no strategy is called 'fdsp2'; there is single, .*; did you mean 'fsdp2'\?",
    ),
    "model": ({"model": "gtp-small"}, r"no model is called 'gtp-small'.*did you mean 'gpt-small'\?"),
    "option": ({"bucket_cap": 1}, r"ddp has no option 'bucket_cap'.*did you mean 'bucket_cap_mb'\?"),
    "hosts": ({"hosts": 2}, r"hosts=2 belongs to a cluster; give cluster=dc.Cluster\(hosts=2, \.\.\.\)"),
    "optimizer": (
        {"optimizer": "adamax"},
        r"no optimizer is called 'adamax'; there is sgd, momentum, adam, adamw",
    ),
    "recipe": ({"recipe": "fp16"}, r"no recipe is called 'fp16'; there is fp32, autocast"),
    "ranks": ({"ranks": 0}, r"ranks=0: give a whole number from 1 on"),
    "steps": ({"steps": 0}, r"steps=0: give a whole number from 1 on"),
    "few samples": (
        {"ranks": 4, "batch_size": 2},
        r"4 ranks share a global batch of 2.*at most 2 ranks.*batch_size=4",
    ),
    "unequal": ({"ranks": 4, "batch_size": 10}, r"10 does not divide over 4 ranks.*batch_size=8 or 12"),
    "single": (
        {"strategy": "single", "ranks": 2},
        r"single trains on one rank, and 2 were asked for; ask for ranks=1",
    ),
    "no batches": ({"model": Awkward}, r"model='Awkward' is a model of your own.*give batch=function"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_run_is_refused_before_a_process_starts(name, no_process):
    asked, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        dc.train(**{"strategy": "ddp", **asked})


def test_a_cluster_says_what_it_is_as_the_last_line_of_a_cell():
    assert repr(dc.Cluster(ranks=1, device="cpu")) == "Cluster: 1 rank on cpu"
    hosts = dc.Cluster(hosts=2, ranks_per_host=2, inter="500mbit", links="paced")
    assert repr(hosts) == "Cluster: 2 x 2 ranks, 500 Mbit/s between hosts (paced links) on cpu"


@pytest.mark.parametrize("wrong", [5, None, ["ddp"]], ids=str)
@pytest.mark.parametrize("what", ["strategy", "optimizer", "recipe"])
def test_a_name_that_is_no_text_is_refused_like_an_unknown_one(what, wrong):
    with pytest.raises(ValueError, match=f"no {what} is called {re.escape(repr(wrong))}; there is "):
        dc.train(**{"strategy": "ddp", what: wrong})


@pytest.mark.parametrize("seed", [-1, 2**63, 1.0, "0", None, True], ids=str)
def test_a_seed_that_torch_cannot_take_is_refused(seed):
    with pytest.raises(ValueError, match=r"seed=.*: give a whole number from 0 to 2\*\*63 - 1"):
        dc.train("ddp", seed=seed)


@pytest.mark.parametrize("model", ["mlp", SMALL], ids=str)
def test_batches_for_a_model_that_makes_its_own_are_refused(model):
    with pytest.raises(ValueError, match=r"batch= was given with model=.*; leave batch out"):
        dc.train("ddp", model=model, batch=awkward_batch)


def one_row_more(batch_size, seed):
    return awkward_batch(batch_size + (batch_size > 2), seed)  # right for the trial of two samples


BATCHES = {
    "one row more": (
        one_row_more,
        r"asked for 16 samples and returned \(\[17, 5\], \[17, 5\]\); let it return",
    ),
    "always 16": (
        lambda size, seed: awkward_batch(16, seed),
        r"asked for 2 samples and returned \(\[16, 5\]",
    ),
    "targets short": (lambda n, s: (torch.ones(n, 3), torch.ones(n - 1)), r"\(\[2, 3\], \[1\]\)"),
    "three things": (lambda n, s: (torch.ones(n),) * 3, r"\(\[2\], \[2\], \[2\]\)"),
    "one tensor": (lambda n, s: torch.ones(n, 2), r"returned \(\[2, 2\]\)"),
    "lists": (lambda n, s: ([1] * n, [2] * n), r"returned \(list, list\); let it return \(inputs, targets\)"),
    "nothing": (lambda n, s: None, r"returned \(NoneType\)"),
    "no rows": (lambda n, s: (torch.tensor(1.0),) * 2, r"returned \(\[\], \[\]\)"),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_other_rows_than_asked_are_refused_before_a_process_starts(name, no_process):
    batch, message = BATCHES[name]
    with pytest.raises(ValueError, match=message):
        dc.train("ddp", model=Awkward, batch=batch)


def points(batch_size, seed):
    return torch.ones(batch_size, 3), torch.ones(batch_size, 2)


OWN_MODELS = {
    "made already": (
        nn.Linear(3, 2),
        r"model is a Linear that is made already.*model=lambda: Linear\(\.\.\.\)",
    ),
    "no module": (lambda: 3, r"model=<lambda> returned int; let it return an nn\.Module"),
    "no parameters": (nn.Flatten, r"Flatten has no parameter to train \(0 there"),
    "all frozen": (
        lambda: nn.Linear(3, 2).requires_grad_(False),
        r"no parameter to train \(2 there, all frozen",
    ),
    "complex": (
        lambda: nn.Linear(3, 2, dtype=torch.complex64),
        r"weight is of complex64, and .*float32.*convert",
    ),
}


@pytest.mark.parametrize("strategy", ["single", "ddp"])
@pytest.mark.parametrize("name", OWN_MODELS)
def test_a_model_of_ones_own_that_cannot_train_is_refused_before_a_process_starts(name, strategy, no_process):
    model, message = OWN_MODELS[name]
    with pytest.raises((ValueError, TypeError), match=message):
        dc.train(strategy, model=model, batch=points)


def test_batches_that_no_function_makes_are_refused():
    with pytest.raises(TypeError, match=r"batch=5: give a function, where function\(batch_size, seed\)"):
        dc.train("ddp", model=Awkward, batch=5)


def test_a_model_that_is_nothing_of_the_kind_is_refused():
    with pytest.raises(
        TypeError, match=r"model is a int; give a name \(mlp, convnet, gpt-small, gpt-7b, gpt-70b\)"
    ):
        dc.train("ddp", model=3)


def test_a_model_too_large_for_this_machine_is_refused(no_process, monkeypatch):
    there = Hardware(cores=2, memory_bytes=16_000_000_000, gpus=())
    monkeypatch.setattr(_train_module(), "attached", lambda: there)
    message = (
        r"4 ranks with 200,770,010 parameters holds at least 16\.06 GB, and this machine has 16\.00 GB; ask"
    )
    with pytest.raises(ValueError, match=message):
        dc.train("ddp", model=Mlp(width=10_000), ranks=4, device="cpu")


def _train_module():
    import sys

    dc.train  # noqa: B018  the module is imported when the name is first used
    return sys.modules["dpcourse.training"]


def test_a_run_that_communicates_but_captured_nothing_is_an_error():
    count = Transfer(KERNEL_COUNT, "sockets", (0, 1), 0, 800, "backward")
    with pytest.raises(RuntimeError, match=r"ddp on 2 ranks makes collectives, and none was captured"):
        check_captured(make_request("ddp", {}), [count])


def test_a_collective_that_only_the_flight_recorder_saw_is_an_error():
    seen = Transfer("all_reduce", "float32", (0, 1), 8, None, "step")
    check_all_seen([seen], [seen])
    with pytest.raises(RuntimeError, match=r"made 2 collectives, and the meter was told of 1"):
        check_all_seen([seen, seen], [seen])


def test_without_a_batch_size_any_number_of_ranks_has_equal_shares():
    assert make_request("ddp", {}, ranks=4).batch_size == 16
    assert make_request("ddp", {}, ranks=3).batch_size == 18
    assert make_request("ddp", {}, ranks=17).batch_size == 17


@pytest.mark.parametrize("given", [[1], "runs", None])
def test_what_is_no_run_is_not_compared(given):
    with pytest.raises(TypeError, match=r"compare was given .*; give it a list of what dc.train returned"):
        dc.compare(given)


def test_a_run_says_nothing_beside_its_result_whatever_torch_was_built_for():
    """What ranks write to stderr stands in the learner's cell."""
    code = "import dpcourse as dc; print(dc.train('ddp', model='mlp', steps=1, device='cpu').title)"
    quiet = {**os.environ, "DPCOURSE_REFERENCE": "1"}
    quiet.pop("KINETO_LOG_LEVEL", None)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=quiet)
    assert (done.stdout, done.stderr) == ("ddp: mlp on 2 ranks\n", "")
