"""The parallel run beside the plain run: the parameters after every step on every rank, and every loss."""

from functools import cache
from statistics import fmean

import torch

import dpcourse as dc
from dpcourse.models import GptSmall, Mlp
from dpcourse.request import make_request
from dpcourse.trainer import Trainer

STEPS = 4
# Averages of shares and the average of all differ in the last bits: about 1e-7 of a gradient of size 1, times
# the learning rate (0.01), the steps and what momentum adds up. A missing average moves weights by 1e-3.
WEIGHT_TOLERANCE, LOSS_TOLERANCE = 1e-6, 1e-5

SMALL = Mlp(features=12, width=40, depth=2, classes=5)
SMALL_GPT = GptSmall(vocabulary=30, context=8, width=16, heads=2, depth=2)


def trained(request):
    """After each step, all parameters of this rank as one fp32 vector in order of names; and the losses."""
    trainer, losses, weights = Trainer(request), [], []
    for _ in range(STEPS):
        losses.append(trainer.step())
        whole = trainer.strategy.whole_parameters(trainer.wrapped)
        weights.append(torch.cat([whole[name].float().flatten() for name in sorted(whole)]))
    return torch.stack(weights), losses


def train_on(
    strategy,
    ranks,
    model=SMALL,
    batch=None,
    optimizer="momentum",
    recipe="fp32",
    backend="gloo",
    batch_size=8,
    **options,
):
    request = make_request(
        strategy,
        options,
        model,
        batch,
        ranks,
        batch_size=batch_size,
        optimizer=optimizer,
        recipe=recipe,
    ).placed_on("cpu", backend)
    return dc.launch(trained, request, ranks=ranks, everything=True, backend=backend)


@cache
def trained_alone(model=SMALL, batch=None, batch_size=8):
    """What one rank alone makes of a model: trained once for all tests that compare with it."""
    return train_on("single", 1, model, batch, batch_size=batch_size)


def distance(results, alone):
    """The largest difference of a parameter on any rank after any step, and of a step's mean loss."""
    weights, losses = alone[0]
    mean_losses = [
        fmean(x for x in step if x is not None) for step in zip(*(r[1] for r in results), strict=True)
    ]
    return (
        max((rank_weights - weights).abs().max().item() for rank_weights, _ in results),
        (torch.tensor(mean_losses) - torch.tensor(losses)).abs().max().item(),
    )
