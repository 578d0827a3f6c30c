"""Four ways to average gradients on one link, from the naive one to buckets that travel during backward."""

from dataclasses import dataclass
from statistics import median
from typing import Any

from dpcourse.experiments.base import Experiment, emulated, off_text, paced_text, stable_table
from dpcourse.experiments.steps import Cases, Step, steps_of
from dpcourse.models import Mlp
from dpcourse.ranks.cluster import Cluster
from dpcourse.ranks.links import Links
from dpcourse.tables import Table, seconds_text

MODEL = Mlp(features=64, width=128, depth=16)  # 1.0 MB of gradients
PACE = "2ms"
BUCKET_CAP_MB = 0.25


@dataclass(frozen=True, repr=False)
class OverlapRuns(Experiment):
    """DDP in ever better ways on one link: how much is hidden, how far each is from what it cannot beat."""

    links: Links
    pace_compute: str | None
    steps: tuple[Step, ...]

    @property
    def title(self) -> str:
        return f"Ways to average gradients: {self.links}{paced_text(self.pace_compute)}"

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)

    @property
    def bound_seconds(self) -> float:
        """No way is faster than its computation, nor than its communication, and both are alike for all.

        Computation is the median over the ways, since a busy core makes some of them seem longer.
        """
        computation = median(step.compute_seconds for step in self.steps)
        return max(computation, min(step.least_communication_seconds for step in self.steps))

    def over_bound(self, step: Step) -> float:
        """How much longer than that a way takes: 0.25 is a quarter longer."""
        return step.seconds / self.bound_seconds - 1

    def table(self) -> Table:
        columns = ["way", "collectives", "computes", "communicates", "hidden", "step", "over the bound"]
        return stable_table([*columns, "model", "off"], map(self._row, self.steps), 2, self.title)

    def _row(self, step: Step) -> list[Any]:
        return [
            step.name,
            step.num_collectives,
            seconds_text(step.compute_seconds),
            seconds_text(step.communication_seconds),
            f"{step.hidden_share:.0%}",
            seconds_text(step.seconds),
            f"{self.over_bound(step):+.0%}",
            seconds_text(step.predicted_seconds),
            off_text(step.seconds, step.predicted_seconds),
        ]

    def words(self) -> str:
        first, last = self.steps[0], self.steps[-1]
        return (
            f"The bound, {seconds_text(self.bound_seconds)}, is the longer of computation and of what the "
            f"bytes take on the link. From {first.name}, {self.over_bound(first):.0%} over it, to "
            f"{last.name}, {self.over_bound(last):.0%} over it, with {last.hidden_share:.0%} of the "
            "communication hidden."
        )

    def plot(self) -> Any:
        """Draw each way's step solid, what it cannot beat as an outline, and the share that is hidden."""
        from dpcourse.figures import overlap_bars

        return overlap_bars(self)


def overlap(
    cluster: Cluster | None = None,
    model: Any = MODEL,
    pace_compute: str | None = PACE,
    bucket_cap_mb: float = BUCKET_CAP_MB,
    steps: int = 4,
) -> OverlapRuns:
    """Train with four ways to average gradients, and with torch's own DDP, on one link.

    Args:
        cluster: emulated hosts; None for two of one rank each with 100 Mbit/s between them.
        model: a name or a configuration.
        pace_compute: how long each layer computes in forward, which is half of its time in backward.
        bucket_cap_mb: of the ways that have buckets.
        steps: bare steps, for the time.
    """
    cluster, links = emulated(cluster, hosts=2, ranks_per_host=1, inter="100mbit")
    made = steps_of(cases(bucket_cap_mb), cluster, model=model, pace_compute=pace_compute, steps=steps)
    return OverlapRuns(links, pace_compute, made)


def cases(bucket_cap_mb: float) -> Cases:
    """Name the ways: one message a parameter, one for all, buckets that backward waits for, and that it
    does not wait for."""
    cap = {"bucket_cap_mb": bucket_cap_mb}
    return {
        "naive": ("scratch-naive-ddp", {}),
        "flat": ("scratch-flat-ddp", {}),
        "buckets, waiting": ("ddp", {**cap, "hook": "ring"}),
        "buckets, overlapped": ("scratch-ddp", cap),
        "torch's DDP": ("ddp", cap),
    }
