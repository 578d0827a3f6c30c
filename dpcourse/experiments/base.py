"""What the experiments on links have in common: hosts to run on, and how a result shows itself."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dpcourse.checks import check_count
from dpcourse.ranks.backends import check_cluster
from dpcourse.ranks.cluster import Cluster
from dpcourse.ranks.links import Links
from dpcourse.run import Run
from dpcourse.show import Shown, is_reference
from dpcourse.tables import Table, seconds_text
from dpcourse.theory.states import FP32_BYTES


class Experiment(Shown):
    """A result as plain rows: it shows its table, its figure and what both say."""

    def table(self) -> Table:
        raise NotImplementedError

    def plot(self) -> Any:
        raise NotImplementedError

    def words(self) -> str:
        """Say in a sentence or two what came out."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.table()) if is_reference() else f"{self.table()}\n{self.words()}"

    def to_html(self) -> str:
        return f"{self.table().to_html()}{self.plot().to_html()}<p>{self.words()}</p>"


def stable_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], num_stable: int, caption: str
) -> Table:
    """Lay out rows; the reference configuration keeps the first columns, which no clock has a part in."""
    kept = num_stable if is_reference() else len(columns)
    return Table(columns[:kept], [row[:kept] for row in rows], caption)


def emulated(cluster: Cluster | None, **asked: Any) -> tuple[Cluster, Links]:
    """Give a cluster of several emulated hosts, one made as `asked` where none is given, and its links.

    Raises ValueError for a cluster without links between hosts, TypeError for what is no cluster.
    """
    check_cluster(cluster)
    cluster = cluster or Cluster(**asked)
    if cluster.network is None or cluster.network.hosts == 1:
        found = "this machine as it is" if cluster.network is None else "one host"
        raise ValueError(
            f"the experiment is about the link between hosts, and the cluster is {found}; give one such as "
            'dc.Cluster(hosts=2, ranks_per_host=1, inter="200mbit")'
        )
    return cluster, cluster.network


def check_fp32_bytes(what: str, num_bytes: Any) -> None:
    """Refuse a size that is none, or that numbers of fp32 do not fill."""
    check_count(what, num_bytes)
    if num_bytes % FP32_BYTES:
        raise ValueError(
            f"{what} has {num_bytes} bytes, and a number of fp32 has {FP32_BYTES}; "
            f"give multiples of {FP32_BYTES}"
        )


def check_list(what: str, asked: Any) -> None:
    """Refuse a list with nothing in it, and what is no list."""
    if isinstance(asked, str) or not hasattr(asked, "__len__") or not len(asked):
        raise ValueError(f"{what}={asked!r}: give a list of one or more")


def check_named_runs(runs: Any) -> None:
    """Refuse what are no runs under names."""
    if not isinstance(runs, Mapping):
        raise TypeError(f'runs={runs!r}: give each a name, as in {{"DDP": dc.train("ddp")}}')
    for name, run in runs.items():
        if not isinstance(run, Run):
            raise TypeError(f"{name!r} is {run!r}; give a name and what dc.train returned")


def slowest(by_rank: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Of each repeat the slowest rank's time: a collective is over when it is over for all."""
    return tuple(max(times) for times in zip(*by_rank, strict=True))


def off_text(measured: float, expected: float) -> str:
    """Say how far a prediction is from what was measured."""
    return f"{expected / measured - 1:+.0%}"


def spread_text(seconds: Sequence[float]) -> str:
    """Say between what the repeats lay."""
    return f"{seconds_text(min(seconds))} to {seconds_text(max(seconds))}"


def paced_text(pace_compute: str | None) -> str:
    """Say in a title that layers take a fixed time."""
    return f", layers paced to {pace_compute}" if pace_compute else ""
