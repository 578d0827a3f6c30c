"""Lab 01, last two questions: what a sum in place of a mean does to a step, by optimizer."""

from collections.abc import Callable
from typing import Any

from dpcourse.labs.question import Finding, Mistake, Target, ValueQuestion
from dpcourse.ranks.launch import launch
from dpcourse.tables import Table

# --- learning_rate: a number with its derivation ---

GRADIENTS = (1.0, 3.0, 2.0, 6.0)  # one number for each of 4 ranks
RATE = 0.1
_MEAN = sum(GRADIENTS) / len(GRADIENTS)
STEPS = {
    "step_with_mean": RATE * _MEAN,
    "step_with_sum": RATE * sum(GRADIENTS),
    "learning_rate": RATE * _MEAN / sum(GRADIENTS),
}
# A tenth of a thousandth: room for rounding to five digits, far from every wrong way to compute it.
RELATIVE_TOLERANCE = 1e-4

LEARNING_RATE_MISTAKES = (
    Mistake("incomplete", "Not answered yet: a value is still missing."),
    Mistake(
        "wrong_type",
        "Write plain numbers, under the names that stand in the stub.",
        "derivation = [0.3, 1.2, 0.025]",
    ),
    Mistake(
        "mean_and_sum_swapped",
        "The step of the mean and the step of the sum stand in each other's place.",
        "derivation = {'step_with_mean': 1.2, 'step_with_sum': 0.3, 'learning_rate': 0.025}",
    ),
    Mistake(
        "multiplied",
        "The sum is N times the mean, so the rate must become smaller, not larger.",
        "derivation = {'step_with_mean': 0.3, 'step_with_sum': 1.2, 'learning_rate': 0.4}",
    ),
    Mistake(
        "unchanged",
        "At the same rate the sum steps N times as far.",
        "derivation = {'step_with_mean': 0.3, 'step_with_sum': 1.2, 'learning_rate': 0.1}",
    ),
    Mistake(
        "step_with_mean",
        "The step of plain SGD is the learning rate times the mean of the four gradients.",
        "derivation = {'step_with_mean': 3.0, 'step_with_sum': 1.2, 'learning_rate': 0.025}",
    ),
    Mistake(
        "step_with_sum",
        "The step with a sum is the learning rate times the sum of the four gradients.",
        "derivation = {'step_with_mean': 0.3, 'step_with_sum': 12.0, 'learning_rate': 0.025}",
    ),
    Mistake(
        "learning_rate",
        "Both steps are right. Which rate, times the sum, gives the step of the mean?",
        "derivation = {'step_with_mean': 0.3, 'step_with_sum': 1.2, 'learning_rate': 0.05}",
    ),
)


def judge_learning_rate(value: Any) -> Finding:
    """Three numbers, each held against its own; the first that is off decides."""
    if problem := _wrong_fields(value, STEPS, (int, float)):
        return problem
    is_right = {name: _is_near(value[name], goal) for name, goal in STEPS.items()}
    targets = tuple(
        Target(name, "see the task", f"{value[name]:g}", is_met) for name, is_met in is_right.items()
    )
    first = next((name for name, is_met in is_right.items() if not is_met), "")
    where = f"{first} is {value[first]:g}" if first else ""
    return Finding(_number_mistake(value, first), where, targets)


def _is_near(number: float, goal: float) -> bool:
    return abs(number - goal) <= RELATIVE_TOLERANCE * abs(goal)


def _number_mistake(value: dict[str, float], first: str) -> str:
    is_swapped = _is_near(value["step_with_mean"], STEPS["step_with_sum"]) and _is_near(
        value["step_with_sum"], STEPS["step_with_mean"]
    )
    if is_swapped:
        return "mean_and_sum_swapped"
    if first == "learning_rate" and _is_near(value[first], RATE * len(GRADIENTS)):
        return "multiplied"
    if first == "learning_rate" and _is_near(value[first], RATE):
        return "unchanged"
    return first


def _wrong_fields(value: Any, names: Any, kinds: tuple[type, ...]) -> Finding | None:
    if type(value) is not dict or set(value) != set(names):
        return Finding("wrong_type", f"expected a dict with {', '.join(names)}")
    missing = [name for name in names if value[name] is None]
    if missing:
        return Finding("incomplete", f"still None: {', '.join(missing)}")
    wrong = [name for name in names if type(value[name]) not in kinds]
    return Finding("wrong_type", f"{wrong[0]} is {str(value[wrong[0]])[:60]}") if wrong else None


