"""Lab 01, last two questions: what a sum in place of a mean does to a step, by optimizer."""

from collections.abc import Callable
from typing import Any

from dpcourse.labs.values import Number, WrongWay, match, numbers
from dpcourse.ranks.launch import launch
from dpcourse.tables import Table

# --- learning_rate: a number with its derivation ---

GRADIENTS = (1.0, 3.0, 2.0, 6.0)  # one number for each of 4 ranks
RATE = 0.1
_SUM = sum(GRADIENTS)
_MEAN = _SUM / len(GRADIENTS)


def measure_learning_rate(value: Any, ranks: int) -> Table:
    """One SGD step of four real ranks from 0, with the mean at 0.1 and with the sum at the learner's rate."""
    rate = value["learning_rate"]
    rows = [("mean", RATE, _moved_by(RATE, True)), ("sum", rate, _moved_by(rate, False))]
    return Table(
        ("gradients are combined by", "learning rate", "the parameter moves by"), rows, "One step, 4 ranks"
    )


def _moved_by(rate: float, is_mean: bool) -> float:
    own = [(gradient,) for gradient in GRADIENTS]
    moved: float = launch(_sgd_step, rate, is_mean, per_rank=own, ranks=len(own), device="cpu")[0]
    return moved


def _sgd_step(own_gradient: float, rate: float, is_mean: bool) -> float:
    import torch
    import torch.distributed as dist

    parameter, gradient = (
        torch.zeros((), dtype=torch.float64),
        torch.tensor(own_gradient, dtype=torch.float64),
    )
    dist.all_reduce(gradient)
    parameter.grad = gradient / dist.get_world_size() if is_mean else gradient
    torch.optim.SGD([parameter], lr=rate).step()
    return -parameter.item()


LEARNING_RATE = numbers(
    "learning_rate",
    "The learning rate that makes up for a sum",
    points=10,
    minutes=5,
    entry="derivation",
    asked=(
        Number(
            "step_with_mean",
            RATE * _MEAN,
            "The step of plain SGD is the learning rate times the mean of the four gradients.",
        ),
        Number(
            "step_with_sum",
            RATE * _SUM,
            "The step with a sum is the learning rate times the sum of the four gradients.",
        ),
        Number(
            "learning_rate",
            RATE * _MEAN / _SUM,
            "Both steps are right. Which rate, times the sum, gives the step of the mean?",
        ),
    ),
    wrong_ways=(
        WrongWay(
            "mean_and_sum_swapped",
            {"step_with_mean": RATE * _SUM, "step_with_sum": RATE * _MEAN},
            "The step of the mean and the step of the sum stand in each other's place.",
        ),
        WrongWay(
            "multiplied",
            {"learning_rate": RATE * len(GRADIENTS)},
            "The sum is N times the mean, so the rate must become smaller, not larger.",
        ),
        WrongWay("unchanged", {"learning_rate": RATE}, "At the same rate the sum steps N times as far."),
    ),
    measure=measure_learning_rate,
)

# --- optimizers: match ---

DECAY = 0.3
OPTIONS = ("same", "N times the rate", "neither")
EFFECTS = {
    "SGD": "N times the rate",
    "SGD with weight decay": "neither",
    "SGD, clipped at every step": "same",
    "AdamW": "same",
    "Adam with L2 decay": "neither",
}
_HINTS = {
    "SGD": "Plain SGD's step is the rate times the gradient: a factor on the one is a factor on the other.",
    "SGD with weight decay": (
        "The decay is added to the gradient: a sum makes the gradient N times as large, and not the decay."
    ),
    "SGD, clipped at every step": (
        "A clip that always acts keeps the direction and sets the length: a factor is gone."
    ),
    "AdamW": (
        "Adam divides by the gradient's own size, so a factor cancels; AdamW's decay stands outside of that."
    ),
    "Adam with L2 decay": (
        "The decay is added to the gradient before the division: its share shrinks as the gradient grows."
    ),
}


