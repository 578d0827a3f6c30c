"""Training runs on one link as rows: what each computed, communicated and hid, and what is expected of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpcourse.ledger import COMMUNICATION, total
from dpcourse.ranks.cluster import Cluster
from dpcourse.ranks.progress import with_progress
from dpcourse.theory.schedule import step_seconds
from dpcourse.training import train

Cases = Mapping[str, tuple[str, Mapping[str, Any]]]  # a name, and the strategy with its options


@dataclass(frozen=True)
class Step:
    """One strategy's step on rank 0, times as measured and by the model of the links that were asked for.

    seconds: the median of bare steps. compute_seconds, communication_seconds, hidden_share: of a step under
    the profiler. least_communication_seconds: what the bytes take on links that do nothing else.
    between_hosts_bytes: of host 0.
    """

    name: str
    num_collectives: int
    seconds: float
    predicted_seconds: float
    compute_seconds: float
    communication_seconds: float
    least_communication_seconds: float
    hidden_share: float
    between_hosts_bytes: float | None
    expected_between_hosts_bytes: float | None
    parameter_bytes: int


def steps_of(cases: Cases, cluster: Cluster, **asked: Any) -> tuple[Step, ...]:
    """Train each case on the cluster, `asked` as dc.train takes it."""
    rows = with_progress(list(cases.items()))
    return tuple(
        step_of(name, train(strategy, cluster=cluster, **asked, **options))
        for name, (strategy, options) in rows
    )


def step_of(name: str, run: Any) -> Step:
    """Read a run on emulated hosts as one row."""
    found, predicted = run.timeline.overlap(), run.timeline.predicted()
    return Step(
        name,
        run.traffic.num_collectives(),
        run.median_step_seconds,
        step_seconds(predicted),
        found.computation_seconds,
        found.communication_seconds,
        total(predicted, lane=COMMUNICATION),
        found.hidden_share,
        run.traffic.between_hosts(),
        run.traffic.expected_between_hosts(),
        run.parameter_bytes,
    )
