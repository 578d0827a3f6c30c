"""The scratch FSDP with and without prefetch: is the next unit gathered while one computes, or after it?"""

from dataclasses import dataclass
from typing import Any

from dpcourse.experiments.base import Experiment, emulated, off_text, paced_text, stable_table
from dpcourse.experiments.steps import Cases, Step, steps_of
from dpcourse.models import Mlp
from dpcourse.ranks.cluster import Cluster
from dpcourse.ranks.links import Links
from dpcourse.tables import Table, bytes_text, seconds_text

MODEL = Mlp(features=256, width=256, depth=5)  # a unit takes 11 ms to gather at 100 Mbit/s
PACE = "10ms"
ON, OFF = "prefetch", "no prefetch"
CASES: Cases = {OFF: ("scratch-fsdp", {"prefetch": False}), ON: ("scratch-fsdp", {"prefetch": True})}


@dataclass(frozen=True, repr=False)
class PrefetchRuns(Experiment):
    """Two runs that make the same collectives, one of them ahead of time."""

    links: Links
    pace_compute: str | None
    on: Step
    off: Step

    @property
    def gain(self) -> float:
        """How many times as long a step takes without prefetch."""
        return self.off.seconds / self.on.seconds

    @property
    def title(self) -> str:
        return f"Prefetch in the scratch FSDP: {self.links}{paced_text(self.pace_compute)}"

    def table(self) -> Table:
        columns = ["run", "collectives", "expected across", "across", "computes", "communicates", "hidden"]
        rows = map(_row, (self.off, self.on))
        return stable_table([*columns, "step", "model", "off"], rows, 3, self.title)

    def words(self) -> str:
        predicted = self.off.predicted_seconds / self.on.predicted_seconds
        return (
            f"Without prefetch a step takes {self.gain:.2f} times as long (by the model {predicted:.2f} "
            f"times). The bytes are the same; hidden are {self.off.hidden_share:.0%} without and "
            f"{self.on.hidden_share:.0%} with."
        )

    def plot(self) -> Any:
        """Draw both steps solid, the model's as outlines, and the share that is hidden."""
        from dpcourse.figures import prefetch_bars

        return prefetch_bars(self)


def _row(step: Step) -> list[Any]:
    across = (step.expected_between_hosts_bytes, step.between_hosts_bytes)
    return [
        step.name,
        step.num_collectives,
        *(None if num_bytes is None else bytes_text(num_bytes) for num_bytes in across),
        seconds_text(step.compute_seconds),
        seconds_text(step.communication_seconds),
        f"{step.hidden_share:.0%}",
        seconds_text(step.seconds),
        seconds_text(step.predicted_seconds),
        off_text(step.seconds, step.predicted_seconds),
    ]


def prefetch(
    cluster: Cluster | None = None, model: Any = MODEL, pace_compute: str | None = PACE, steps: int = 4
) -> PrefetchRuns:
    """Train with the scratch FSDP with prefetch and without it.

    Args:
        cluster: emulated hosts; None for two of one rank each with 100 Mbit/s between them.
        model: a name or a configuration, in units of repeated blocks.
        pace_compute: how long each layer computes in forward, which is half of its time in backward.
        steps: bare steps, for the time.
    """
    cluster, links = emulated(cluster, hosts=2, ranks_per_host=1, inter="100mbit")
    off, on = steps_of(CASES, cluster, model=model, pace_compute=pace_compute, steps=steps)
    return PrefetchRuns(links, pace_compute, on, off)
