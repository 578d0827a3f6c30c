"""Lab 08, second question: what a host's card sends across in a step, and what that buys in memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from dpcourse.labs.question import Mistake
from dpcourse.labs.values.functions import Job, Judge, Values, function
from dpcourse.ledger import Transfer
from dpcourse.models import Mlp
from dpcourse.run import Run
from dpcourse.tables import bytes_text
from dpcourse.theory.crossing import sent_between_hosts
from dpcourse.theory.wire import ideal_sent_bytes

STATE_BYTES = 16  # for each parameter, in both recipes: 4 + 4 + 8 and 2 + 2 + 12
_RUN_MODEL = Mlp(features=60, width=480, classes=60)  # divides over the ranks of a copy
_MAX_RANKS_PER_HOST = 8


@dataclass(frozen=True)
class Setting:
    """A real run that a job is held against: FSDP2 or DDP on emulated hosts."""

    strategy: str
    hosts: int
    ranks_per_host: int
    mesh: tuple[int, int] | None = None


def job(
    strategy: str,
    num_params: int,
    number_bytes: int,
    hosts: int,
    ranks_per_host: int,
    hosts_per_copy: int = 1,
) -> Job:
    """The job as the learner's function gets it."""
    copies = f", a copy on {hosts_per_copy}" if strategy == "fsdp" else ""
    arguments = {
        "strategy": strategy,
        "num_params": num_params,
        "number_bytes": number_bytes,
        "hosts": hosts,
        "ranks_per_host": ranks_per_host,
        "hosts_per_copy": hosts_per_copy,
    }
    return Job(f"{strategy}, {hosts} x {ranks_per_host} ranks{copies}", arguments)


