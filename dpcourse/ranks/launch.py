"""Run a function on several ranks at once, from a notebook cell, and get one result from each."""

import functools
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from dpcourse.ranks import backends, meeting, occupied, queueing
from dpcourse.ranks import plain as plain_values
from dpcourse.ranks.cluster import Cluster, cores_per_rank, niceness
from dpcourse.ranks.errors import RankError
from dpcourse.ranks.links import CARD
from dpcourse.ranks.rank import Task, encode
from dpcourse.ranks.sending import dumps
from dpcourse.ranks.session import Session, directory_name

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_LONGEST_SECONDS = 1_000_000
# How many collectives a rank remembers: enough to compare what ranks called, few enough to answer at once.
_RECORDED_CALLS = "400"


def launch(
    function: Callable[..., Any],
    *args: Any,
    ranks: int | None = None,
    cluster: Cluster | None = None,
    deadline_seconds: float = 60.0,
    device: str | None = None,
    backend: str | None = None,
    per_rank: Sequence[Sequence[Any]] | None = None,
    plain: bool = False,
    everything: bool = False,
    env: dict[str, str] | None = None,
    gpus: int | None = None,
    rank_bytes: int = 0,
    **kwargs: Any,
) -> list[Any]:
    """Call `function(*args, **kwargs)` in `ranks` fresh processes that form one process group.

    Inside, `torch.distributed` is ready to use: gloo for CPU tensors, NCCL for GPU tensors. The function
    may come from a cell. What ranks print appears in the cell, marked with the rank.

    In a process that torchrun has started the ranks are there: each calls the function itself, and each has
    all results. A run that passes its deadline there ends the process.

    Args:
        ranks: how many processes; None for as many as there are GPUs, and 2 where there are fewer than two.
        cluster: emulated hosts in place of this machine, such as dc.Cluster(hosts=2, inter="500mbit").
        deadline_seconds: the run ends by then, whatever the ranks do.
        device: "cpu", "cuda", or None: GPUs where there are at least as many as ranks, else CPU.
        backend: what carries the messages: "gloo", "nccl", "ring" (the course's own, on CPU), "staged" (ranks
            share GPUs, their messages go through host memory), or None for gloo on CPU, NCCL on GPUs, and the
            ring on paced links.
        per_rank: for each rank, arguments of its own that come before `args`; no rank sees another's.
        plain: results come back as JSON and arrays, so that nothing is unpickled (for code not trusted).
        everything: wait until all of torch's distributed modules are imported, so that no rank has to.
        env: environment variables to add in the ranks.
        gpus: how many GPUs all ranks of a run on GPUs see; None for one a rank. Nobody else's run has them:
            runs of all users of this machine take turns, and waiting does not count for the deadline.
        rank_bytes: what each rank is known to hold: GPUs that another program has filled are refused.

    Returns:
        What each rank returned, in order of rank.

    Raises:
        RankError: a rank raised, ended, hung or passed the deadline; it says which rank, how and where.
        ValueError, TypeError: the request cannot be carried out; no process was started.
        TimeoutError: GPUs were not free in time (an hour, or DPCOURSE_QUEUE_SECONDS).
    """
    if not callable(function):
        raise TypeError(f"launch runs a function; it was given a {type(function).__name__}: {function!r}")
    check_deadline(deadline_seconds)
    _check_environment(env or {})
    cluster, carrier = backends.place(cluster, ranks, device, backend)
    own = _own_arguments(per_rank, cluster.num_ranks)
    if cluster.member:
        arguments = (*pickle.loads(own[cluster.member.rank]), *args)
        work_here = functools.partial(_encoded, function, arguments, kwargs, plain)
        payloads = _call_here(cluster, carrier, work_here, deadline_seconds, env or {})
        return [_decoded(payload, plain, rank, len(payloads)) for rank, payload in enumerate(payloads)]
    work = dumps((function, args, kwargs), "the function and its arguments")
    with queueing.own_cards(cluster, gpus) as cards:
        occupied.check_room(cards, cluster.num_ranks, rank_bytes)
        tasks = _tasks(cluster, carrier, work, own, plain, {**cards, **(env or {})})
        del work, own  # an error keeps this frame, and must not keep what was sent
        results = Session(tasks, deadline_seconds, everything).run()
    return [_decoded(message.payload, plain, rank, len(results)) for rank, message in enumerate(results)]


