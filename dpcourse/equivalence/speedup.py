"""What data parallelism buys: the time of a step on 1 rank and on several."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpcourse import data
from dpcourse.equivalence.training import on_ranks
from dpcourse.models import Mlp
from dpcourse.ranks.cluster import attached, cores_per_rank
from dpcourse.show import Shown, is_reference
from dpcourse.tables import Table, seconds_text

# With 512 samples a step of this model costs some 2 x 10^9 operations and moves 2.3 MB, so that
# one core computes for much longer than two ranks talk.
MODEL = Mlp(features=64, width=512, depth=3)
WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Pace:
    """The median time of a step, with so many samples on each of so many ranks."""

    ranks: int
    samples_per_rank: int
    step_seconds: float

    @property
    def samples_per_second(self) -> float:
        return self.ranks * self.samples_per_rank / self.step_seconds


@dataclass(frozen=True, repr=False)
class SpeedRun(Shown):
    """One rank alone; more ranks on the same global batch (strong), and with as large a batch each (weak)."""

    alone: Pace
    strong: Pace
    weak: Pace
    cores: int

    def efficiency(self, pace: Pace) -> float:
        """Say which share of the ranks' added speed is real: 1.0 means N ranks do N times the samples."""
        return pace.samples_per_second / (pace.ranks * self.alone.samples_per_second)

    def table(self) -> Table:
        """The three runs as rows; counts alone in the reference configuration."""
        runs = {"alone": self.alone, "strong scaling": self.strong, "weak scaling": self.weak}
        rows = [
            (name, pace.ranks, pace.samples_per_rank, *([] if is_reference() else self._times(pace)))
            for name, pace in runs.items()
        ]
        counts = ("run", "ranks", "samples per rank and step")
        times = () if is_reference() else ("step", "samples per second", "efficiency")
        return Table((*counts, *times), rows, self._caption())

    def _times(self, pace: Pace) -> list[str]:
        rate = f"{pace.samples_per_second:,.0f}"
        return [seconds_text(pace.step_seconds), rate, f"{100 * self.efficiency(pace):.0f} %"]

    def _caption(self) -> str:
        if is_reference():
            return "Same global batch (strong), same batch per rank (weak)"
        crowd = "; ranks that share a core cannot be faster" if self.cores < self.strong.ranks else ""
        return f"{self.cores} core{'s' if self.cores > 1 else ''} attached, the same threads per rank{crowd}"

    def __str__(self) -> str:
        return str(self.table())

    def to_html(self) -> str:
        return self.table().to_html()


def speed(ranks: int = 2, global_batch: int = 512, steps: int = 8) -> SpeedRun:
    """Time steps on one rank and on several, on the CPU, each rank with as many threads in every run.

    Strong scaling keeps the global batch: a step should take 1/N of the time. Weak scaling keeps each rank's
    batch: a step should take as long, and do N times the samples. The chapter on data parallelism (section 1)
    has both as six teachers who share the marking.
    """
    if ranks < 2 or global_batch % ranks:
        raise ValueError(
            f"ranks={ranks}, global_batch={global_batch}: compare at least 2 ranks, and choose a global "
            "batch that is a multiple of them"
        )
    num_threads, share = cores_per_rank(ranks), global_batch // ranks
    (alone,) = _paces(1, [global_batch], steps, num_threads)
    strong, weak = _paces(ranks, [share, global_batch], steps, num_threads)
    return SpeedRun(alone, strong, weak, attached().cores)


def _paces(ranks: int, batch_sizes: Sequence[int], steps: int, num_threads: int) -> list[Pace]:
    results = on_ranks(_time_steps, list(batch_sizes), steps, num_threads, ranks=ranks)
    # A step is over when its slowest rank is.
    slowest = [[max(step) for step in zip(*own, strict=True)] for own in zip(*results, strict=True)]
    medians = map(statistics.median, slowest)
    return [Pace(ranks, size, seconds) for size, seconds in zip(batch_sizes, medians, strict=True)]


# --- in a rank ---


def _time_steps(batch_sizes: list[int], steps: int, num_threads: int) -> list[list[float]]:
    import torch

    torch.set_num_threads(num_threads)
    return [time_steps(batch_size, steps) for batch_size in batch_sizes]


def time_steps(batch_size: int, steps: int) -> list[float]:
    """In a rank: train on batches of this size, average with the others, and time each step."""
    import time

    import torch
    import torch.distributed as dist

    from dpcourse.modules import loss_of
    from dpcourse.scratch.naive import average_gradients, broadcast_state

    model: Any = MODEL.build(seed=0)
    broadcast_state(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = MODEL.batch(batch_size, data.batch_seed(0, dist.get_rank()))
    seconds = []
    for _ in range(WARM_UP_STEPS + steps):
        start = time.perf_counter()
        loss_of(model(inputs), targets).backward()
        average_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    return seconds[WARM_UP_STEPS:]
