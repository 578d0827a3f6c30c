"""Run by itself in a fresh process: what a kernel does, and what it costs. Prints one line of JSON, its last.

A notebook's kernel with its fork server fully loaded; then a run of two ranks that add up a tensor, train a
layer for a step, and count.
"""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil

NUM_RANKS = 2
NUM_ELEMENTS = 1 << 20
_RUN_SECONDS = 40.0
_LOAD_SECONDS = 100.0


def main() -> None:
    """Try everything and print one line of JSON: the answer, or {"problem": why there is none}."""
    from dpcourse.ranks import processes

    processes.die_with_parent(int(sys.argv[1]))
    try:
        answer = try_everything(device=sys.argv[2] or None)
    except Exception as error:
        answer = {"problem": str(error).strip() or type(error).__name__}
    print(json.dumps(answer), flush=True)


def try_everything(device: str | None) -> dict[str, Any]:
    """What the two ranks found, the seconds, and the memory of kernel, fork server and ranks."""
    from dpcourse.ranks import cluster, launch, service

    cluster.Cluster(ranks=NUM_RANKS, device=device)  # what cannot run is refused before anything is loaded
    started = time.perf_counter()
    server = service.current()
    for name in ("ipykernel.kernelapp", "matplotlib.figure"):  # what a notebook's own process has loaded
        importlib.import_module(name)
    launch.launch(_nothing, ranks=1, device="cpu", everything=True, deadline_seconds=_LOAD_SECONDS)
    loaded = time.perf_counter()
    ranks = launch.launch(_work, ranks=NUM_RANKS, device=device, deadline_seconds=_RUN_SECONDS)
    seconds = time.perf_counter() - loaded
    memory = {"kernel": memory_of(psutil.Process().pid), "server": memory_of(server.pid)}
    service.close()
    return {"load_seconds": loaded - started, "run_seconds": seconds, "ranks": ranks, "memory": memory}


def _nothing() -> None:
    pass


def _work() -> dict[str, Any]:
    """One all-reduce, checked and counted; one step of a small layer, since that is what loads libraries."""
    import os

    import torch
    import torch.distributed as dist

    from dpcourse.measure.wire import WireCounter

    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    tensor = torch.full((NUM_ELEMENTS,), dist.get_rank() + 1.0, device=device)
    dist.barrier()
    counter = WireCounter()
    dist.all_reduce(tensor)
    sent_bytes = counter.sent_since_last()
    expected = sum(range(1, dist.get_world_size() + 1))
    is_right = bool((tensor == expected).all())
    payload_bytes = tensor.nbytes
    del tensor
    torch.nn.Linear(256, 256, device=device)(torch.ones(8, 256, device=device)).sum().backward()
    return {
        "is_right": is_right,
        "sent_bytes": sent_bytes if device == "cpu" else None,  # GPUs do not talk through sockets here
        "payload_bytes": payload_bytes,
        "device": device,
        "memory": memory_of(os.getpid()),
    }


def memory_of(pid: int) -> dict[str, int]:
    """What a process takes alone, its share of what forks have in common, and files it has mapped.

    Linux tells these apart (smaps_rollup); elsewhere psutil's unique and resident sizes stand in.
    """
    try:
        fields = dict(
            line.split(":")[:2] for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        )
    except OSError:
        info = psutil.Process(pid).memory_full_info()
        return {"private": info.uss, "anonymous_share": info.uss, "files": max(0, info.rss - info.uss)}
    size = {name: int(value.split()[0]) << 10 for name, value in fields.items()}
    return {
        "private": size["Private_Dirty"],
        "anonymous_share": size.get("Pss_Anon", size["Private_Dirty"]),
        "files": max(0, size["Rss"] - size["Anonymous"]),
    }


if __name__ == "__main__":
    main()