def _optimizers() -> dict[str, Callable[[Any, float], Any]]:
    import torch

    return {
        "SGD": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate),
        "SGD with weight decay": lambda parameters, rate: torch.optim.SGD(
            parameters, lr=rate, weight_decay=DECAY
        ),
        "SGD, clipped at every step": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate),
        "AdamW": lambda parameters, rate: torch.optim.AdamW(parameters, lr=rate, weight_decay=DECAY),
        "Adam with L2 decay": lambda parameters, rate: torch.optim.Adam(
            parameters, lr=rate, weight_decay=DECAY
        ),
    }


def train_under_sum(num_steps: int) -> dict[str, tuple[float, float]]:
    """In a rank: how far a sum ends from the mean, and from the mean at N times the rate, for each optimizer.

    Both as a share of how far training moved. Each rank has its own seeded regression data. All trainings go
    side by side, so that one all-reduce carries the gradients of all.
    """
    import torch
    import torch.distributed as dist

    count, data = dist.get_world_size(), _data(dist.get_rank())
    ways = ((0.03, 1.0), (0.03, 1 / count), (0.03 * count, 1 / count))
    trainings = {name: [_Training(name, rate, factor) for rate, factor in ways] for name in EFFECTS}
    every = [training for three in trainings.values() for training in three]
    for _ in range(num_steps):
        gradients = torch.stack([training.gradient(data) for training in every])
        dist.all_reduce(gradients)
        for training, gradient in zip(every, gradients, strict=True):
            training.step(gradient)
    ends = {name: [training.parameter.detach() for training in three] for name, three in trainings.items()}
    return {
        name: (_distance(summed, mean), _distance(summed, faster))
        for name, (summed, mean, faster) in ends.items()
    }


def _distance(first: Any, second: Any) -> float:
    return float((first - second).norm() / (second - 1.0).norm())


def _data(rank: int) -> Any:
    import torch

    random = torch.Generator().manual_seed(rank)
    return torch.randn(16, 8, generator=random, dtype=torch.float64)


class _Training:
    """Eight weights, all 1 at first, under an optimizer; the sum of gradients is taken times `factor`."""

    def __init__(self, name: str, rate: float, factor: float) -> None:
        import torch

        self.parameter: Any = torch.ones(8, dtype=torch.float64, requires_grad=True)
        self.optimizer = _optimizers()[name]([self.parameter], rate)
        self.factor, self.is_clipped = factor, "clipped" in name

    def gradient(self, inputs: Any) -> Any:
        """This rank's own."""
        import torch

        loss = (inputs @ self.parameter - inputs[:, 0]).square().mean()
        return torch.autograd.grad(loss, self.parameter)[0]

    def step(self, summed: Any) -> None:
        """One step with the gradients' sum."""
        import torch

        self.parameter.grad = summed * self.factor
        if self.is_clipped:
            torch.nn.utils.clip_grad_norm_([self.parameter], 1e-3)
        self.optimizer.step()


def measure_optimizers(value: Any, ranks: int) -> Table:
    """Every optimizer trained for real, with sums and with means, beside what the learner wrote."""
    distances = launch(train_under_sum, 20, ranks=ranks, device="cpu")[0]
    rows = [(name, f"{same:.2%}", f"{faster:.2%}", value[name]) for name, (same, faster) in distances.items()]
    columns = ("optimizer", "from the mean", "from the mean at N times the rate", "you wrote")
    return Table(
        columns, rows, f"20 steps with sums on {ranks} ranks: how far they end, as a share of the way moved"
    )


OPTIMIZERS = match(
    "optimizers",
    "What a sum does to each optimizer",
    points=15,
    minutes=10,
    entry="effects",
    noun="optimizer",
    options=OPTIONS,
    goals=EFFECTS,
    hints=_HINTS,
    measure=measure_optimizers,
)
