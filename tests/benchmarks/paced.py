"""Paced links beside what was asked of them: rates, latency, and the share of DDP's time that is hidden.

Run it with `python -m tests.benchmarks.paced`. It fails, after all tables, where a rate up to 2 Gbit/s is
more than a tenth off, or a latency more than a millisecond. Each row is the best of some repeats: what other
processes take from the cores is no property of the links.
"""

import argparse
import sys
import time
from typing import Any

import dpcourse as dc
from dpcourse.models import Mlp
from dpcourse.tables import Table, seconds_text
from dpcourse.theory.links import ring_seconds

RATES = ("50mbit", "200mbit", "500mbit", "1gbit", "2gbit", "5gbit", "10gbit")
MUST_HOLD = 2e9 / 8  # bytes per second; above it this machine's own speed shows
LATENCIES = ("50us", "500us", "5ms", "50ms")
RATE_TOLERANCE, LATENCY_TOLERANCE = 0.1, 1e-3
MODEL = Mlp(features=512, width=512, depth=8)


def links(hosts: int, inter: str, latency: str | None = None) -> dc.Cluster:
    return dc.Cluster(hosts=hosts, ranks_per_host=1, inter=inter, latency=latency, links="paced")


def all_reduce_seconds(num_elements: int, repeats: int) -> float:
    """In a rank: the least time of an all-reduce that all begin together."""
    import torch
    import torch.distributed as dist

    tensor, found = torch.ones(num_elements), []
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        found.append(time.perf_counter() - start)
    return min(found)


def ping_seconds(repeats: int) -> float:
    """In a rank: half the least time that one number takes to the other rank and back."""
    import torch
    import torch.distributed as dist

    from dpcourse.scratch import messages

    tensor, found = torch.ones(1), []
    for _ in range(repeats):
        start = time.perf_counter()
        if dist.get_rank() == 0:
            messages.send(tensor, 1)
            messages.receive(tensor, 1)
        else:
            messages.send(messages.receive(tensor, 0), 0)
        found.append((time.perf_counter() - start) / 2)
    return min(found)


def rates(repeats: int) -> Table:
    """An all-reduce of about half a second on 4 hosts; the rate is what would take as long by the formula."""
    rows: list[list[Any]] = []
    for asked in RATES:
        cluster = links(4, asked)
        assert cluster.network
        link = cluster.network.inter
        num_elements = int(min(link.bytes_per_second / 2 / 1.5, 64e6) / 4)
        took = max(dc.launch(all_reduce_seconds, num_elements, repeats, cluster=cluster))
        off = ring_seconds(4 * num_elements, 4, link) / took - 1
        is_asked = link.bytes_per_second <= MUST_HOLD
        target = "within 10 %" if is_asked else "this machine's"
        rows.append([asked, took, f"{off:+.1%}", target, abs(off) <= RATE_TOLERANCE if is_asked else None])
    columns = ["asked for", "seconds", "rate off", "to reach", "reached"]
    return Table(columns, rows, "The rate of a card in an all-reduce of 4 hosts")


def latencies(repeats: int) -> Table:
    # Rank 0's alone: the other one's time does not begin with a message.
    bare = dc.launch(ping_seconds, 20 * repeats, ranks=2, backend="ring")[0]
    rows: list[list[Any]] = [["not paced", bare, None, "", None]]
    for asked in LATENCIES:
        cluster = links(2, "10gbit", asked)
        assert cluster.network
        took = dc.launch(ping_seconds, 20 * repeats, cluster=cluster)[0]
        more = took - cluster.network.latency_seconds
        rows.append([asked, took, seconds_text(more), "under 1 ms more", 0 <= more <= LATENCY_TOLERANCE])
    return Table(
        ["asked for", "seconds", "more than asked", "to reach", "reached"], rows, "One number, one way"
    )


def hidden() -> Table:
    rows: list[list[Any]] = []
    places: dict[str, dict[str, Any]] = {
        "this machine": {"ranks": 2, "backend": "ring"},
        "500 Mbit/s": {"cluster": links(2, "500mbit")},
        "200 Mbit/s": {"cluster": links(2, "200mbit")},
    }
    for place, where in places.items():
        for name, options in (("ddp", {"bucket_cap_mb": 1}), ("scratch-naive-ddp", {}), ("fsdp2", {})):
            for pace in (None, "5ms"):
                run = dc.train(name, model=MODEL, steps=3, pace_compute=pace, **where, **options)
                share, step = run.timeline.overlap().hidden_share, seconds_text(run.median_step_seconds)
                rows.append([place, name, pace or "as it comes", step, f"{share:.0%}"])
    return Table(
        ["links", "strategy", "a layer takes", "a step", "hidden"], rows, "What is hidden on 2 hosts"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    tables = [rates(repeats), latencies(repeats)]
    for table in (*tables, hidden()):
        print(f"{table}\n")
    missed = [row for table in tables for row in table.rows if row[-1] is False]
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
