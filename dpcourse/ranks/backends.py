"""What can carry the messages of a run, by name: torch's own backends, and those of the course."""

from dataclasses import dataclass, replace
from typing import Any

from dpcourse.ranks.cluster import Cluster


@dataclass(frozen=True)
class Backend:
    """A backend by the name that torch.distributed knows it by.

    device: what its ranks compute on; None for either. module: imported in each rank, registers a backend of
    the course's own.
    """

    name: str
    device: str | None
    module: str | None = None


BACKENDS = {
    "gloo": Backend("gloo", "cpu"),
    "nccl": Backend("nccl", "cuda"),
    "ring": Backend("ring", "cpu", "dpcourse.network.ring"),
    "staged": Backend("staged", None, "dpcourse.network.staged"),
}
PACED = "dpcourse.network.paced"  # the ring again, each message held to the links' rate and latency


def device_for(backend: str | None, device: str | None) -> str | None:
    """Give the device to ask for: the backend's own where none was asked for.

    Raises ValueError for a backend that does not exist, or that does not go with the device.
    """
    if backend is None:
        return device
    if backend not in BACKENDS:
        raise ValueError(
            f"no backend is called {backend!r}; there is {', '.join(BACKENDS)}, or None for the device's own"
        )
    wanted = BACKENDS[backend].device
    if wanted is None:
        return device
    if device not in (None, wanted):
        raise ValueError(
            f"backend={backend!r} joins ranks on {wanted!r}, and device={device!r} was asked for; "
            "leave one of the two out"
        )
    return wanted


def find(backend: str | None, cluster: Cluster) -> Backend:
    """Give the backend that was asked for, or the cluster's own.

    Paced links are a ring of the course's own, and ranks that share GPUs talk through host memory.
    Raises ValueError for one that the cluster's links cannot carry.
    """
    if cluster.share and backend not in (None, "staged"):
        raise ValueError(
            f"backend={backend!r} was asked for on a cluster with share=True, whose ranks talk through host "
            'memory (NCCL refuses two on one GPU); leave backend out, or say "staged"'
        )
    if cluster.share:
        return BACKENDS["staged"]
    if cluster.network is None or cluster.network.kind != "paced":
        return BACKENDS[backend or ("nccl" if cluster.chosen_device == "cuda" else "gloo")]
    if backend not in (None, "ring"):
        raise ValueError(
            f"backend={backend!r} was asked for on paced links, which hold the messages of the course's own "
            'ring; leave backend out, or ask for links="kernel"'
        )
    return replace(BACKENDS["ring"], module=PACED)


def place(
    cluster: Cluster | None, ranks: int | None, device: str | None, backend: str | None
) -> tuple[Cluster, Backend]:
    """Find where a run takes place and what carries its messages: a cluster, or `ranks` of this machine.

    Raises ValueError or TypeError for what is not there, and for two answers that do not agree.
    """
    check_cluster(cluster)
    if cluster is None:
        cluster = Cluster(ranks=ranks, device=device_for(backend, device), share=backend == "staged")
    _check_agrees(cluster, ranks, device_for(backend, device))
    return cluster, find(backend, cluster)


def check_cluster(asked: Any) -> None:
    """Refuse what is no cluster."""
    if asked is not None and not isinstance(asked, Cluster):
        raise TypeError(f"cluster={asked!r}: give one, such as dc.Cluster(hosts=2, ranks_per_host=2)")


def _check_agrees(cluster: Cluster, ranks: int | None, device: str | None) -> None:
    for what, asked, there in (
        ("ranks", ranks, cluster.num_ranks),
        ("device", device, cluster.chosen_device),
    ):
        if asked not in (None, there):
            raise ValueError(f"{what}={asked!r} was asked for, and the cluster has {there!r}; leave it out")