def run_job(strategy: str, hosts: int, ranks_per_host: int, hosts_per_copy: int = 1) -> Job:
    """A job small enough to be run for real, on emulated hosts."""
    asked = job(strategy, _RUN_MODEL.layout().num_params, 4, hosts, ranks_per_host, hosts_per_copy)
    mesh = (hosts // hosts_per_copy, hosts_per_copy * ranks_per_host) if strategy == "fsdp" else None
    return Job(asked.title, asked.arguments, Setting(strategy, hosts, ranks_per_host, mesh), is_run=True)


def jobs(seed: int, sizes: tuple[int, ...]) -> tuple[Job, ...]:
    """Hidden hosts and ranks, a single host and a single rank on a host among them; two jobs run for real."""
    random = np.random.default_rng([seed, 8])
    params = [int(number) * 10**8 for number in random.integers(10, 700, 8)]
    ranks = int(random.integers(3, _MAX_RANKS_PER_HOST + 1))
    return (
        run_job("ddp", 2, 2),
        run_job("fsdp", 2, 2),
        job("fsdp", params[0], 2, 2 * sizes[-1], ranks),
        job("fsdp", params[1], 4, 3 * sizes[0], ranks, 3 * sizes[0]),
        job("fsdp", params[2], 2, 4 * sizes[0], ranks, 2),
        job("two levels", params[3], 2, sizes[-1], ranks),
        job("ddp", params[4], 2, 2 * sizes[0], 8),
        job("two levels", params[5], 4, 3, 1),
        job("fsdp", params[6], 2, 1, 8),
        job("ddp", params[7], 4, 1, 4),
    )


def example(ranks: int) -> tuple[Job, ...]:
    """Three ways on two hosts, run for real."""
    ranks_per_host = max(1, ranks // 2)
    return (
        run_job("ddp", 2, ranks_per_host),
        run_job("fsdp", 2, ranks_per_host, 2),
        run_job("fsdp", 2, ranks_per_host),
    )


# --- what is right, by the course's lists ---


def transfers(asked: Mapping[str, Any], rank: int) -> Iterator[Transfer]:
    """One step's collectives of a rank, each over the whole model; rank r is on host r // ranks_per_host."""
    on_host, num_ranks = asked["ranks_per_host"], asked["hosts"] * asked["ranks_per_host"]
    size, everyone = asked["num_params"] * asked["number_bytes"], tuple(range(num_ranks))
    if asked["strategy"] == "ddp":
        yield _transfer("all_reduce", everyone, size, rank)
        return
    num_shards = on_host * (asked["hosts_per_copy"] if asked["strategy"] == "fsdp" else 1)
    first = rank - rank % num_shards
    copy, replicas = everyone[first : first + num_shards], everyone[rank % num_shards :: num_shards]
    if asked["strategy"] == "fsdp":
        yield _transfer("all_gather", copy, size, rank)
    yield _transfer("all_gather", copy, size, rank)
    yield _transfer("reduce_scatter", copy, size, rank)
    yield _transfer("all_reduce", replicas, size / num_shards, rank)


def _transfer(collective: str, group: tuple[int, ...], payload_bytes: float, rank: int) -> Transfer:
    sent = ideal_sent_bytes(collective, round(payload_bytes), len(group))
    return Transfer(collective, "all", group, round(payload_bytes), sent, "backward", rank)


def goals(job: Job) -> Values:
    """What the card of host 0 sends to other hosts, and what a rank holds of the states."""
    asked = job.arguments
    on_host = asked["ranks_per_host"]
    parts = [
        sent_between_hosts(transfer, lambda rank: rank // on_host) or 0.0
        for rank in range(on_host)
        for transfer in transfers(asked, rank)
    ]
    num_shards = on_host * asked["hosts_per_copy"] if asked["strategy"] == "fsdp" else 1
    return {"across": sum(parts), "held": STATE_BYTES * asked["num_params"] / num_shards}


def measured(job: Job) -> Values:
    """The same of a real run."""
    run = _run(job.setting)
    return {
        "across": run.traffic.between_hosts() or 0.0,
        "held": run.memory.bytes_per_parameter() * run.num_params,
    }


@cache
def _run(setting: Setting) -> Run:
    from dpcourse.ranks.cluster import Cluster
    from dpcourse.training import train

    hosts = Cluster(hosts=setting.hosts, ranks_per_host=setting.ranks_per_host, inter="1gbit", links="paced")
    asked: dict[str, Any] = {"model": _RUN_MODEL, "cluster": hosts, "steps": 1}
    if setting.strategy == "ddp":
        return train("ddp", gradient_as_bucket_view=True, **asked)
    return train("fsdp2", mesh=setting.mesh, **asked)


# --- what known mistakes make of it ---


def row(asked: Mapping[str, Any], **twist: Any) -> Values:
    """The formula, or with a twist what a known mistake makes of it."""
    hosts, on_host, together = asked["hosts"], asked["ranks_per_host"], asked["hosts_per_copy"]
    size = asked["num_params"] * (1 if twist.get("elements") else asked["number_bytes"])
    trip = twist.get("trip", lambda number: (number - 1) / number)
    num_ranks, is_fsdp = hosts * on_host, asked["strategy"] == "fsdp"
    num_shards, copies = (together * on_host, hosts // together) if is_fsdp else (1, hosts)
    ring = twist.get("crossers", lambda on_host: 1)(on_host)
    around = twist.get("around", 2)
    if asked["strategy"] == "ddp":
        across = around * ring * trip(num_ranks)
    else:
        shard = twist.get("shard", lambda on_host, together: 1 / together)
        across = around * shard(on_host, together if is_fsdp else 1) * trip(copies)
        if is_fsdp and (together > 1 or (twist.get("always") and hosts > 1)):
            across += twist.get("trips", 3) * ring * trip(num_shards)
    if hosts == 1 and not twist.get("one_host"):
        across = 0
    held = twist.get("held", lambda num_shards, num_ranks: num_shards)(num_shards, num_ranks)
    return {"across": across * size, "held": STATE_BYTES * asked["num_params"] / held}


def _twisted(**twist: Any) -> Callable[[Job], Values]:
    return lambda job: row(job.arguments, **twist)


WRONG_WAYS = {
    "elements": _twisted(elements=True),
    "every_rank_crosses": _twisted(crossers=lambda on_host: on_host),
    "one_rank_only": _twisted(shard=lambda on_host, together: 1 / (together * on_host)),
    "whole_model_across": _twisted(shard=lambda on_host, together: 1),
    "by_every_rank": _twisted(shard=lambda on_host, together: on_host),
    "gathers_across": _twisted(always=True),
    "two_trips": _twisted(trips=2),
    "one_way": _twisted(around=1),
    "no_averages": _twisted(shard=lambda on_host, together: 0),
    "whole_payload": _twisted(trip=lambda number: int(number > 1)),
    "one_host_crosses": _twisted(one_host=True),
    "held_over_all": _twisted(held=lambda num_shards, num_ranks: num_ranks if num_shards > 1 else 1),
    "held_whole": _twisted(held=lambda num_shards, num_ranks: 1),
}


MISTAKES = (
    Mistake(
        "elements",
        "These are numbers, not bytes: each takes number_bytes.",
    ),
    Mistake(
        "every_rank_crosses",
        "In a ring through all ranks in order, one rank of each host has its neighbour elsewhere: what "
        "crosses a card is what one rank sends, not what all do.",
    ),
    Mistake(
        "one_rank_only",
        "Every rank of the host averages its own shard across, over the same card: count all of them.",
    ),
    Mistake(
        "whole_model_across",
        "A copy on several hosts is averaged in shards, and each host has only its part of them: a card "
        "carries the size over hosts_per_copy.",
    ),
    Mistake(
        "by_every_rank",
        "After the reduce-scatter a rank has only its shard left, and averages that across: not the whole"
        " model.",
    ),
    Mistake(
        "gathers_across",
        "Where a host has a whole copy, gathers and the reduce-scatter stay inside it: only averages cross.",
    ),
    Mistake(
        "two_trips",
        "Full sharding makes three trips: gather in forward, gather in backward, reduce-scatter.",
    ),
    Mistake(
        "one_way",
        "An all-reduce is two trips round its ring, also the one that averages shards across hosts.",
    ),
    Mistake(
        "no_averages",
        "Copies of the model must take the same step: their gradients are averaged, and that crosses the"
        " cable.",
    ),
    Mistake(
        "whole_payload",
        "No rank sends its own piece to itself: a trip round a ring of n is (n - 1)/n of the payload.",
    ),
    Mistake(
        "one_host_crosses",
        "On a single host nothing crosses a card.",
    ),
    Mistake(
        "held_over_all",
        "Hybrid sharding shares the states over the ranks of one copy, not over all: more hosts never make it"
        " less.",
    ),
    Mistake(
        "held_whole",
        "Sharded ranks hold a share of the states: one over the ranks that share a copy.",
    ),
    Mistake(
        "wrong_type",
        'Return a dict with two plain numbers of bytes: {"across": ..., "held": ...}.',
    ),
    Mistake(
        "across",
        "The bytes across are off: which collectives have members on two hosts, and how many ranks of a host"
        " speak to another one?",
    ),
    Mistake(
        "held",
        "The bytes held are off: 16 for each parameter, over the ranks that share one copy.",
    ),
)

HYBRID = function(
    "hybrid",
    "What crosses the cable, and what it buys",
    points=25,
    minutes=15,
    jobs=jobs,
    example=example,
    judge=Judge(goals, WRONG_WAYS, measured, text=bytes_text),
    mistakes=MISTAKES,
    entry="card_bytes",
)
