"""The star's flaws as experiments: bytes of the main rank, memory of each rank, threads against processes."""

import re

import pytest

import dpcourse as dc
from dpcourse import experiments
from dpcourse.experiments.threads import ThreadsOrProcesses, Workers, quickest
from dpcourse.ledger import Holding
from dpcourse.models import Mlp
from dpcourse.parts.memory import MemoryPart

pytestmark = pytest.mark.long

SMALL = Mlp(features=16, width=64, depth=2)


@pytest.fixture(scope="module")
def star():
    return experiments.main_rank((2, 3), model=SMALL, device="cpu")


def test_the_star_s_main_rank_sends_a_model_to_each_other_rank_and_ddp_s_ranks_their_share(star):
    assert [(run.strategy, run.world_size) for run in star.runs] == [
        ("dp", 2),
        ("dp", 3),
        ("ddp", 2),
        ("ddp", 3),
    ]
    outputs = star.of("dp")[0].traffic.expected_sent_bytes() / star.runs[0].parameter_bytes - 1
    assert 0 < outputs < 0.2  # samples out, gradients of outputs back: little beside the model
    assert star.expected("dp") == pytest.approx([1 + outputs, 2 + 2 * outputs], rel=0.05)
    assert star.expected("ddp") == pytest.approx([1, 4 / 3])
    for name in ("dp", "ddp"):
        for sent, expected in zip(star.sent(name), star.expected(name), strict=True):
            assert sent is None or expected < sent < expected + 0.5
    assert all(run.memory.is_exact() and run.traffic.is_exact() for run in star.runs)


def test_the_fuller_rank_is_the_main_one(star):
    run = star.of("dp")[1]
    held = [run.memory.bytes_per_parameter("backward", rank) for rank in range(3)]
    assert held[0] == pytest.approx(16, abs=0.01)
    assert held[1:] == [0, 0]


def test_a_figure_of_ranks_draws_each_rank_at_the_phases_that_were_asked_for(star):
    part = star.of("dp")[1].memory
    figure = part.plot_by_rank("forward", "step")
    held = float(re.search(r"end of forward, rank 1: ([\d.]+)", figure.alt)[1])
    assert 4 < held < 5  # the model, lent, and this rank's activations
    assert "end of step, rank 2: 0.0" in figure.alt
    axes = figure.draw().axes
    assert [axis.get_xlabel().split()[-1] for axis in axes] == ["forward", "step"]
    assert len({axis.get_xlim() for axis in axes}) == 1
    assert figure.png().startswith(b"\x89PNG")
    assert "at its fullest moment, rank 0: " in part.plot_by_rank().alt


def test_a_phase_that_there_is_not_is_refused(star):
    with pytest.raises(
        ValueError, match=r"there is no phase 'sideways'; give some of .*forward, backward, step"
    ):
        star.runs[0].memory.plot_by_rank("sideways")


def test_more_memory_on_another_rank_would_show(star):
    run = star.of("dp")[0]
    part = MemoryPart(run)
    extra = Holding("gradients", "left over", 4 * run.num_params, "backward", 1)

    class Fuller(MemoryPart):
        @property
        def measured(self):
            return [*part.measured, extra]

    assert "end of backward, rank 1: 0.0" in part.plot_by_rank("backward").alt
    assert "end of backward, rank 1: 4.0" in Fuller(run).plot_by_rank("backward").alt


@pytest.mark.parametrize("ranks", [(), (1, 2)])
def test_a_rank_alone_is_refused(ranks, no_process):
    with pytest.raises(ValueError, match=r"a rank alone sends nothing; give numbers of 2 or more"):
        experiments.main_rank(ranks)


# -- threads and processes


@pytest.fixture(scope="module")
def workers():
    return experiments.threads_or_processes(passes=20)


def test_each_kind_of_worker_does_its_passes(workers):
    assert [(row.kind, row.num_workers) for row in workers.rows] == [
        ("alone", 1),
        ("threads of one process", 2),
        ("processes", 2),
    ]
    assert all(row.seconds > 0 and row.cpu_seconds > 0 for row in workers.rows)
    assert workers.rows[1].cores_busy <= 2.1


def test_of_several_repeats_the_quickest_counts_and_in_it_the_slowest_process():
    repeats = [[(3.0, 1.0), (2.0, 1.5)], [(1.0, 0.5), (2.5, 2.0)]]
    assert quickest("processes", repeats) == Workers("processes", 2, 2.5, 3.5)


def test_times_and_cores_are_worked_out_from_the_clock():
    rows = Workers("alone", 1, 2.0, 2.0), Workers("threads", 2, 4.0, 4.4), Workers("processes", 2, 2.5, 4.5)
    found = ThreadsOrProcesses(100, 1, rows)
    assert [found.times_as_long(row) for row in rows] == [1.0, 2.0, 1.25]
    assert found.words() == ("2 threads keep 1.1 cores busy, 2 processes 1.8. The machine has 1.")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"num_workers": 1}, "num_workers=1: one worker has nobody to share with; give 2 at least"),
        ({"passes": 0}, "passes"),
    ],
)
def test_too_few_workers_or_passes_are_refused(asked, said, no_process):
    with pytest.raises(ValueError, match=said):
        experiments.threads_or_processes(**asked)


@pytest.mark.parametrize("name", ["star", "workers"])
def test_both_show_a_table_and_a_figure_and_no_time_in_the_reference_configuration(
    name, request, monkeypatch
):
    result = request.getfixturevalue(name)
    assert result.plot().png().startswith(b"\x89PNG")
    assert result.words() in result.plot().alt
    assert "<img" in result.to_html()
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    assert not re.search(r"\d ms|\d s\b|busy", str(result))


def test_the_main_rank_s_running_mean_is_of_its_own_samples_alone():
    """What chapter 02 shows in a cell: of samples 0 to 7 on 4 ranks, 0.5 and not 3.5."""
    means = dc.launch(_running_mean, ranks=4, device="cpu", everything=True)
    assert means == [[0.5], [], [], []]


def _running_mean():
    import torch
    import torch.distributed as dist

    from dpcourse.scratch.star_parallel import StarParallel

    samples = torch.arange(2.0 * dist.get_world_size()).view(-1, 1)
    module = StarParallel(torch.nn.BatchNorm1d(1, momentum=1.0), num_samples=2)
    module(samples if module.is_main else samples[:0]).sum().backward()
    module.sum_gradients()
    return module.module.running_mean.tolist()
