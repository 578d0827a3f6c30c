"""Sharding over all ranks beside sharding inside each host, where the link between hosts is slow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpcourse.experiments.base import Experiment, check_list, emulated, off_text, stable_table
from dpcourse.experiments.steps import Cases, Step, steps_of
from dpcourse.models import Mlp
from dpcourse.parts.traffic import wire_verdict
from dpcourse.ranks.cluster import Cluster
from dpcourse.ranks.links import Links
from dpcourse.tables import Table, seconds_text

SHAPES = ((2, 2), (2, 4))
MODEL = Mlp(classes=16)  # 566,800 parameters in layers that 8 ranks divide: a ring's pieces are all alike
DDP, FULL, HYBRID = "ddp", "fsdp2, full", "fsdp2, hybrid"


@dataclass(frozen=True)
class OnHosts:
    """The runs on hosts of one shape."""

    links: Links
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return f"{self.links.hosts} x {self.links.ranks_per_host}"

    def step(self, name: str) -> Step:
        return next(step for step in self.steps if step.name == name)

    @property
    def gain(self) -> float:
        """How many times as long a step takes sharded over all ranks as in the hybrid."""
        return self.step(FULL).seconds / self.step(HYBRID).seconds

    @property
    def predicted_gain(self) -> float:
        return self.step(FULL).predicted_seconds / self.step(HYBRID).predicted_seconds


@dataclass(frozen=True, repr=False)
class HybridRuns(Experiment):
    """DDP, full sharding and hybrid sharding on hosts of several shapes: bytes across, and time."""

    shapes: tuple[OnHosts, ...]

    @property
    def title(self) -> str:
        shapes = ", ".join(shape.name for shape in self.shapes)
        return f"What crosses between hosts: {shapes} ranks ({self.shapes[0].links.kind} links)"

    def table(self) -> Table:
        columns = ["hosts", "strategy", "expected across", "across", "verdict", "step", "model", "off"]
        rows = [_row(shape.name, step) for shape in self.shapes for step in shape.steps]
        return stable_table(columns, rows, 3, f"{self.title}; bytes by a card per parameter-byte")

    def words(self) -> str:
        gains = (
            f"on {shape.name} full sharding takes {shape.gain:.1f} times as long as the hybrid (by the model "
            f"{shape.predicted_gain:.1f} times)"
            for shape in self.shapes
        )
        return f"Per step {', '.join(gains)}: {self._reading()}."

    def _reading(self) -> str:
        turned = [shape.name for shape in self.shapes if (shape.gain > 1) != (shape.predicted_gain > 1)]
        if turned:
            where = " and ".join(turned)
            return f"on {where} in the other order than by the model: the cores are busy; run it again"
        return "the hybrid's gathers stay inside the hosts"

    def plot(self) -> Any:
        """Draw what crosses and how long a step takes: measured solid, expected as outlines."""
        from dpcourse.figures import hybrid_bars

        return hybrid_bars(self)


def _row(hosts: str, step: Step) -> list[Any]:
    across, expected = step.between_hosts_bytes, step.expected_between_hosts_bytes
    per_byte = [None if n is None else f"{n / step.parameter_bytes:.3f}" for n in (expected, across)]
    return [
        hosts,
        step.name,
        *per_byte,
        wire_verdict(across, expected or 0.0),
        seconds_text(step.seconds),
        seconds_text(step.predicted_seconds),
        off_text(step.seconds, step.predicted_seconds),
    ]


def hybrid(
    shapes: Sequence[tuple[int, int]] = SHAPES,
    inter: str = "100mbit",
    intra: str | None = None,
    links: str | None = None,
    model: Any = MODEL,
    steps: int = 3,
) -> HybridRuns:
    """Train with DDP, full sharding and hybrid sharding on hosts of each shape.

    Args:
        shapes: hosts and ranks on each.
        inter, intra: the rates between hosts and inside one; links: "kernel", "paced", or None.
        model: a name or a configuration.
        steps: bare steps, for the time.
    """
    check_list("shapes", shapes)
    clusters = [
        emulated(Cluster(hosts=hosts, ranks_per_host=per_host, inter=inter, intra=intra, links=links))
        for hosts, per_host in shapes
    ]
    return HybridRuns(
        tuple(
            OnHosts(network, steps_of(cases(network), cluster, model=model, steps=steps))
            for cluster, network in clusters
        )
    )


def cases(network: Links) -> Cases:
    """Name the strategies; the hybrid shards over the ranks of one host."""
    mesh = (network.hosts, network.ranks_per_host)
    return {DDP: ("ddp", {}), FULL: ("fsdp2", {}), HYBRID: ("fsdp2", {"mesh": mesh})}
