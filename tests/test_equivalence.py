"""The experiments of notebook 01: each claim, and beside it the wrong thing that the same check catches."""

import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from dpcourse import equivalence as eq
from dpcourse.equivalence import optimizers, training, weighting
from dpcourse.equivalence.speedup import Pace
from dpcourse.equivalence.values import ROUNDING, share_text
from dpcourse.show import REFERENCE_VARIABLE
from dpcourse.tables import Table


@pytest.fixture(autouse=True)
def _usual_display(monkeypatch):
    monkeypatch.delenv(REFERENCE_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def alone():
    return eq.train(ranks=1)


def column(table, name):
    return [row[list(table.columns).index(name)] for row in table.rows]


# --- one rank and N ---


@pytest.mark.parametrize("optimizer", training.RECIPES)
def test_four_ranks_equal_one_step_by_step_with_every_optimizer(optimizer):
    one, four = (eq.train(ranks=ranks, optimizer=optimizer) for ranks in (1, 4))
    found = eq.difference(one, four)
    assert found.is_rounding, found
    assert max(found.losses) < ROUNDING
    assert eq.move_difference(four, one) < 10 * ROUNDING
    assert np.linalg.norm(one.move) > 0.1  # it trained: two runs that stand still would be equal too
    assert one.losses[-1] < 0.95 * one.losses[0]


def test_replicas_stay_equal_bit_for_bit_though_each_began_with_weights_of_its_own():
    assert eq.replicas_drift(combine="mean", steps=5).verdict == "equal bit for bit"


@pytest.mark.parametrize(
    "wrong",
    [{"combine": "sum"}, {"combine": "none"}, {"seed": 1}, {"learning_rate": 0.11}],
    ids=lambda options: next(iter(options)),
)
def test_a_run_that_is_not_the_same_is_called_different(wrong, alone):
    found = eq.difference(alone, eq.train(ranks=2, **wrong))
    assert found.verdict == "different"
    assert found.largest > 1000 * ROUNDING


def test_a_trajectory_holds_losses_and_parameters_of_every_step(alone):
    num_parameters = 16 * 32 + 32 + 32 * 4 + 4
    assert [array.shape for array in alone.parameters] == [(num_parameters,)] * 21
    assert len(alone.losses) == 20
    assert alone.ranks == 1
    found = eq.difference(alone, alone)
    assert found.steps == tuple(range(21))
    assert len(found.parameters) == 21
    assert len(found.losses) == 20
    assert found.largest == 0
    assert found.verdict == "equal bit for bit"


def test_the_loss_is_that_of_the_global_batch_however_it_is_split(alone):
    uneven = eq.train(ranks=2, steps=1, split=[31, 1])
    assert uneven.losses[0] == pytest.approx(alone.losses[0], abs=ROUNDING)


# --- sums and means ---


@pytest.fixture(scope="module")
def sums():
    """For each optimizer: how far a sum ends from the mean and from the mean at four times the rate, and the
    norm of the weights at the start as a multiple of the way moved at four times the rate."""
    settings = [setting for name in training.RECIPES for setting in optimizers._settings(name)]
    results = training.on_ranks(optimizers._train_in_step, settings, ranks=4)
    runs = iter(training.trajectories(settings, results))
    return {
        name: (
            eq.move_difference(summed, mean),
            eq.move_difference(summed, faster),
            np.linalg.norm(faster.parameters[0]) / np.linalg.norm(faster.move),
        )
        for name, summed, mean, faster in zip(training.RECIPES, runs, runs, runs, strict=False)
    }


def test_a_sum_is_four_times_the_rate_bit_for_bit_in_plain_sgd_alone(sums):
    # Four is a power of two: (4 r) (s / 4) and r s round alike.
    assert [name for name, (_, from_faster, _) in sums.items() if from_faster == 0] == ["sgd"]
    assert sums["sgd"][0] > 0.3


def test_decay_takes_part_of_the_factor(sums):
    """At 4 times the rate the decay takes 3 x rate x decay x steps more of the weights than with a sum; the
    gradients give part of it back."""
    _, from_faster, weights = sums["sgd-decay"]
    most = 3 * 0.1 * 0.01 * optimizers.STEPS * weights
    assert most / 2 < from_faster < most


def test_adamw_and_a_clip_take_a_sum_for_a_mean_and_adam_with_l2_does_not(sums):
    assert sums["adamw"][0] < 1e-4  # Adam's epsilon, 1e-8, beside gradients of 1e-3
    assert sums["sgd-clip"][0] < 1e-5  # the clip's epsilon, 1e-6, beside a norm of 0.2 or more
    # Clipped, each step has the length of the rate: at four times the rate it is 3/4 off.
    assert sums["sgd-clip"][1] == pytest.approx(0.75, abs=0.02)
    assert sums["adamw"][1] > 0.3
    assert 0.05 < sums["adam-l2"][0] < 0.5
    assert sums["adam-l2"][1] > 0.3


def test_runs_side_by_side_are_the_runs_one_by_one():
    setting = optimizers._settings("adam-l2")[0]
    (beside,) = training.trajectories(
        [setting], training.on_ranks(optimizers._train_in_step, [setting], ranks=4)
    )
    (by_itself,) = training.run([setting])
    assert np.abs(beside.move - by_itself.move).max() < ROUNDING


def test_the_table_of_sums_says_it_in_words():
    table = eq.sum_or_mean()
    assert column(table, "optimizer") == list(training.RECIPES)
    verdicts = ["4 times the rate", "neither", "the mean", "neither", "the mean"]
    assert column(table, "a sum is like") == verdicts


@pytest.mark.parametrize(
    ("sizes", "verdict"),
    [((0.5, 0.0), "4 times the rate"), ((1e-5, 0.6), "the mean"), ((0.5, 0.002), "neither")],
)
def test_a_verdict_follows_from_the_numbers(sizes, verdict):
    assert optimizers.verdict_of(*sizes) == verdict


# --- unequal shares ---


def gradient_by_hand(inputs, targets):
    """The gradient of one share, worked out in this process."""
    torch.manual_seed(0)
    model = training.build("mlp")
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).numpy()