def measure_learning_rate(value: Any, ranks: int) -> Table:
    """One SGD step of four real ranks from 0, with the mean at 0.1 and with the sum at the learner's rate."""
    rate = value["learning_rate"]
    rows = [("mean", RATE, _moved_by(RATE, True)), ("sum", rate, _moved_by(rate, False))]
    return Table(
        ("gradients are combined by", "learning rate", "the parameter moves by"), rows, "One step, 4 ranks"
    )


def _moved_by(rate: float, is_mean: bool) -> float:
    own = [(gradient,) for gradient in GRADIENTS]
    moved: float = launch(_sgd_step, rate, is_mean, per_rank=own, ranks=len(own))[0]
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


LEARNING_RATE = ValueQuestion(
    name="learning_rate",
    title="The learning rate that makes up for a sum",
    points=10,
    minutes=5,
    entry="derivation",
    kind="number",
    judge_value=judge_learning_rate,
    measure=measure_learning_rate,
    mistakes=LEARNING_RATE_MISTAKES,
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


def _effects_source(changed: str, effect: str) -> str:
    return f"effects = { ({**EFFECTS, changed: effect})!r}"


OPTIMIZER_MISTAKES = (
    Mistake("incomplete", "Not answered yet: a value is still missing."),
    Mistake(
        "wrong_type",
        "Match each optimizer with one of: " + ", ".join(OPTIONS) + ".",
        _effects_source("SGD", "other"),
    ),
    *(
        Mistake(
            name, hint, _effects_source(name, next(option for option in OPTIONS if option != EFFECTS[name]))
        )
        for name, hint in _HINTS.items()
    ),
)


def judge_optimizers(value: Any) -> Finding:
    """Each optimizer matched with what a sum does to it."""
    if problem := _wrong_fields(value, EFFECTS, (str,)):
        return problem
    unknown = [name for name in EFFECTS if value[name] not in OPTIONS]
    if unknown:
        return Finding("wrong_type", f"{unknown[0]}: {value[unknown[0]][:60]!r} is none of the three")
    wrong = [name for name, effect in EFFECTS.items() if value[name] != effect]
    num_right = len(EFFECTS) - len(wrong)
    targets = (Target("matched", str(len(EFFECTS)), str(num_right), not wrong),)
    return Finding(wrong[0] if wrong else "", f"look again at: {wrong[0]}" if wrong else "", targets)


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

    Both as a share of how far training moved. Each rank has its own seeded regression data.
    """
    import torch.distributed as dist

    world_size, distances = dist.get_world_size(), {}
    for name in EFFECTS:
        summed = _train(name, 0.03, 1.0, num_steps)
        mean = _train(name, 0.03, 1 / world_size, num_steps)
        faster = _train(name, 0.03 * world_size, 1 / world_size, num_steps)
        distances[name] = (_distance(summed, mean), _distance(summed, faster))
    return distances


def _distance(first: Any, second: Any) -> float:
    return float((first - second).norm() / (second - 1.0).norm())


def _train(name: str, rate: float, factor: float, num_steps: int) -> Any:
    import torch
    import torch.distributed as dist

    random = torch.Generator().manual_seed(dist.get_rank())
    inputs = torch.randn(16, 8, generator=random, dtype=torch.float64)
    parameter: Any = torch.ones(8, dtype=torch.float64, requires_grad=True)
    optimizer = _optimizers()[name]([parameter], rate)
    for _ in range(num_steps):
        optimizer.zero_grad()
        (inputs @ parameter - inputs[:, 0]).square().mean().backward()
        dist.all_reduce(parameter.grad)
        parameter.grad *= factor
        if "clipped" in name:
            torch.nn.utils.clip_grad_norm_([parameter], 1e-3)
        optimizer.step()
    return parameter.detach()


def measure_optimizers(value: Any, ranks: int) -> Table:
    """Every optimizer trained for real, with sums and with means, beside what the learner wrote."""
    distances = launch(train_under_sum, 20, ranks=ranks)[0]
    rows = [(name, f"{same:.2%}", f"{faster:.2%}", value[name]) for name, (same, faster) in distances.items()]
    columns = ("optimizer", "from the mean", "from the mean at N times the rate", "you wrote")
    return Table(
        columns, rows, f"20 steps with sums on {ranks} ranks: how far they end, as a share of the way moved"
    )


OPTIMIZERS = ValueQuestion(
    name="optimizers",
    title="What a sum does to each optimizer",
    points=15,
    minutes=10,
    entry="effects",
    kind="match",
    judge_value=judge_optimizers,
    measure=measure_optimizers,
    mistakes=OPTIMIZER_MISTAKES,
)
