"""Runs on the same emulated hosts side by side: what their cards carried, what stayed inside and was held."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpcourse.experiments.base import Experiment, check_named_runs, stable_table
from dpcourse.parts.traffic import wire_verdict
from dpcourse.ranks.links import Links
from dpcourse.run import Run
from dpcourse.tables import Table, seconds_text


@dataclass(frozen=True)
class Crossing:
    """One run on hosts, per step and parameter-byte, of the host that sends most.

    across, expected_across: bytes that it sends to other hosts; inside: bytes that its ranks send each other.
    held: bytes of model states that rank 0 holds for each parameter. cable_seconds: how long the expected
    bytes take on the link between hosts, with nothing else to do.
    """

    name: str
    across: float
    expected_across: float
    inside: float
    held: float
    cable_seconds: float
    step_seconds: float
    verdict: str


@dataclass(frozen=True, repr=False)
class Crossings(Experiment):
    """What crosses between hosts in a step of several runs, measured beside expected."""

    links: Links
    rows: tuple[Crossing, ...]

    @property
    def title(self) -> str:
        return f"One step on {self.links}: bytes for each byte of the model"

    def row(self, name: str) -> Crossing:
        return next(row for row in self.rows if row.name == name)

    def table(self) -> Table:
        """Lay out one line a run; the reference configuration leaves out what a clock has a part in."""
        columns = ["strategy", "a card sends", "expected", "verdict", "inside a host", "held a parameter"]
        columns += ["on the cable, at least", "a step took"]
        return stable_table(columns, map(_cells, self.rows), 7, self.title)

    def words(self) -> str:
        """Say which of them uses the cable most and least."""
        most, least = (choose(self.rows, key=lambda row: row.expected_across) for choose in (max, min))
        times = most.expected_across / least.expected_across
        return (
            f"The card sends most with {most.name}, least with {least.name}: {times:.2f} times as much. "
            "A step has more in it than its bytes on the cable: computation, and what is sent inside."
        )

    def plot(self) -> Any:
        """Draw two hosts and the cable between them for each run, as thick as what it carries."""
        from dpcourse.figures import cable_picture

        return cable_picture(self)


def _cells(row: Crossing) -> list[Any]:
    return [
        row.name,
        f"{row.across:.2f}",
        f"{row.expected_across:.2f}",
        row.verdict,
        f"{row.inside:.2f}",
        f"{row.held:.2f}",
        seconds_text(row.cable_seconds),
        seconds_text(row.step_seconds),
    ]


def crossings(runs: Mapping[str, Run]) -> Crossings:
    """Set runs on the same hosts side by side: what crosses the cable, what stays inside, what is held.

    runs: a name for each. Raises ValueError for none, for one without several emulated hosts, and for runs on
    different hosts or links, TypeError for what is no run.
    """
    check_named_runs(runs)
    networks = {name: run.links for name, run in runs.items()}
    for name, links in networks.items():
        if links is None or links.hosts == 1:
            raise ValueError(
                f"{name} ran on no emulated hosts or on one, so that nothing crossed; give dc.train a "
                "cluster such as dc.Cluster(hosts=2, ranks_per_host=2)"
            )
    different = dict.fromkeys(networks.values())
    if len(different) != 1:
        found = "; ".join(f"{name}: {links}" for name, links in networks.items()) or "none"
        raise ValueError(f"runs on the same hosts were asked for, and there are {found}; give one cluster")
    (links,) = different
    assert links is not None
    return Crossings(links, tuple(_crossing(name, run, links) for name, run in runs.items()))


def _crossing(name: str, run: Run, links: Links) -> Crossing:
    hosts, size = range(links.hosts), run.parameter_bytes
    across = max(run.traffic.between_hosts(host) or 0.0 for host in hosts)
    expected = max(run.traffic.expected_between_hosts(host) or 0.0 for host in hosts)
    return Crossing(
        name,
        across / size,
        expected / size,
        max(run.traffic.inside_hosts(host) or 0.0 for host in hosts) / size,
        run.memory.bytes_per_parameter(),
        expected / links.inter.bytes_per_second,
        run.median_step_seconds,
        wire_verdict(across, expected),
    )
