"""Does a sum of gradients equal a mean with N times the learning rate? It depends on the optimizer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpcourse.equivalence.training import (
    RECIPES,
    Setting,
    backward,
    clip_gradients,
    flat,
    on_ranks,
    start_alike,
    trajectories,
)
from dpcourse.equivalence.values import move_difference, share_text
from dpcourse.tables import Table

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

RANKS, SAMPLES_PER_RANK, STEPS = 4, 8, 25
# Rounding, and the small constants that Adam and the clip add to what they divide by, leave less than 0.0001.
SAME = 1e-3


def sum_or_mean() -> Table:
    """Train each optimizer on 4 ranks with sums, with means, and with means at 4 times the learning rate.

    A sum is N times the mean. Plain SGD moves by rate x gradient: N x gradient is N x rate. With decay it
    moves by rate x (gradient + decay x weight): N x rate scales the decay too, a sum does not. Adam divides
    by the gradient's own size and a clip sets its length: both cancel a factor of N, unless the decay was
    added to the gradient before. The chapter on data parallelism (section 2) has the first case alone.
    """
    settings = [setting for name in RECIPES for setting in _settings(name)]
    runs = iter(trajectories(settings, on_ranks(_train_in_step, settings, ranks=RANKS)))
    rows = []
    for name, summed, mean, faster in zip(RECIPES, runs, runs, runs, strict=False):
        sizes = move_difference(summed, mean), move_difference(summed, faster)
        rows.append((name, *map(share_text, sizes), verdict_of(*sizes)))
    columns = ("optimizer", "from the mean", f"from the mean at {RANKS} times the rate", "a sum is like")
    caption = f"How far {STEPS} steps with sums on {RANKS} ranks end, as a share of the way moved"
    return Table(columns, rows, caption)


def _settings(name: str) -> list[Setting]:
    mean = Setting((SAMPLES_PER_RANK,) * RANKS, STEPS, name, RECIPES[name].learning_rate)
    return [
        replace(mean, combine="sum"),
        mean,
        replace(mean, learning_rate=RANKS * mean.learning_rate),
    ]


def verdict_of(from_mean: float, from_faster: float) -> str:
    """Say in words which of the two a sum equals."""
    if from_mean < SAME:
        return "the mean"
    return f"{RANKS} times the rate" if from_faster < SAME else "neither"


# --- in a rank ---


def _train_in_step(settings: list[Setting]) -> list[dict[str, Any]]:
    """Train all settings side by side: one all-reduce a step carries every run's gradients, to be quick."""
    import torch

    runs = [(setting, *start_alike(setting)) for setting in settings]
    losses: list[list[float]] = [[] for _ in runs]
    starts = [flat(model) for _, model, _ in runs]
    for step in range(STEPS):
        for own, (setting, model, _) in zip(losses, runs, strict=True):
            own.append(backward(setting, model, step))
        _sum_in_one_call([gradient for _, model, _ in runs for gradient in _gradients(model)])
        for setting, model, optimizer in runs:
            _update(setting, model, optimizer)
    ends = [flat(model) for _, model, _ in runs]
    return [
        {"losses": own, "parameters": torch.stack(both)}
        for own, *both in zip(losses, starts, ends, strict=True)
    ]


def _gradients(model: "nn.Module") -> "list[Tensor]":
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _sum_in_one_call(gradients: "Sequence[Tensor]") -> None:
    import torch
    import torch.distributed as dist

    together = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(together)
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, summed in zip(gradients, together.split(sizes), strict=True):
        gradient.copy_(summed.view_as(gradient))


def _update(setting: Setting, model: "nn.Module", optimizer: "Optimizer") -> None:
    if setting.combine == "mean":
        for gradient in _gradients(model):
            gradient /= RANKS
    clip_gradients(setting, model)
    optimizer.step()
    optimizer.zero_grad()
