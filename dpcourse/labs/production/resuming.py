"""Script 10: a checkpoint that leaves out the schedule and what each rank draws from."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpcourse.labs.production.inside_rank import as_module, as_tensors, parameters_of
from dpcourse.labs.production.linear import Batch, Linear, make_batch, make_linear, total
from dpcourse.labs.production.outcomes import Outcomes
from dpcourse.labs.production.script import script, short
from dpcourse.labs.question import Case, Finding, Mistake

RATE, MOMENTUM, DECAY, EVERY = 0.125, 0.75, 0.5, 2
SAVED_AT, NUM_STEPS = 3, 7


@dataclass(frozen=True)
class Share:
    """What one rank trains from: weights, its seed, its batches; and what a new process begins with."""

    linear: Linear
    seed: int
    batches: list[Batch]
    fresh: Linear
    fresh_seed: int


@dataclass
class Run:
    """A training that is under way, as the script has it in its hands."""

    model: Any
    optimizer: Any
    scheduler: Any


def _case(random: np.random.Generator, size: int, is_first: bool) -> tuple[Share, ...]:
    linear, fresh, seed = make_linear(random), make_linear(random), int(random.integers(1, 10**6))
    batches = [[make_batch(random, 3) for _ in range(NUM_STEPS)] for _ in range(size)]
    return tuple(
        Share(linear, seed + rank, own, fresh, seed + 10**6 + rank) for rank, own in enumerate(batches)
    )


def call(answer: Callable[..., Any], share: Share) -> dict[str, Any]:
    """In a rank: what it drew, its learning rates and its parameters, once the run goes on."""
    started: list[Run] = []

    def start_again() -> Run:
        started.append(_started(share.fresh, share.fresh_seed))
        return started[-1]

    run = _started(share.linear, share.seed)
    _train(run, share.batches[:SAVED_AT])
    resumed = answer(run, start_again)
    is_new = len(started) == 1 and resumed is started[0] and resumed.model is not run.model
    draws, rates = _train(resumed, share.batches[SAVED_AT:])
    return {"draws": draws, "rates": rates, "is_new": is_new, **parameters_of(resumed.model)}


def _started(linear: Linear, seed: int) -> Run:
    import torch

    model = as_module(linear)
    torch.manual_seed(seed)  # after the model, whose weights are drawn before they are set
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    return Run(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, EVERY, DECAY))


def _train(run: Run, batches: list[Batch]) -> tuple[np.ndarray, np.ndarray]:
    """Train on inputs with a little noise that each rank draws for itself; gives the noise and the rates."""
    import torch
    import torch.distributed as dist

    draws, rates = [], []
    for inputs, targets in as_tensors(batches):
        draws.append(torch.randn_like(inputs))
        rates.append(run.optimizer.param_groups[0]["lr"])
        run.optimizer.zero_grad()
        torch.nn.functional.mse_loss(run.model(inputs + draws[-1]), targets).backward()
        for parameter in run.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        run.optimizer.step()
        run.scheduler.step()
    return torch.stack(draws).numpy(), np.array(rates)


def judge(case: Case, sent: list[Any]) -> Finding:
    """The resumed run draws, steps and ends as the one that was never stopped."""
    draws, rates = [_draws(share.seed) for share in case.inputs], _rates()
    ends = _end(case, draws).values
    later = [{"draws": own[SAVED_AT:], "rates": np.array(rates[SAVED_AT:]), **ends} for own in draws]
    finding = Outcomes(later).judge(case.title, sent)
    if finding.mistake == "no_answer":
        return finding
    if not all(values["is_new"] for values in sent):
        where = f"{case.title}: what was given back is not the one run that start_again() made"
        return Finding("not_started_again", where, finding.targets)
    mistake = next(_mistakes(case, sent, later), "other") if finding.mistake else ""
    return Finding(mistake, finding.where, finding.targets)


def _mistakes(case: Case, sent: list[Any], goals: list[Any]) -> Iterator[str]:
    """What differs from the undisturbed run, the most telling first."""
    is_drawn = [
        np.array_equal(values["draws"], goal["draws"]) for values, goal in zip(sent, goals, strict=True)
    ]
    has_rates = all(np.allclose(values["rates"], goals[0]["rates"]) for values in sent)
    if not any(is_drawn) and not has_rates:
        yield "both"
    if not has_rates:
        yield "schedule"
    if all(np.array_equal(values["draws"], sent[0]["draws"]) for values in sent):
        yield "one_for_all"
    begun = [_draws(share.seed)[: NUM_STEPS - SAVED_AT] for share in case.inputs]
    if all(np.array_equal(values["draws"], first) for values, first in zip(sent, begun, strict=True)):
        yield "seeded_again"
    if not all(is_drawn):
        yield "random"
    if _has_lost_momentum(case, sent):
        yield "momentum"


def _draws(seed: int) -> np.ndarray:
    """All that a rank of this seed draws in an undisturbed run; no state of this process is touched."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    shape = (3, 3)
    steps = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(NUM_STEPS)]
    return torch.stack(steps).numpy()


