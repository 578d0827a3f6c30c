"""DDP's communication hooks and number formats: exact lists, and the same training within their rounding."""

import pytest
import torch

import dpcourse as dc
from dpcourse import optimizers
from dpcourse.models import ConvNet
from dpcourse.strategies import options_for
from dpcourse.theory.recipes import RECIPES
from tests.equivalence import LOSS_TOLERANCE, SMALL, SMALL_GPT, WEIGHT_TOLERANCE, distance, train_on

BF16_ROUNDING = 2**-8  # half a unit in the last place of 8 bits


@pytest.fixture(scope="module")
def alone():
    return train_on("single", 1)


@pytest.mark.parametrize("hook", ["allreduce", "ring"])
def test_a_hook_that_averages_in_fp32_equals_one_rank_alone(hook):
    together = train_on("ddp", 3, hook=hook, bucket_cap_mb=0.001, batch_size=12)
    weights, losses = distance(together, train_on("single", 1, batch_size=12))
    assert weights < WEIGHT_TOLERANCE
    assert losses < LOSS_TOLERANCE


def test_gradients_that_travel_in_bf16_move_weights_by_its_rounding_and_not_more(alone):
    weights, _ = distance(train_on("ddp", 2, hook="bf16"), alone)
    moved = (alone[0][0][-1] - alone[0][0][0]).abs().max().item()
    assert WEIGHT_TOLERANCE < weights < 2 * BF16_ROUNDING * moved


@pytest.mark.parametrize("hook", ["allreduce", "bf16", "ring"])
def test_a_hook_holds_and_moves_what_is_expected(hook):
    run = dc.train("ddp", model=SMALL_GPT, ranks=3, batch_size=6, hook=hook, bucket_cap_mb=0.01)
    assert run.memory.is_exact(), str(run.memory)
    assert run.traffic.is_exact(), str(run.traffic)
    full = 4 * run.num_params
    assert run.traffic.payload_bytes() == (full // 2 if hook == "bf16" else full)


@pytest.mark.parametrize(
    ("recipe", "each"), [("fp32", 20), ("autocast", 20), ("mixed-adam", 18), ("bf16", 10)]
)
@pytest.mark.parametrize(
    "model", [SMALL, ConvNet(image_size=4, channels=(6, 5), classes=3)], ids=["mlp", "conv"]
)
def test_each_recipe_holds_and_moves_what_is_expected(model, recipe, each):
    """fp32 Adam 4 + 4 + 8, masters 2 + 2 + 12, bf16 2 + 2 + 4; and a bucket of the gradients' format."""
    run = dc.train("ddp", model=model, ranks=2, batch_size=8, recipe=recipe, bucket_cap_mb=0.002)
    assert run.memory.is_exact(), str(run.memory)
    assert run.traffic.is_exact(), str(run.traffic)
    counters = 4 * len(model.layout().trainable) / run.num_params
    assert run.memory.bytes_per_parameter("backward") == pytest.approx(each + counters)


def moved_in_100_steps(recipe):
    """How far a weight of 4 comes down a constant slope, 0.001 a step."""
    recipe = RECIPES[recipe]
    weight = torch.full((1,), 4.0, dtype=getattr(torch, recipe.parameter_dtype)).requires_grad_()
    optimizer = optimizers.build("adam", [weight], recipe)
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        optimizer.zero_grad()
    return 4 - weight.item()


def test_masters_learn_what_bf16_rounds_away():
    """Between 2 and 4 bf16 resolves 1/64: a thousandth is rounded away, a hundred times."""
    assert moved_in_100_steps("fp32") == pytest.approx(0.1, rel=1e-3)
    assert moved_in_100_steps("mixed-adam") == pytest.approx(0.1, abs=1 / 128)
    assert moved_in_100_steps("bf16") == 0


def test_a_hook_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match=r"hook='powersgd': give allreduce, bf16, ring, or None"):
        options_for("ddp", {"hook": "powersgd"})


def test_a_recipe_that_a_strategy_cannot_do_is_refused_with_who_can(monkeypatch):
    with pytest.raises(ValueError, match=r"ddp cannot train with the recipe 'fsdp-mixed'.*it can do fp32"):
        dc.train("ddp", recipe="fsdp-mixed")
