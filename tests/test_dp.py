"""The star of nn.DataParallel: equal to one rank alone, everything through the main rank, to the byte."""

import pytest
import torch

import dpcourse as dc
from dpcourse.layout import Layout, Parameter
from dpcourse.ledger import select, sums_by, total
from dpcourse.models import ConvNet, Mlp
from dpcourse.scratch import star
from dpcourse.scratch.star_parallel import StarParallel
from dpcourse.strategies import Setting, find, options_for
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

dp = find("dp")
MILLION = Layout((Parameter("layer.weight", (1000, 1000)),))
CONVNET = ConvNet(image_size=4, channels=(6, 5), classes=3)


def setting(layout=MILLION, world_size=4, **options):
    return Setting(layout, world_size, 16, "adamw", options_for("dp", options))


# -- expected -----------------------------------------------------------


def test_the_main_rank_carries_everything():
    """2(N - 1) models through one link, where a ring sends 2(N - 1)/N from each."""
    for num_ranks in (2, 4, 8):
        expected = dp.expected_traffic(setting(world_size=num_ranks))
        sent = sums_by(expected, "rank", field="sent_bytes")
        assert sent == {0: (num_ranks - 1) * 4_000_000, **dict.fromkeys(range(1, num_ranks), 4_000_000)}


def test_the_main_rank_holds_everything_and_the_others_only_while_they_compute():
    held = sums_by(dp.expected_memory(setting()), "rank", "phase")
    per_parameter = {key: round(size / MILLION.num_params, 2) for key, size in held.items()}
    assert [per_parameter[0, phase] for phase in ("forward", "backward", "step")] == [12, 16, 12]
    assert [per_parameter[3, phase] for phase in ("forward", "backward", "step")] == [4, 0, 0]


# -- on real ranks ------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "model", "batch"),
    [(2, SMALL_GPT, None), (4, SMALL, None), (4, Awkward, awkward_batch)],
    ids=["tied-gpt", "mlp", "tied-frozen-ranks-differ"],
)
def test_dp_equals_one_rank_alone_step_by_step(ranks, model, batch):
    alone = trained_alone(model, batch)
    weights, losses = distance(train_on("dp", ranks, model, batch), alone)
    assert weights < WEIGHT_TOLERANCE
    assert losses < LOSS_TOLERANCE


def test_the_main_rank_s_running_statistics_survive_and_the_others_are_lost():
    results = dc.launch(_statistics, ranks=2, everything=True)
    (first, seen), (second, _) = results
    assert torch.allclose(first, 0.1 * seen[:2].mean(dim=0))  # of its own samples alone
    assert second.numel() == 0


def _statistics():
    inputs = torch.arange(8.0).view(4, 2)
    module = StarParallel(torch.nn.BatchNorm1d(2), num_samples=2)
    output = module(inputs if module.is_main else inputs[:0])
    output.sum().backward()
    module.sum_gradients()
    return module.module.running_mean, inputs


@pytest.mark.parametrize(
    ("ranks", "model", "recipe", "options"),
    [
        (2, SMALL_GPT, "fp32", {"checkpointing": True}),
        (2, CONVNET, "autocast", {}),
        (3, SMALL, "mixed-adam", {"batch_size": 9}),
        (4, Awkward, "bf16", {"optimizer": "momentum"}),
        (1, SMALL, "fp32", {}),
    ],
    ids=["checkpointed", "buffers-autocast", "masters", "own-bf16", "alone"],
)
def test_what_each_rank_holds_and_moves_is_exact(ranks, model, recipe, options):
    batch = awkward_batch if model is Awkward else None
    run = dc.train("dp", model=model, batch=batch, ranks=ranks, recipe=recipe, **options)
    assert run.memory.is_exact(), [str(run.memory.table(rank)) for rank in range(ranks)]
    assert run.traffic.is_exact(), [str(run.traffic.table(rank)) for rank in range(ranks)]
    assert None not in run.losses[0]
    assert run.losses[1:] == [[None] * 3] * (ranks - 1)


def test_the_kernel_counts_what_the_main_rank_sends():
    run = dc.train("dp", model=Mlp(width=300), ranks=4)
    assert run.memory.is_exact()
    expected = [run.traffic.expected_sent_bytes(rank) for rank in range(4)]
    assert expected[0] > 2.9 * expected[1] > 0
    if run.traffic.sent_bytes() is not None:
        assert [run.traffic.sent_bytes(rank) for rank in range(4)] == pytest.approx(expected, rel=0.02)
    unnamed = total(select(run.memory.measured, owner="other", unit="without an owner", phase="step"))
    assert unnamed == 0


def _averaged(self):
    for parameter in self.module.parameters():
        star.reduce(parameter.grad)
        parameter.grad /= 2
    if not self.is_main:
        self._forget()


def _unsummed(self):
    if not self.is_main:
        self._forget()


@pytest.mark.parametrize("mistake", [_averaged, _unsummed])
def test_a_mean_in_place_of_the_sum_or_no_sum_at_all_is_caught(mistake):
    wrong = dc.launch(_trained_with, mistake, ranks=2, everything=True)
    assert distance(wrong, trained_alone())[0] > 100 * WEIGHT_TOLERANCE


def _trained_with(mistake):
    from dpcourse.request import make_request
    from tests.equivalence import (
        SMALL,
    )

    StarParallel.sum_gradients = mistake
    return trained(make_request("dp", {}, SMALL, ranks=2, batch_size=8, optimizer="momentum"))


# -- the real nn.DataParallel -------------------------------------------


def test_threads_of_several_processes_are_refused_before_one_starts(no_process):
    with pytest.raises(
        ValueError, match=r"threads=True drives all GPUs from one process, and 2 ranks.*ranks=1"
    ):
        dc.train("dp", threads=True)


@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="there are GPUs for the threads")
def test_threads_without_two_gpus_are_refused():
    message = r"threads=True needs two GPUs or more .*, and there are \d to use; leave threads out"
    with pytest.raises(ValueError, match=message):
        dp.wrap(torch.nn.Linear(2, 2), setting(world_size=1, threads=True))
    with pytest.raises(ValueError, match=message):
        dc.train("dp", threads=True, ranks=1, device="cpu")


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="nn.DataParallel needs two GPUs")
def test_the_real_data_parallel_equals_one_rank_alone():
    run = dc.train("dp", model=SMALL, ranks=1, device="cuda", threads=True)
    alone = dc.train("single", model=SMALL, device="cuda")
    assert run.mean_losses == pytest.approx(alone.mean_losses, abs=1e-4)
