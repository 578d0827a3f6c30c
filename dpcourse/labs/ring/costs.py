"""Lab 04, last two questions: what a ring and a star cost, and which piece is sent when."""

import math
from typing import Any

from dpcourse.labs import inside
from dpcourse.labs.switch import Log, Plug, Switch
from dpcourse.labs.values import Number, WrongWay, match, numbers
from dpcourse.ranks.launch import launch
from dpcourse.tables import Table
from dpcourse.theory import ring

# --- costs: numbers with their derivation ---

RANKS, PAYLOAD_GB = 6, 1.2
_ELEMENTS = 60  # of the tensor that really goes round: every piece of it as long as every other
_SENT = ring.all_reduce_sent_bytes(_ELEMENTS, RANKS) / _ELEMENTS * PAYLOAD_GB
_THROUGH_MAIN = 2 * (RANKS - 1) * PAYLOAD_GB
_STEPS = ring.num_steps(RANKS)


def measure_costs(value: Any, ranks: int) -> Table:
    """Star and ring on six real ranks, each message counted on its way; bytes as those of 1.2 GB."""
    logs = {name: _log_of(name) for name in ("star", "ring")}
    rows = [
        ("through_main", _through(logs["star"], 0) * PAYLOAD_GB, value["through_main"]),
        ("sent_by_one", max(_sent(logs["ring"], r) for r in range(RANKS)) * PAYLOAD_GB, value["sent_by_one"]),
        ("sent_by_all", sum(_sent(logs["ring"], r) for r in range(RANKS)) * PAYLOAD_GB, value["sent_by_all"]),
        ("messages", max(len(logs["ring"].sent(r)) for r in range(RANKS)), value["messages"]),
    ]
    return Table(("number", "measured", "you wrote"), rows, f"An all-reduce on {RANKS} real ranks")


def _log_of(name: str) -> Log:
    with Switch(RANKS) as switch:
        plugs = [(plug,) for plug in switch.plugs]
        launch(_all_reduce, name, per_rank=plugs, ranks=RANKS, device="cpu")
    return switch.log


def _all_reduce(plug: Plug, name: str) -> None:
    import torch

    from dpcourse.scratch import ring, star

    inside.run_plugged(torch.ones(_ELEMENTS), plug, {"star": star, "ring": ring}[name].all_reduce, _call)


def _call(all_reduce: Any, tensor: Any) -> None:
    all_reduce(tensor)


def _sent(log: Log, rank: int) -> float:
    """What a rank sent, in payloads."""
    return log.sent_bytes(rank) / (_ELEMENTS * 4)


def _through(log: Log, rank: int) -> float:
    """What passed a rank's card, in and out, in payloads."""
    received = sum(event.num_bytes for event in log.events if event.what == "send" and event.peer == rank)
    return _sent(log, rank) + received / (_ELEMENTS * 4)


COSTS = numbers(
    "costs",
    "What a star costs, and what a ring",
    points=15,
    minutes=8,
    entry="costs",
    asked=(
        Number(
            "through_main",
            _THROUGH_MAIN,
            "Through the main rank's card: the whole tensor of each other rank comes in, and the sum goes "
            "out to each of them.",
        ),
        Number(
            "sent_by_one",
            _SENT,
            "A rank of the ring sends one piece at each step. How large is a piece, and how many steps are "
            "there in both halves?",
        ),
        Number(
            "sent_by_all", RANKS * _SENT, "All ranks of the ring send alike: what one sends, times the ranks."
        ),
        Number("messages", _STEPS, "Each half has one step fewer than there are ranks."),
    ),
    wrong_ways=(
        WrongWay(
            "one_way",
            {"through_main": _THROUGH_MAIN / 2},
            "That is one way only: what comes in has to go out again as a sum.",
        ),
        WrongWay(
            "with_itself",
            {"through_main": 2 * RANKS * PAYLOAD_GB},
            "The main rank sends nothing to itself: there are N - 1 others.",
        ),
        WrongWay(
            "half_a_ring",
            {"sent_by_one": _SENT / 2},
            "That is the reduce-scatter alone. The all-gather hands as much round once more.",
        ),
        WrongWay(
            "two_payloads",
            {"sent_by_one": 2 * PAYLOAD_GB},
            "Nearly: the piece that a rank ends with in each half is one that it does not send on. 2(N - "
            "1)/N, not 2.",
        ),
        WrongWay(
            "less_than_the_star",
            {"sent_by_all": _SENT},
            "That is one rank's. The ring saves nothing in all: it shares.",
        ),
        WrongWay("steps_of_one_half", {"messages": RANKS - 1}, "That is one half: there are two."),
        WrongWay(
            "step_too_many", {"messages": 2 * RANKS}, "After N - 1 steps of a half everybody has been passed."
        ),
    ),
    measure=measure_costs,
)

# --- pieces: what rank 2 sends, step by step ---

RING, RANK = 4, 2
_MOVES = sorted((move for move in ring.moves(RING) if move.source == RANK), key=lambda move: move.step)
PIECES = {f"step {move.step}": f"piece {move.piece}" for move in _MOVES}
_HINTS = {
    "step 1": "Piece k is to be complete at rank k, so it sets out from rank k + 1. Which one does so here?",
    "step 2": "At step 2 a rank passes on what came from the left at step 1, its own numbers added.",
    "step 3": "The same again: what came at step 2. After this step each piece is where it belongs.",
    "step 4": "The second half begins: each rank hands on the piece that it holds complete.",
    "step 5": "What came at step 4 from the left goes on to the right, as it is.",
    "step 6": "The last one: its right neighbour has had one piece from the start, and lacks this one.",
}


def measure_pieces(value: Any, ranks: int) -> Table:
    """The course's own ring on four real ranks: which piece rank 2 sends at each step."""
    sent = launch(_pieces_sent, ranks=RING, device="cpu")[RANK]
    rows = [(step, f"piece {piece}", value[step]) for step, piece in zip(PIECES, sent, strict=True)]
    return Table(("step", f"rank {RANK} sent", "you wrote"), rows, f"A ring of {RING} real ranks")


def _pieces_sent() -> list[int]:
    """In a rank: the number of each piece that is sent. Piece k holds 10 to the k, from every rank."""
    import torch

    from dpcourse.scratch import ring

    sent, exchange = [], ring.exchange

    def noting(outgoing: torch.Tensor, *rest: Any) -> None:
        sent.append(int(math.log10(outgoing.item())))
        exchange(outgoing, *rest)

    vars(ring)["exchange"] = noting
    ring.all_reduce(10.0 ** torch.arange(RING))
    return sent


PIECES_SENT = match(
    "pieces",
    "The ring, drawn step by step",
    points=15,
    minutes=7,
    entry="pieces",
    noun="step",
    options=tuple(f"piece {k}" for k in range(RING)),
    goals=PIECES,
    hints=_HINTS,
    measure=measure_pieces,
)
