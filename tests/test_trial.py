"""The training script on trial: what a kill, a change and a lost checkpoint do; losses beside each other."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from dpcourse import experiments
from dpcourse.experiments.range_test import LOWEST, RangeTest, Rising, rising
from dpcourse.production import checkpoints, trial

SHORT = ("--steps", "6", "--checkpoint-every", "2")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[float, ...]]:
    folder = tmp_path_factory.mktemp("whole") / "gpt"
    return folder, trial.run_script(folder, *SHORT)


# -- the script ---------------------------------------------------------------


@pytest.mark.long
def test_a_rank_killed_under_torchruns_agent_leaves_the_losses_of_the_undisturbed_run(whole, tmp_path):
    killed = trial.run_killed(tmp_path / "gpt", *SHORT, step=5)
    assert killed.failures == ("local rank 1 was killed by SIGKILL",)
    assert killed.said == ("goes on from step_00000004",)
    assert killed.losses == whole[1]
    assert str(killed).endswith("goes on from step_00000004\n6 steps are in the log")


@pytest.mark.long
def test_a_rank_killed_before_the_first_checkpoint_begins_anew(whole, tmp_path):
    killed = trial.run_killed(tmp_path / "gpt", *SHORT, rank=0, step=1)
    assert killed.failures == ("local rank 0 was killed by SIGKILL",)
    assert killed.said == ()
    assert killed.losses == whole[1]


def forget() -> None:
    checkpoints.set_random_states = lambda states: None


@pytest.mark.parametrize(("change", "num_equal"), [(None, 6), (forget, 4)])
def test_a_run_cut_short_goes_on_exactly_unless_a_part_of_the_script_is_changed(
    change: Callable | None, num_equal, whole, tmp_path
):
    folder, losses = whole
    trial.cut_short(folder, tmp_path / "gpt")
    resumed = trial.run_script(tmp_path / "gpt", *SHORT, change=change)
    curves = experiments.loss_curves({"whole": losses, "resumed": resumed})
    assert curves.differences("resumed").count(0) == num_equal
    assert curves.differs_from("resumed") == (None if num_equal == 6 else num_equal + 1)


def never_rebuild_buckets() -> None:
    from dpcourse.production import train

    wrap = functools.partial(train.DistributedDataParallel, find_unused_parameters=True)
    train.DistributedDataParallel = wrap  # type: ignore[misc, assignment]


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "change", "is_exact"),
    [("ddp", None, False), ("ddp", never_rebuild_buckets, True), ("fsdp2", None, True)],
)
def test_on_4_ranks_only_buckets_that_ddp_rebuilds_make_a_resumed_run_differ_in_the_last_bit(
    strategy: str, change: Callable | None, is_exact, tmp_path
):
    options = ("--steps", "12", "--checkpoint-every", "6", "--strategy", strategy)
    whole = trial.run_script(tmp_path / "whole", *options, ranks=4, change=change)
    trial.cut_short(tmp_path / "whole", tmp_path / "resumed")
    resumed = trial.run_script(tmp_path / "resumed", *options, ranks=4, change=change)
    assert (resumed == whole) is is_exact
    assert resumed == pytest.approx(whole, rel=1e-6)


def test_a_run_with_one_checkpoint_cannot_be_cut_short(tmp_path):
    (tmp_path / "step_00000002").mkdir()
    with pytest.raises(ValueError, match="has 1 checkpoints; without its newest, one has to be left"):
        trial.cut_short(tmp_path, tmp_path / "copy")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rank": 2}, "rank=2 was to be killed, and 2 ranks are 0 to 1"),
        ({"step": 6}, "step=6: the run has 6 steps; kill before one from 1 to 5"),
    ],
)
def test_a_kill_that_would_never_come_is_refused(asked, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        trial.run_killed(tmp_path, *SHORT, **{"step": 5, **asked})


# -- losses beside each other -------------------------------------------------


def test_curves_say_which_are_equal_and_from_which_step_the_others_differ():
    curves = experiments.loss_curves({"a": [3.0, 2.0, 1.0], "b": [3.0, 2.0, 1.0], "c": [3.0, 2.5, 1.0]})
    assert [row[1:4] for row in curves.table().rows] == [[3, 3, None], [3, 3, None], [3, 2, 2]]
    assert curves.words() == "Equal to the last bit: b. c: others from step 2 on."
    figure = curves.plot()
    assert "c: others from step 2 on" in figure.alt
    lines = figure.draw().axes[0].lines
    assert [list(line.get_ydata()) for line in lines] == [list(losses) for losses in curves.runs.values()]


@pytest.mark.parametrize("runs", [{}, {"a": []}, {"a": [1.0], "b": [1.0, 2.0]}])
def test_runs_of_unlike_length_are_no_curves(runs):
    with pytest.raises(ValueError, match="losses of runs as long as each other were asked for"):
        experiments.loss_curves(runs)


# -- the range test -----------------------------------------------------------


def found(**best: int) -> RangeTest:
    """Runs whose lowest loss is at the given place among the rates."""
    runs = []
    for number, place in enumerate(best.values(), start=1):
        losses = [5.0 - (step == place) for step in range(7)]
        runs.append(Rising(number, 16 * number, rising(7), tuple(losses)))
    return RangeTest(tuple(runs))


def test_rates_rise_evenly_and_the_best_is_where_the_loss_was_lowest():
    rates = rising(7)
    assert rates == pytest.approx([LOWEST * 10 ** (step / 2) for step in range(7)])
    test = found(one=2, two=4)
    assert test.growth == pytest.approx(10)
    assert test.batch_growth == 2
    assert test.words() == "The batch grew 2 times, the best rate 10.0 times."
    marked = [line.get_xdata()[0] for line in test.plot().draw().axes[0].lines[1::2]]
    assert marked == [rates[2], rates[4]]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"num_rates": 1}, "rates that rise are 2 at least"),
        ({"samples": 0}, "samples=0: give a whole number"),
    ],
)
def test_a_range_test_that_would_show_nothing_is_refused(asked, said):
    with pytest.raises(ValueError, match=said):
        experiments.range_test(**asked)


@pytest.mark.long
def test_a_run_ends_for_all_ranks_where_its_loss_explodes_and_the_same_data_give_the_same_curve():
    test = experiments.range_test((1, 2), samples=8, num_rates=12)
    one, two = test.runs
    assert len(one.losses) <= len(one.rates)
    assert one.losses[0] > min(one.losses) > 0
    assert two.batch_size == 16
    again = experiments.range_test((2,), samples=8, num_rates=12)
    assert again.runs[0] == two
