"""Lab 08, third question: a model of a step from a latency and a bandwidth."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpcourse.labs.question import Mistake
from dpcourse.labs.values.functions import Job, Judge, Values, function
from dpcourse.tables import bytes_text, seconds_text
from dpcourse.theory.hierarchy import Machine
from dpcourse.theory.links import Link, ring_seconds
from dpcourse.theory.step import MEBIBYTE, Work, point

# Bytes of gradients, of a bucket, seconds of forward and of backward, ranks, latency, bytes per second.
_EXAMPLES = (
    (2.6e9, 25 * MEBIBYTE, 0.15, 0.30, 16, 20e-6, 25e9),
    (2.6e9, 25 * MEBIBYTE, 0.15, 0.30, 16, 20e-6, 2.5e9),
    (2.6e9, 25 * MEBIBYTE, 0.15, 0.30, 512, 20e-6, 25e9),
)
_NAMES = (
    "payload_bytes",
    "bucket_bytes",
    "forward_seconds",
    "backward_seconds",
    "ranks",
    "latency_seconds",
    "bytes_per_second",
)


def job(*numbers: float) -> Job:
    """A step on a described network."""
    asked = dict(zip(_NAMES, numbers, strict=True))
    title = (
        f"{bytes_text(asked['payload_bytes'])} in buckets of {bytes_text(asked['bucket_bytes'])}, "
        f"{asked['ranks']} ranks, {bytes_text(asked['bytes_per_second'])}/s after "
        f"{seconds_text(asked['latency_seconds'])}"
    )
    return Job(title, asked)


def jobs(seed: int, sizes: tuple[int, ...]) -> tuple[Job, ...]:
    """Hidden networks: hidden behind backward, bound by bytes, bound by latency, one bucket, one rank."""
    random = np.random.default_rng([seed, 80])
    some = [float(number) for number in random.uniform(0.8, 1.2, 5)]
    return (
        job(2e9 * some[0], 25 * MEBIBYTE, 0.2, 0.5 * some[1], 8 * sizes[-1], 5e-6, 40e9),
        job(3e9 * some[1], 40 * MEBIBYTE, 0.2, 0.3 * some[2], 8 * sizes[0], 10e-6, 2e9),
        job(1e9 * some[2], 10 * MEBIBYTE, 0.1, 0.2 * some[3], 256 * sizes[0], 15e-6, 50e9),
        job(20e6 * some[3], 100 * MEBIBYTE, 0.01, 0.02 * some[4], sizes[0], 30e-6, 1e9),
        job(130e6 * some[4], 50 * MEBIBYTE, 0.05, 0.06 * some[0], sizes[-1], 50e-6, 1e9),
        job(1e9 * some[0], 25 * MEBIBYTE, 0.1, 0.2, 1, 10e-6, 10e9),
    )


def example(ranks: int) -> tuple[Job, ...]:
    """One job on three networks."""
    return tuple(job(*numbers) for numbers in _EXAMPLES)


def goals(job: Job) -> Values:
    """The course's own model of one bucket and of a step."""
    asked = job.arguments
    work = Work(
        asked["payload_bytes"],
        asked["forward_seconds"],
        asked["backward_seconds"],
        bucket_bytes=asked["bucket_bytes"],
    )
    link = Link(asked["latency_seconds"], asked["bytes_per_second"])
    machine = Machine(link, link, ranks_per_host=1)
    found = point("ring", int(asked["ranks"]), work, machine)
    bucket = ring_seconds(work.payload_bytes / work.num_buckets, int(asked["ranks"]), link)  # type: ignore[arg-type]
    return {"all_reduce": bucket, "step": found.step_seconds}


# --- what known mistakes make of it ---


def times(asked: Mapping[str, Any], **twist: Any) -> Values:
    """The formula, or with a twist what a known mistake makes of it."""
    num_buckets = twist.get("count", math.ceil)(asked["payload_bytes"] / asked["bucket_bytes"]) or 1
    bucket = asked["payload_bytes"] / num_buckets
    ranks = asked["ranks"]
    rounds = twist.get("rounds", lambda ranks: 2 * (ranks - 1))(ranks)
    sent = twist.get("sent", lambda ranks: 2 * (ranks - 1) / ranks)(ranks)
    each = rounds * asked["latency_seconds"]
    each += sent * bucket / asked["bytes_per_second"] * twist.get("bits", 1)
    piece = asked["backward_seconds"] / num_buckets
    overlapped = twist.get("overlapped", _overlapped)(num_buckets, piece, each)
    return {"all_reduce": each, "step": asked["forward_seconds"] + overlapped}