def _rates() -> list[float]:
    return [RATE * DECAY ** (step // EVERY) for step in range(NUM_STEPS)]


def _end(case: Case, draws: list[np.ndarray], forgets_momentum: bool = False) -> Linear:
    """The parameters after all steps; without what the momentum held when the run was saved, where asked."""
    linear: Linear = case.inputs[0].linear
    velocity = total([linear], 0.0)
    for step, rate in enumerate(_rates()):
        if forgets_momentum and step == SAVED_AT:
            velocity = total([linear], 0.0)
        noisy = [
            (share.batches[step][0] + own[step], share.batches[step][1])
            for share, own in zip(case.inputs, draws, strict=True)
        ]
        mean = total([linear.gradient(batch) for batch in noisy], 1 / case.world_size)
        velocity = velocity.moved(velocity, MOMENTUM - 1).moved(mean, 1.0)
        linear = linear.moved(velocity, -rate)
    return linear


def _has_lost_momentum(case: Case, sent: list[Any]) -> bool:
    end = _end(case, [_draws(share.seed) for share in case.inputs], forgets_momentum=True)
    return all(np.allclose(values["weight"], end.weight, rtol=1e-10) for values in sent)


def _row(share: Share, values: Any) -> tuple[Any, ...]:
    rates = [" ".join(f"{rate:g}" for rate in numbers) for numbers in (_rates()[SAVED_AT:], values["rates"])]
    return short(_draws(share.seed)[SAVED_AT]), short(values["draws"]), *rates


_BROKEN = """\
def stop_and_resume(run, start_again):
    saved = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
    new = start_again()
    new.model.load_state_dict(saved["model"])
    new.optimizer.load_state_dict(saved["optimizer"])
    return new
"""

STOP_AND_RESUME = script(
    "stop_and_resume",
    "A run that goes on",
    minutes=8,
    case=_case,
    call=call,
    judge=judge,
    columns=("next draws, undisturbed", "after resuming", "next rates, undisturbed", "rates after resuming"),
    row=_row,
    broken=_BROKEN,
    mistakes=(
        Mistake(
            "both",
            "Weights and momentum go on, and the run is another one: it draws other numbers, and its"
            " learning rate falls at other steps. Two things are missing in the envelope.",
        ),
        Mistake(
            "schedule",
            "The learning rate falls at the wrong steps: the scheduler counts steps, and begins at 0 again.",
        ),
        Mistake(
            "random",
            "The rates go on, and the ranks draw other numbers than the undisturbed run: each rank's random"
            " state has to be saved, and set after the new process has made its model.",
        ),
        Mistake(
            "seeded_again",
            "The ranks draw the numbers of the first steps once more: seeding again is not going on.",
        ),
        Mistake(
            "one_for_all",
            "All ranks draw the same numbers now: they were given one rank's random state. Each has its own.",
        ),
        Mistake(
            "not_started_again",
            "The run never stopped: its own objects went on. A restarted process has nothing of them but"
            " what was saved; fill the run that start_again() gives, and return it.",
        ),
        Mistake(
            "momentum",
            "Draws and rates go on, and the parameters do not: the optimizer's momentum begins at 0 again.",
        ),
        Mistake(
            "other",
            "The resumed run draws the right numbers at the right rates, and ends elsewhere.",
        ),
    ),
)
