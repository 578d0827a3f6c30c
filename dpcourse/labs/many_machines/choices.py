"""Lab 08, last two questions: the size of the buckets and the mesh, for networks that are described."""

from typing import Any

from dpcourse.labs.many_machines.crossing import goals, job
from dpcourse.labs.many_machines.step import MEBIBYTE, times
from dpcourse.labs.values import match
from dpcourse.labs.values.functions import Job
from dpcourse.tables import Table, seconds_text

# --- bucket_size ---

SIZES = {"1 MiB": 1, "10 MiB": 10, "100 MiB": 100, "1000 MiB": 1000}
# Latency and bytes per second of a rank's link, and ranks; the training is the same everywhere.
NETWORKS = {
    "16 ranks, 10 GB/s after 5 us": (16, 5e-6, 10e9),
    "64 ranks, 10 GB/s after 20 us": (64, 20e-6, 10e9),
    "256 ranks, 25 GB/s after 5 us": (256, 5e-6, 25e9),
    "16 ranks in two cities, 10 GB/s after 1 ms": (16, 1e-3, 10e9),
}
_TRAINING = {"payload_bytes": 5e8, "forward_seconds": 0.05, "backward_seconds": 0.1}
_SIZE_HINTS = {
    "16 ranks, 10 GB/s after 5 us": (
        "30 messages of 5 us are 0.15 ms a bucket: cheap for some fifty buckets, dear for five hundred. And "
        "what does a large last bucket cost, which nothing hides?"
    ),
    "64 ranks, 10 GB/s after 20 us": (
        "126 messages of 20 us are 2.5 ms a bucket: fifty buckets wait longer than all of backward takes."
    ),
    "256 ranks, 25 GB/s after 5 us": (
        "Low latency, and yet 510 messages of it are 2.6 ms a bucket: the number of ranks counts as much."
    ),
    "16 ranks in two cities, 10 GB/s after 1 ms": (
        "30 ms of latency a bucket, against 100 ms of backward to hide it in: even five buckets are too many."
    ),
}


def step_of(network: str, size: str) -> float:
    """The seconds of a step on a network with buckets of one size."""
    ranks, latency, rate = NETWORKS[network]
    link = {"ranks": ranks, "latency_seconds": latency, "bytes_per_second": rate}
    return times({**_TRAINING, **link, "bucket_bytes": SIZES[size] * MEBIBYTE})["step"]


BEST_SIZES = {network: min(SIZES, key=lambda size: step_of(network, size)) for network in NETWORKS}


def measure_sizes(value: Any, ranks: int) -> Table:
    """Every size on every network, computed, beside what the learner chose."""
    rows = [
        (network, *(seconds_text(step_of(network, size)) for size in SIZES), value[network])
        for network in NETWORKS
    ]
    return Table(("network", *SIZES, "you wrote"), rows, "One step, computed: 500 MB of gradients")


BUCKET_SIZE = match(
    "bucket_size",
    "The size of the buckets",
    points=15,
    minutes=8,
    entry="sizes",
    noun="network",
    options=tuple(SIZES),
    goals=BEST_SIZES,
    hints=_SIZE_HINTS,
    measure=measure_sizes,
)

# --- mesh ---

FREE_GB = 70  # of a card's 80, for states
# Billions of parameters, hosts, and cards on each.
MODELS = {
    "34 billion on 8 hosts of 8": (34, 8, 8),
    "70 billion on 8 hosts of 8": (70, 8, 8),
    "13 billion on 4 hosts of 4": (13, 4, 4),
    "13 billion on 8 hosts of 2": (13, 8, 2),
    "8 billion on 8 hosts of 1": (8, 8, 1),
}
INSIDE, TWO, ALL = "inside each host", "over two hosts", "over all hosts"
_MESH_HINTS = {
    "34 billion on 8 hosts of 8": (
        "544 GB of states over the 8 cards of one host are 68 each: it fits, and then only averages cross."
    ),
    "70 billion on 8 hosts of 8": (
        "1,120 GB over 8 cards are 140 each: too much for one host. Now ask your card_bytes about two hosts "
        "and about all: a ring over 16 ranks sends nearly as much over a card on each trip as one over 64, "
        "and its copies are averaged on top."
    ),
    "13 billion on 4 hosts of 4": (
        "208 GB over 4 cards are 52 each. Where gathers can stay inside a host, nothing sends less."
    ),
    "13 billion on 8 hosts of 2": (
        "208 GB over 2 cards are 104 each. Over 4 cards they fit, and so do they over 16: count the three "
        "trips and the averages of each."
    ),
    "8 billion on 8 hosts of 1": (
        "128 GB do not fit one card. Over two, each trip crosses with half of the model only: here the "
        "averages are worth it."
    ),
}


def _job(model: str, mesh: str) -> Job:
    billions, hosts, on_host = MODELS[model]
    return job("fsdp", billions * 10**9, 2, hosts, on_host, {INSIDE: 1, TWO: 2, ALL: hosts}[mesh])


def mesh_numbers(model: str, mesh: str) -> tuple[float, float]:
    """The GB of states on each card, and the GB that cross a card in a step."""
    found = goals(_job(model, mesh))
    return found["held"] / 1e9, found["across"] / 1e9


def _best(model: str) -> str:
    """The least on the cable, of what fits."""
    numbers = {mesh: mesh_numbers(model, mesh) for mesh in (INSIDE, TWO, ALL)}
    return min((mesh for mesh in numbers if numbers[mesh][0] <= FREE_GB), key=lambda mesh: numbers[mesh][1])


BEST_MESHES = {model: _best(model) for model in MODELS}


def measure_meshes(value: Any, ranks: int) -> Table:
    """What a card holds and what crosses it, for each mesh, by the course's lists."""
    rows = []
    for model in MODELS:
        numbers = (mesh_numbers(model, mesh) for mesh in (INSIDE, TWO, ALL))
        rows.append((model, *(f"{held:.1f} / {across:.1f}" for held, across in numbers), value[model]))
    columns = ("model", INSIDE, TWO, ALL, "you wrote")
    return Table(columns, rows, "GB of states on a card / GB across a card in a step, computed")


MESH = match(
    "mesh",
    "The mesh",
    points=15,
    minutes=7,
    entry="meshes",
    noun="model",
    options=(INSIDE, TWO, ALL),
    goals=BEST_MESHES,
    hints=_MESH_HINTS,
    measure=measure_meshes,
)
