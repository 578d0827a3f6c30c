"""Lab 08, first question: where a ring's latency becomes the wall."""

from typing import Any

from dpcourse.labs.values import Number, WrongWay, numbers
from dpcourse.theory.links import Link, num_rounds
from dpcourse.theory.wire import ideal_sent_bytes

PAYLOAD_BYTES, RANKS = 50_000_000, 64
LINK = Link(8e-6, 200e9 / 8)  # 200 Gbit/s after 8 us
_ROUNDS = num_rounds("all_reduce", RANKS)
_SENT = ideal_sent_bytes("all_reduce", PAYLOAD_BYTES, RANKS)
LATENCY_MS = 1e3 * _ROUNDS * LINK.latency_seconds
BYTES_MS = 1e3 * _SENT / LINK.bytes_per_second
WALL = PAYLOAD_BYTES / (LINK.latency_seconds * LINK.bytes_per_second)


def measure_wall(value: Any, ranks: int) -> Any:
    """All-reduces of three sizes, really made by two ranks 2 ms apart: a latency, and bytes over a rate."""
    from dpcourse.experiments.all_reduce import all_reduce_sweep
    from dpcourse.ranks.cluster import Cluster

    far = Cluster(hosts=2, ranks_per_host=1, inter="200mbit", latency="2ms", links="paced")
    return all_reduce_sweep(far, (4096, 65536, 1024 * 1024), repeats=3)


LATENCY_WALL = numbers(
    "latency_wall",
    "The latency wall",
    points=15,
    minutes=8,
    entry="wall",
    asked=(
        Number(
            "latency_ms",
            LATENCY_MS,
            "Count the messages that follow one another, and multiply by the latency.",
        ),
        Number(
            "bytes_ms",
            BYTES_MS,
            "The bytes that one rank sends, over the bytes that the link carries in a second.",
        ),
        Number(
            "wall",
            WALL,
            "Both times are right. Set them equal and solve for the number of ranks: 2(N - 1) cancels.",
        ),
        Number(
            "wall_on_faster_links",
            WALL / 2,
            "The wall is right. Where does the bandwidth stand in it?",
        ),
    ),
    wrong_ways=(
        WrongWay(
            "half_the_messages",
            {"latency_ms": LATENCY_MS / 2},
            "An all-reduce goes round the ring twice: 2(N - 1) messages, not N - 1.",
        ),
        WrongWay(
            "one_message_too_many",
            {"latency_ms": LATENCY_MS * RANKS / (RANKS - 1)},
            "A piece passes N - 1 links on each of its two trips, not N.",
        ),
        WrongWay(
            "as_a_tree",
            {"latency_ms": 1e3 * 2 * (RANKS - 1).bit_length() * LINK.latency_seconds},
            "2 log2 N messages are a tree's; a ring makes far more.",
        ),
        WrongWay(
            "bits_for_bytes",
            {"bytes_ms": BYTES_MS / 8},
            "200 Gbit/s are 25 GB/s: a byte has eight bits.",
        ),
        WrongWay(
            "one_trip",
            {"bytes_ms": BYTES_MS / 2},
            "These are the bytes of one trip round the ring: an all-reduce makes two.",
        ),
        WrongWay(
            "whole_payload",
            {"bytes_ms": BYTES_MS * RANKS / (RANKS - 1)},
            "A rank keeps its own piece: (N - 1)/N of the payload on each trip.",
        ),
        WrongWay(
            "upside_down",
            {"wall": 1 / WALL},
            "The quotient stands on its head: the payload over what the link has in flight.",
        ),
        WrongWay(
            "further_away",
            {"wall_on_faster_links": 2 * WALL},
            "Nearer, not further: the faster link is done with the bytes sooner, so waiting is a larger"
            " share.",
        ),
        WrongWay(
            "unmoved",
            {"wall_on_faster_links": WALL},
            "The latency is the same, the bytes take half as long: the two are equal somewhere else.",
        ),
    ),
    measure=measure_wall,
)
