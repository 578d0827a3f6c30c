"""A learning-rate range test: one short run whose rate grows at each step, until the loss explodes.

Leslie Smith, Cyclical Learning Rates for Training Neural Networks (2017), section 3.3. Here for several
numbers of ranks, each rank with as many samples: the global batch grows with the ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpcourse.checks import check_count
from dpcourse.experiments.base import Experiment, check_list
from dpcourse.ranks.launch import launch
from dpcourse.ranks.progress import with_progress
from dpcourse.tables import Table

LOWEST, HIGHEST = 1e-3, 1.0
_LOST = 2.0  # times the first loss: nothing more is to be seen


@dataclass(frozen=True)
class Rising:
    """One run: the ranks it had, their global batch, and for each rate the loss before its step."""

    ranks: int
    batch_size: int
    rates: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def best_rate(self) -> float:
        """The rate after which the loss was lowest: above it training gets worse."""
        return self.rates[self.losses.index(min(self.losses))]


@dataclass(frozen=True, repr=False)
class RangeTest(Experiment):
    """Runs with rising rates, one for each number of ranks."""

    runs: tuple[Rising, ...]

    @property
    def growth(self) -> float:
        """The last run's best rate over the first's; the linear rule says: as much as the batch has grown."""
        return self.runs[-1].best_rate / self.runs[0].best_rate

    @property
    def batch_growth(self) -> float:
        return self.runs[-1].batch_size / self.runs[0].batch_size

    def table(self) -> Table:
        columns = ["ranks", "global batch", "lowest loss at rate", "lowest loss"]
        rows = [[r.ranks, r.batch_size, f"{r.best_rate:.3f}", f"{min(r.losses):.2f}"] for r in self.runs]
        return Table(columns, rows, "learning-rate range test: the small GPT, AdamW")

    def words(self) -> str:
        return f"The batch grew {self.batch_growth:g} times, the best rate {self.growth:.1f} times."

    def plot(self) -> Any:
        """Draw the loss against the rate, one line for each global batch."""
        from dpcourse.figures import range_lines

        return range_lines(self)


def range_test(
    ranks: Sequence[int] = (1, 4), samples: int = 16, num_rates: int = 32, device: str | None = None
) -> RangeTest:
    """Let the learning rate of the small GPT rise from 0.001 to 1, on each number of ranks.

    Args:
        ranks: numbers of ranks.
        samples: of each rank.
        num_rates: steps of a run, each with a rate of its own.
        device: as `launch` takes it.
    """
    check_list("ranks", ranks)
    for what, value in (("samples", samples), ("num_rates", num_rates)):
        check_count(what, value)
    if num_rates < 2:
        raise ValueError(f"num_rates={num_rates}: rates that rise are 2 at least")
    rates = rising(num_rates)
    return RangeTest(tuple(_run(count, samples, rates, device) for count in with_progress(ranks)))


def rising(num_rates: int) -> tuple[float, ...]:
    """Rates from the lowest to the highest, each the same number of times the one before."""
    step = math.log(HIGHEST / LOWEST) / (num_rates - 1)
    return tuple(LOWEST * math.exp(step * number) for number in range(num_rates))


def _run(ranks: int, samples: int, rates: tuple[float, ...], device: str | None) -> Rising:
    losses = launch(_train, samples, rates, ranks=ranks, device=device, everything=True)[0]
    return Rising(ranks, ranks * samples, rates[: len(losses)], losses)


# -- in each rank


def _train(samples: int, rates: tuple[float, ...]) -> tuple[float, ...]:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    from dpcourse.data import batch_seed, share_of, token_sequences
    from dpcourse.production import train

    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    torch.set_num_threads(1)  # layers this small lose more to waiting threads than they win
    torch.manual_seed(0)
    model = train.wrap(train.Gpt().to(device), "ddp")
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(1 + dist.get_rank())
    losses: list[float] = []
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        whole = token_sequences(
            samples * dist.get_world_size(), train.CONTEXT, train.VOCABULARY, batch_seed(0, step)
        )
        inputs, targets = (share_of(t, dist.get_rank(), dist.get_world_size()).to(device) for t in whole)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses += train.mean_over_ranks([loss.item()], device)
        if not losses[-1] < _LOST * losses[0]:  # all ranks know the same loss, and stop together
            break
    return tuple(losses)