def test_the_mean_of_means_of_unequal_shares_is_off_by_what_arithmetic_says():
    sizes = [10, 10, 10, 2]
    inputs, targets = weighting.data.classified_points(32, training.FEATURES, training.CLASSES, seed=0)
    shares = [
        gradient_by_hand(*share) for share in zip(inputs.split(sizes), targets.split(sizes), strict=True)
    ]
    whole = np.average(shares, axis=0, weights=sizes)
    found = training.on_ranks(weighting._weigh_shares, sizes, ranks=4)
    for result in found:
        assert result["whole"]["gradient"] == pytest.approx(whole, abs=ROUNDING)
        assert result["terms"]["gradient"] == pytest.approx(whole, abs=ROUNDING)
        assert result["ranks"]["gradient"] == pytest.approx(np.mean(shares, axis=0), abs=ROUNDING)
    error = np.linalg.norm(np.mean(shares, axis=0) - whole) / np.linalg.norm(whole)
    assert error > 0.2
    assert column(eq.uneven_batches(sizes), "gradient")[0] == share_text(error)


def test_equal_shares_are_right_either_way():
    equal = eq.uneven_batches((4, 4))
    assert all("%" not in text for text in column(equal, "gradient"))  # powers of ten below 1e-6
    assert "%" in column(eq.uneven_batches((7, 1)), "gradient")[0]


def test_training_on_unequal_shares_needs_weights(alone):
    split = (10, 10, 10, 2)
    by_samples = eq.difference(alone, eq.train(ranks=4, split=split, weighting="samples"))
    by_ranks = eq.difference(alone, eq.train(ranks=4, split=split, weighting="ranks"))
    assert by_samples.is_rounding
    assert by_ranks.largest > 1000 * ROUNDING


def test_a_padded_sequence_makes_gradients_wrong_while_the_loss_hardly_moves():
    lengths = (24, 8, 1)
    results = training.on_ranks(weighting._weigh_sequences, list(lengths), 32, ranks=2)[0]
    for length, found in zip(lengths, results, strict=True):
        whole, means, tokens = (found[name] for name in ("whole", "ranks", "terms"))
        size = np.linalg.norm(whole["gradient"])
        error = np.linalg.norm(means["gradient"] - whole["gradient"]) / size
        independent = (32 - length) / (2 * math.sqrt(32 * length))
        assert error == pytest.approx(independent, rel=0.2)
        assert np.linalg.norm(tokens["gradient"] - whole["gradient"]) / size < ROUNDING
        assert abs(means["loss"] / whole["loss"] - 1) < 0.02
        assert tokens["loss"] == pytest.approx(whole["loss"], rel=ROUNDING)


def test_full_sequences_are_right_either_way():
    table = eq.token_weighted(lengths=(32, 8))
    assert "%" not in column(table, "gradient, mean of means")[0]
    assert column(table, "expected") == ["0", "75 %"]
    assert column(table, "gradient, mean of means")[1].endswith(" %")


def test_split_error_is_arithmetic():
    assert eq.split_error(4, (8, 8, 8, 8)).error < 1e-12
    assert eq.split_error(1, (32,)).error == 0
    uneven = eq.split_error(4, (10, 10, 10, 2))
    assert uneven.error > 0.1
    assert uneven.weights == (1.25, 1.25, 1.25, 0.25)
    assert str(uneven).startswith("10 + 10 + 10 + 2: the mean of means is ")
    assert str(eq.split_error(2, (1, 1))) == "1 + 1: the mean of means is the mean of all"


# --- layers, drift, speed ---


def test_batch_norm_and_dropout_break_it_for_real_and_an_mlp_does_not():
    table = eq.layers_that_break_it()
    assert column(table, "model") == ["mlp", "batchnorm", "dropout"]
    assert column(table, "verdict") == ["equal to rounding", "different", "different"]
    assert all(float(text) > 1000 * ROUNDING for text in column(table, "a parameter differs by")[1:])


