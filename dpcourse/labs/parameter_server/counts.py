"""Lab 02, second and last question: bytes through the main rank, and whose running statistics survive."""

from typing import Any

from dpcourse.labs import inside
from dpcourse.labs.switch import Log, Plug, Switch
from dpcourse.labs.values import Number, WrongWay, numbers
from dpcourse.ranks.launch import launch
from dpcourse.tables import Table
from dpcourse.theory import ring

# --- main_rank_bytes ---

RANKS, MORE_RANKS, MODEL_GB = 8, 16, 1.6
_ELEMENTS = 48  # of the weights that really travel: they divide by both


def _ring(ranks: int) -> float:
    return ring.all_reduce_sent_bytes(_ELEMENTS, ranks) / _ELEMENTS * MODEL_GB


_OUT = (RANKS - 1) * MODEL_GB


def measure_main_rank(value: Any, ranks: int) -> Table:
    """A star's weights and gradients and a ring's all-reduce on eight real ranks, every message counted."""
    star, ring_log = _log_of("star"), _log_of("ring")
    out, into = _sent(star, 0), sum(_sent(star, rank) for rank in range(1, RANKS))
    around = max(_sent(ring_log, rank) for rank in range(RANKS))
    measured = {
        "copies_out": out,
        "through_main": out + into,
        "worker_sends": max(_sent(star, rank) for rank in range(1, RANKS)),
        "ring_each": around,
        "times": out / around,
    }
    rows = [(name, number, value[name]) for name, number in measured.items()]
    return Table(("number", "measured", "you wrote"), rows, f"{RANKS} real ranks, bytes as those of 1.6 GB")


def _log_of(name: str) -> Log:
    with Switch(RANKS) as switch:
        launch(_exchange, name, per_rank=[(plug,) for plug in switch.plugs], ranks=RANKS, device="cpu")
    return switch.log


def _exchange(plug: Plug, name: str) -> None:
    import torch

    inside.run_plugged(torch.ones(_ELEMENTS), plug, {"star": _star, "ring": _around}[name], _call)


def _call(answer: Any, tensor: Any) -> None:
    answer(tensor)


def _star(tensor: Any) -> None:
    from dpcourse.scratch import star

    star.broadcast(tensor)  # the weights
    star.reduce(tensor)  # the gradients


def _around(tensor: Any) -> None:
    from dpcourse.scratch import ring

    ring.all_reduce(tensor)


def _sent(log: Log, rank: int) -> float:
    return log.sent_bytes(rank) / (_ELEMENTS * 4) * MODEL_GB