def _overlapped(num_buckets: int, piece: float, each: float) -> float:
    """The first bucket is ready after a piece of backward, and the last one's all-reduce ends the step."""
    return piece + (num_buckets - 1) * max(piece, each) + each


def _twisted(**twist: Any) -> Callable[[Job], Values]:
    return lambda job: times(job.arguments, **twist)


WRONG_WAYS = {
    "no_latency": _twisted(rounds=lambda ranks: 0),
    "one_latency": _twisted(rounds=lambda ranks: int(ranks > 1)),
    "half_the_messages": _twisted(rounds=lambda ranks: ranks - 1),
    "one_way": _twisted(rounds=lambda ranks: ranks - 1, sent=lambda ranks: (ranks - 1) / ranks),
    "one_way_bytes": _twisted(sent=lambda ranks: (ranks - 1) / ranks),
    "whole_payload": _twisted(sent=lambda ranks: 2 * (ranks > 1)),
    "bits": _twisted(bits=8),
    "whole_at_once": _twisted(count=lambda number: 1),
    "buckets_rounded_down": _twisted(count=math.floor),
    "nothing_hidden": _twisted(overlapped=lambda count, piece, each: count * (piece + each)),
    "all_hidden": _twisted(overlapped=lambda count, piece, each: count * max(piece, each)),
    "last_is_hidden": _twisted(overlapped=lambda count, piece, each: piece + (count - 1) * max(piece, each)),
    "first_is_there": _twisted(
        overlapped=lambda count, piece, each: max(count * piece, (count - 1) * each) + each
    ),
}
MISTAKES = (
    Mistake(
        "no_latency",
        "The latency is missing: each message of a ring waits for it, however small it is.",
    ),
    Mistake(
        "one_latency",
        "A ring makes many messages one after the other, and each waits: one latency is too few.",
    ),
    Mistake(
        "half_the_messages",
        "An all-reduce goes round the ring twice: there are N - 1 messages on each of its two trips.",
    ),
    Mistake(
        "one_way",
        "This is a reduce-scatter alone, in messages and bytes. The all-gather that follows doubles both.",
    ),
    Mistake(
        "one_way_bytes",
        "The messages are counted twice round, the bytes once: a rank sends 2(N - 1)/N of a bucket.",
    ),
    Mistake(
        "whole_payload",
        "Of each trip a rank keeps its own piece to itself: (N - 1)/N of the bucket.",
    ),
    Mistake(
        "bits",
        "bytes_per_second is in bytes already: nothing is to be multiplied by 8.",
    ),
    Mistake(
        "whole_at_once",
        "This is one all-reduce of everything: gradients leave in buckets, while backward goes on.",
    ),
    Mistake(
        "buckets_rounded_down",
        "A rest that fills no bucket needs one of its own: round the number of buckets up.",
    ),
    Mistake(
        "nothing_hidden",
        "Nothing is hidden here: a bucket travels while backward computes the next one, so only the longer "
        "of the two counts.",
    ),
    Mistake(
        "all_hidden",
        "Not all can be hidden: the first bucket is ready only after a piece of backward, and the last has no"
        " computation left to hide behind.",
    ),
    Mistake(
        "last_is_hidden",
        "When the last bucket is ready backward is over: its all-reduce comes on top.",
    ),
    Mistake(
        "first_is_there",
        "The first bucket cannot leave before it is full: when bytes are what takes long, a piece of backward"
        " comes before all of them.",
    ),
    Mistake(
        "wrong_type",
        'Return a dict with two plain numbers of seconds: {"all_reduce": ..., "step": ...}.',
    ),
    Mistake(
        "all_reduce",
        "One bucket's all-reduce is off: a latency for each message, and the bytes that a rank sends over"
        " the rate.",
    ),
    Mistake(
        "step",
        "One bucket's all-reduce is right and the step is not: lay the buckets out on a clock, two lanes, "
        "one for backward and one for the link.",
    ),
)

STEP_SECONDS = function(
    "step_seconds",
    "A step from a latency and a bandwidth",
    points=30,
    minutes=20,
    jobs=jobs,
    example=example,
    judge=Judge(goals, WRONG_WAYS, text=seconds_text),
    mistakes=MISTAKES,
)
