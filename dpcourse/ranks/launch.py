"""Run a function on several ranks at once, from a notebook cell, and get one result from each."""

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

from dpcourse.ranks import plain as plain_values
from dpcourse.ranks.cluster import Cluster, cores_per_rank
from dpcourse.ranks.rank import Task
from dpcourse.ranks.sending import dumps
from dpcourse.ranks.session import Session, new_directory

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
# How many collectives a rank remembers: enough to compare what ranks called, few enough to answer at once.
_RECORDED_CALLS = "400"


def launch(
    function: Callable[..., Any],
    *args: Any,
    ranks: int = 2,
    deadline_seconds: float = 60.0,
    device: str | None = None,
    per_rank: Sequence[Sequence[Any]] | None = None,
    plain: bool = False,
    everything: bool = False,
    env: dict[str, str] | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Call `function(*args, **kwargs)` in `ranks` fresh processes that form one process group.

    Inside, `torch.distributed` is ready to use: gloo for CPU tensors, NCCL for GPU tensors. The function
    may come from a cell. What ranks print appears in the cell, marked with the rank.

    Args:
        ranks: how many processes.
        deadline_seconds: the run ends by then, whatever the ranks do.
        device: "cpu", "cuda", or None: GPUs where there are at least as many as ranks, else CPU.
        per_rank: for each rank, arguments of its own that come before `args`; no rank sees another's.
        plain: results come back as JSON and arrays, so that nothing is unpickled (for code not trusted).
        everything: wait until all of torch's distributed modules are imported, so that no rank has to.
        env: environment variables to add in the ranks.

    Returns:
        What each rank returned, in order of rank.

    Raises:
        RankError: a rank raised, ended, hung or passed the deadline; it says which rank, how and where.
        ValueError, TypeError: the request cannot be carried out; no process was started.
    """
    if not callable(function):
        raise TypeError(f"launch runs a function; it was given a {type(function).__name__}: {function!r}")
    if not deadline_seconds > 0:
        raise ValueError(f"deadline_seconds={deadline_seconds!r}: give a number of seconds above 0")
    cluster = Cluster(ranks=ranks, device=device)
    own = _own_arguments(per_rank, ranks)
    work = dumps((function, args, kwargs), "the function and its arguments")
    tasks = _tasks(cluster, work, own, plain, env or {})
    del work, own  # an error keeps this frame, and must not keep what was sent
    results = Session(tasks, deadline_seconds, everything).run()
    decode = plain_values.decode if plain else pickle.loads
    return [decode(message.payload) for message in results]


def _own_arguments(per_rank: Sequence[Sequence[Any]] | None, ranks: int) -> list[bytes]:
    if per_rank is None:
        return [dumps((), "")] * ranks
    if len(per_rank) != ranks:
        raise ValueError(
            f"per_rank has arguments for {len(per_rank)} ranks, and ranks={ranks}; give one tuple for each"
        )
    return [
        dumps(tuple(arguments), f"the arguments of rank {rank}") for rank, arguments in enumerate(per_rank)
    ]


def _tasks(
    cluster: Cluster, work: bytes, own: list[bytes], is_plain: bool, env: dict[str, str]
) -> list[Task]:
    num_threads = cores_per_rank(cluster.num_ranks)
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(num_threads),
        "TORCH_FR_BUFFER_SIZE": _RECORDED_CALLS,
        **env,
    }
    store_path = os.path.join(new_directory(), "store")
    return [
        Task(
            rank=rank,
            world_size=cluster.num_ranks,
            store_path=store_path,
            num_threads=num_threads,
            device=cluster.chosen_device,
            environment={
                **environment,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(cluster.num_ranks),
            },
            directory=os.getcwd(),
            path=list(sys.path),
            is_plain=is_plain,
            interface=_LOOPBACK,
            work=work,
            own_arguments=own[rank],
        )
        for rank in range(cluster.num_ranks)
    ]