MAIN_RANK_BYTES = numbers(
    "main_rank_bytes",
    "Bytes through the main rank",
    points=20,
    minutes=10,
    entry="main_rank",
    asked=(
        Number("copies_out", _OUT, "Before each step every other card needs the whole model, from one card."),
        Number(
            "through_main",
            2 * _OUT,
            "What goes out comes back: a gradient is as large as the model. In and out together.",
        ),
        Number(
            "worker_sends", MODEL_GB, "A worker sends one thing in a step: a gradient of the whole model."
        ),
        Number(
            "ring_each",
            _ring(RANKS),
            "A rank of a ring sends a piece of 1/N of the gradients, N - 1 times in each of two halves.",
        ),
        Number("times", _OUT / _ring(RANKS), "What the main card sends, over what a rank of the ring sends."),
        Number(
            "through_main_16",
            2 * (MORE_RANKS - 1) * MODEL_GB,
            "The star once more, with 15 others: does what passes the main card stay as it is?",
        ),
        Number(
            "ring_each_16",
            _ring(MORE_RANKS),
            "The ring once more, with 16 ranks: pieces are half as large, and there are more steps.",
        ),
    ),
    wrong_ways=(
        WrongWay(
            "with_itself",
            {"copies_out": RANKS * MODEL_GB},
            "The main card needs no copy from itself: there are N - 1 others.",
        ),
        WrongWay(
            "shared_out",
            {"copies_out": (RANKS - 1) / RANKS * MODEL_GB},
            "The batch is shared out, and the model is not: every card needs all of it.",
        ),
        WrongWay(
            "one_way",
            {"through_main": _OUT},
            "That is one way: gradients come back through the same card.",
        ),
        WrongWay(
            "worker_shares",
            {"worker_sends": MODEL_GB / RANKS},
            "A worker has a share of the rows, and its gradient has a number for every weight.",
        ),
        WrongWay(
            "half_a_ring",
            {"ring_each": _ring(RANKS) / 2},
            "That is a reduce-scatter alone; the all-gather sends as much again.",
        ),
        WrongWay(
            "two_models",
            {"ring_each": 2 * MODEL_GB},
            "Nearly: in each half a rank leaves one piece out. 2(N - 1)/N models, not 2.",
        ),
        WrongWay(
            "through_over_sent",
            {"times": 2 * _OUT / _ring(RANKS)},
            "That counts both ways of the star and one of the ring: compare what is sent with what is sent.",
        ),
        WrongWay(
            "does_not_grow",
            {"through_main_16": 2 * _OUT},
            "Twice the cards, and the same bytes through the main one? Each new card wants a copy.",
        ),
        WrongWay(
            "grows_as_a_star",
            {"ring_each_16": 2 * _ring(RANKS)},
            "A ring's line is flat: 2(N - 1)/N hardly changes from 8 to 16.",
        ),
    ),
    measure=measure_main_rank,
)

# --- running_mean ---

SAMPLES = (0.0, 1.0, 4.0, 9.0, 16.0, 25.0)
_OWN = 2  # samples a rank
_KEPT, _LOST = sum(SAMPLES[:2]) / 2, sum(SAMPLES[2:4]) / 2


def measure_running_mean(value: Any, ranks: int) -> Table:
    """A batch norm in a real star of three ranks: what each copy saw, and what the model keeps."""
    means = launch(_running_mean, ranks=3, device="cpu")
    rows = [("model", means[0], value["model"]), ("second_copy", means[1], value["second_copy"])]
    return Table(("running mean of", "measured", "you wrote"), rows, "A batch norm in a star of three ranks")


def _running_mean() -> float:
    import torch
    from torch import nn

    from dpcourse.scratch.star_parallel import StarParallel

    norm = nn.BatchNorm1d(1, momentum=1.0)
    module = StarParallel(norm, num_samples=_OWN)
    samples = torch.tensor(SAMPLES).view(-1, 1)
    module(samples if module.is_main else samples[:0]).sum().backward()
    assert norm.running_mean is not None
    seen = norm.running_mean.item()
    module.sum_gradients()
    return norm.running_mean.item() if module.is_main else seen


RUNNING_MEAN = numbers(
    "running_mean",
    "Whose running statistics survive",
    points=10,
    minutes=5,
    entry="running_mean",
    asked=(
        Number(
            "model", _KEPT, "Copies are thrown away after the step, with all that they noted: which stays?"
        ),
        Number("second_copy", _LOST, "The second rank has samples 4 and 9, and its layer sees no others."),
    ),
    wrong_ways=(
        WrongWay(
            "of_all",
            {"model": sum(SAMPLES) / len(SAMPLES)},
            "That is the mean of all samples, which no layer has seen: nobody averages statistics in a star.",
        ),
        WrongWay(
            "last_copy",
            {"model": sum(SAMPLES[4:]) / 2},
            "That is the last copy's. It goes with its copy; the main rank's own stays.",
        ),
        WrongWay(
            "nothing",
            {"model": 0.0},
            "The main rank computes a share too, with the model itself: what that notes down stays.",
        ),
        WrongWay(
            "second_is_first",
            {"second_copy": _KEPT},
            "That is the main rank's. In forward each copy sees its own samples.",
        ),
    ),
    measure=measure_running_mean,
)