def test_replicas_that_nobody_averages_drift_apart_from_an_equal_start():
    drift = eq.replicas_drift(ranks=2, steps=10)
    assert drift.parameters[0] == 0
    assert min(drift.parameters[1:]) > 1000 * ROUNDING
    assert column(drift.table(), "after step") == [str(step) for step in range(11)]


def test_a_speed_run_counts_samples_and_times_three_runs():
    found = eq.speed(ranks=2, global_batch=32, steps=2)
    assert [pace.samples_per_rank for pace in (found.alone, found.strong, found.weak)] == [32, 16, 32]
    assert all(pace.step_seconds > 0 for pace in (found.alone, found.strong, found.weak))
    assert column(found.table(), "ranks") == [1, 2, 2]


def test_efficiency_is_the_share_of_the_added_ranks_that_is_real():
    found = eq.SpeedRun(Pace(1, 64, 0.10), Pace(2, 32, 0.0625), Pace(2, 64, 0.125), cores=2)
    assert found.strong.samples_per_second == 1024
    assert found.efficiency(found.strong) == pytest.approx(0.8)
    assert found.efficiency(found.weak) == pytest.approx(0.8)
    assert "80 %" in str(found)
    assert "share a core" in str(eq.SpeedRun(found.alone, found.strong, found.weak, cores=1))


# --- how they show themselves ---


def test_reference_text_holds_verdicts_and_counts_alone(monkeypatch, alone):
    two = eq.train(ranks=2)
    monkeypatch.setenv(REFERENCE_VARIABLE, "1")
    found, different = eq.difference(alone, two), eq.difference(alone, eq.train(ranks=2, combine="sum"))
    title = "1 rank, sgd against 2 ranks, sgd"
    assert str(found) == f"{title}: equal to rounding (no parameter differs by more than 1e-06)"
    assert str(different).endswith("different (a parameter differs by more than 0.001)")
    assert found.table().rows == [(title, "equal to rounding")]
    assert found._repr_html_() is None
    run = eq.SpeedRun(Pace(1, 64, 0.1), Pace(2, 32, 0.05), Pace(2, 64, 0.1), cores=2)
    assert run.table().columns == ("run", "ranks", "samples per rank and step")
    assert "core" not in str(run)
    assert share_text(3e-8) == "below 0.01 %"


def test_values_show_text_and_html(alone):
    found = eq.difference(alone, alone)
    for value in (alone, found, found.table(), eq.split_error(2, (3, 1))):
        assert str(value)
        assert "<" in value._repr_html_()
    assert str(alone).startswith("1 rank, sgd: the loss goes from ")


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0"), (3e-8, "3e-08"), (1.7e-5, "0.0017 %"), (0.0123, "1.2 %"), (0.3, "30 %"), (2.84, "284 %")],
)
def test_shares_are_written_in_percent(share, text):
    assert share_text(share) == text
    assert Table(("a",), [(text,)]).is_numeric() == [True]


def test_a_difference_plots_itself(alone):
    figure = eq.difference(alone, alone).plot()
    assert alone.title in figure._repr_mimebundle_()["text/plain"]


def test_importing_the_experiments_does_not_import_torch():
    code = "import sys; from dpcourse import equivalence; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


# --- refusals: no process is started ---


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: eq.train(optimizer="sdg"), "optimizer='sdg' is not known; choose from sgd, sgd-decay"),
        (lambda: eq.train(combine="avg"), "choose from mean, sum, none"),
        (lambda: eq.train(model="gpt"), "choose from mlp, batchnorm, dropout"),
        (lambda: eq.train(weighting="tokens"), "choose from ranks, samples"),
        (lambda: eq.train(ranks=3), "a global batch of 32 has no equal shares for 3 ranks"),
        (lambda: eq.train(ranks=2, split=(10, 10)), "has 2 shares and 20 samples, for 2 ranks and"),
        (lambda: eq.train(ranks=2, split=(32, 0)), "give one share of at least 1"),
        (lambda: eq.train(ranks=2, steps=0), "steps=0"),
        (lambda: eq.uneven_batches((4, 0)), "a rank without samples has no mean"),
        (lambda: eq.split_error(2, ()), "a rank without samples has no mean"),
        (lambda: eq.split_error(3, (4, 4)), "3 ranks, and sizes for 2"),
        (lambda: eq.token_weighted(lengths=(40,)), "between 1 and full_length"),
        (lambda: eq.token_weighted(full_length=64), "at most 32"),
        (lambda: eq.speed(ranks=1), "compare at least 2 ranks"),
        (lambda: eq.speed(ranks=3, global_batch=64), "a multiple of them"),
        (lambda: eq.replicas_drift(ranks=1), "replicas_drift compares replicas"),
    ],
)
def test_what_cannot_be_run_is_refused_with_what_to_do(call, words, monkeypatch):
    monkeypatch.setattr(training, "launch", None)
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_runs_of_different_lengths_are_not_compared(alone):
    with pytest.raises(ValueError, match="20 steps of 676 parameters and the second 3 steps of 676"):
        eq.difference(alone, eq.train(ranks=1, steps=3))