def _call_here(
    cluster: Cluster,
    carrier: backends.Backend,
    work: Callable[[], bytes],
    deadline_seconds: float,
    env: dict[str, str],
) -> list[bytes]:
    """Do a rank's work in this process, which torchrun has started as one of the ranks."""
    assert cluster.member
    os.environ.update({"TORCH_FR_BUFFER_SIZE": _RECORDED_CALLS, **env})
    return meeting.call(cluster.member, work, cluster.chosen_device, carrier, deadline_seconds)


def _encoded(function: Callable, arguments: tuple, keywords: dict[str, Any], is_plain: bool) -> bytes:
    return encode(function(*arguments, **keywords), is_plain)


def check_deadline(seconds: Any) -> None:
    """Refuse what is no number of seconds in which a run could end."""
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= _LONGEST_SECONDS:
        raise ValueError(
            f"deadline_seconds={seconds!r}: give a number of seconds above 0 and up to {_LONGEST_SECONDS:,}"
        )


def _check_environment(env: dict[str, str]) -> None:
    for name, value in env.items():
        is_text = isinstance(name, str) and isinstance(value, str)
        if not is_text or "=" in name or "\0" in name + value:
            raise ValueError(f"env={{{name!r}: {value!r}}}: give names and values as text, as in a shell")


def _decoded(payload: Any, is_plain: bool, rank: int, world_size: int) -> Any:
    try:
        return plain_values.decode(payload) if is_plain else pickle.loads(payload)
    except Exception as error:
        raise RankError(
            f"what rank {rank} of {world_size} returned cannot be read here "
            f"({type(error).__name__}: {error}); return numbers, text, arrays, tensors, lists or dicts",
            kind="raised",
            world_size=world_size,
            rank=rank,
            exception_name=type(error).__name__,
        ) from None


def _own_arguments(per_rank: Sequence[Sequence[Any]] | None, ranks: int) -> list[bytes]:
    if per_rank is None:
        return [dumps((), "")] * ranks
    if not isinstance(per_rank, Sequence) or not all(isinstance(own, list | tuple) for own in per_rank):
        raise TypeError(
            f"per_rank={per_rank!r}: give one tuple of arguments for each rank, as in [(0,), (1,)]"
        )
    if len(per_rank) != ranks:
        raise ValueError(
            f"per_rank has arguments for {len(per_rank)} ranks, and ranks={ranks}; give one tuple for each"
        )
    return [
        dumps(tuple(arguments), f"the arguments of rank {rank}") for rank, arguments in enumerate(per_rank)
    ]


def _tasks(
    cluster: Cluster,
    backend: backends.Backend,
    work: bytes,
    own: list[bytes],
    is_plain: bool,
    env: dict[str, str],
) -> list[Task]:
    num_threads = cores_per_rank(cluster.num_ranks)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(num_threads),
        "TORCH_FR_BUFFER_SIZE": _RECORDED_CALLS,
        **env,
    }
    store_path = os.path.join(directory_name(), "store")
    return [
        Task(
            rank=rank,
            world_size=cluster.num_ranks,
            store_path=store_path,
            num_threads=num_threads,
            niceness=niceness(cluster.num_ranks),
            device=cluster.chosen_device,
            backend=backend.name,
            backend_module=backend.module,
            environment={**environment, **_place_in_environment(rank, cluster)},
            directory=os.getcwd(),
            path=list(sys.path),
            is_plain=is_plain,
            interface=_interface(cluster),
            network=asdict(cluster.network) if cluster.network else None,
            work=work,
            own_arguments=own[rank],
        )
        for rank in range(cluster.num_ranks)
    ]


def _place_in_environment(rank: int, cluster: Cluster) -> dict[str, str]:
    """Tell a rank where it is, in torchrun's words."""
    on_a_host = cluster.network.ranks_per_host if cluster.network else cluster.num_ranks
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(cluster.num_ranks),
        "LOCAL_RANK": str(rank % on_a_host),
        "LOCAL_WORLD_SIZE": str(on_a_host),
        "GROUP_RANK": str(rank // on_a_host),
        "GROUP_WORLD_SIZE": str(cluster.num_ranks // on_a_host),
    }


def _interface(cluster: Cluster) -> str:
    """Name the card that ranks meet on: a host's own, or this machine's loopback."""
    return CARD if cluster.network and cluster.network.kind == "kernel" else _LOOPBACK
