"""Bytes of collectives made of sends: by message as the formulas say, and as the kernel counts."""

import sys

import pytest
import torch
import torch.distributed as dist

import dpcourse as dc
from dpcourse.measure.wire import WireCounter
from dpcourse.scratch import halving_doubling, ring, star, work
from dpcourse.theory import halving_doubling as halving_doubling_bytes
from dpcourse.theory import ring as ring_bytes
from dpcourse.theory import star as star_bytes
from tests.test_scratch_collectives import ring_gather, star_gather, star_scatter

KERNEL_COUNTS = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts bytes for each socket")


def sent_in_messages(collectives, lengths):
    """In a rank: bytes of all messages sent, and their number, for each collective and length."""
    sends, message, send = [], dist.P2POp, dist.send

    def counted_message(operation, tensor, **place):
        if operation is dist.isend:
            sends.append(tensor.nbytes)
        return message(operation, tensor, **place)

    def counted_send(tensor, **place):
        sends.append(tensor.nbytes)
        send(tensor, **place)

    dist.P2POp, dist.send = counted_message, counted_send
    found = {}
    for name, function in collectives.items():
        for length in lengths:
            sends.clear()
            function(torch.ones(length, dtype=torch.bfloat16))
            found[name, length] = sum(sends), len(sends)
    return found


COLLECTIVES = {
    "ring": lambda tensor: ring.all_reduce(tensor),
    "ring reduce_scatter": lambda tensor: ring.reduce_scatter(tensor),
    "ring all_gather": lambda tensor: ring_gather(tensor, None),
    "halving and doubling": lambda tensor: halving_doubling.all_reduce(tensor),
    "star": lambda tensor: star.all_reduce(tensor),
    "star scatter": lambda tensor: star_scatter(tensor, None),
    "star gather": lambda tensor: star_gather(tensor, None),
}


def formula(name, length, ranks, rank):
    """(bytes, messages) by the formulas."""
    payload = 2 * length
    pieces = [2 * ring_bytes.piece_elements(length, ranks, other) for other in range(ranks)]
    is_main = rank == 0
    return {
        "ring": (ring_bytes.all_reduce_sent_exactly(length, 2, ranks, rank), 2 * (ranks - 1)),
        "ring reduce_scatter": (ring_bytes.reduce_scatter_sent_exactly(length, 2, ranks, rank), ranks - 1),
        "ring all_gather": (ring_bytes.all_gather_sent_exactly(length, 2, ranks, rank), ranks - 1),
        "halving and doubling": (
            halving_doubling_bytes.all_reduce_sent_bytes(length, 2, ranks, rank),
            halving_doubling_bytes.num_messages(ranks, rank),
        ),
        "star": (star_bytes.all_reduce_sent_bytes(payload, ranks, rank), ranks - 1 if is_main else 1),
        "star scatter": (star_bytes.scatter_sent_bytes(pieces, rank), ranks - 1 if is_main else 0),
        "star gather": (star_bytes.gather_sent_bytes(pieces, rank), 0 if is_main else 1),
    }[name]


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_each_rank_sends_the_formula_s_bytes_and_messages_exactly(ranks):
    lengths = [0, 1, ranks + 1, 1001]
    results = dc.launch(sent_in_messages, COLLECTIVES, lengths, ranks=ranks)
    for rank, found in enumerate(results):
        assert found == {key: formula(*key, ranks, rank) for key in found}
    assert len(results[0]) == len(COLLECTIVES) * len(lengths)


def test_formulas_of_even_pieces_are_the_ideal_ones():
    for ranks in (1, 2, 4, 8, 16):
        for rank in range(ranks):
            ideal = ring_bytes.all_reduce_sent_bytes(4 * 1600, ranks)
            assert ring_bytes.all_reduce_sent_exactly(1600, 4, ranks, rank) == ideal
            assert halving_doubling_bytes.all_reduce_sent_bytes(1600, 4, ranks, rank) == ideal
    assert [halving_doubling_bytes.num_messages(1024, 0), 2 * (1024 - 1)] == [20, 2046]
    # Of 5 ranks the fifth folds into the first: it sends all once, its partner once more than the others.
    sent = [halving_doubling_bytes.all_reduce_sent_bytes(1600, 1, 5, rank) for rank in range(5)]
    assert sent == [4000, 2400, 2400, 2400, 1600]
    assert sum(ring_bytes.piece_elements(1001, 4, rank) for rank in range(4)) == 1001
    assert star_bytes.reduce_sent_bytes(8, 4, 1) + star_bytes.broadcast_sent_bytes(8, 4, 1) == 8


ELEMENTS = 1_000_003  # of 4 bytes: not divisible by 2, 3 or 4


def on_the_wire(ranks):
    """In a rank: bytes that the kernel counted for each collective."""
    tensor, whole = torch.ones(ELEMENTS), torch.ones(ranks * 250_000)
    collectives = {
        "ring": lambda: ring.all_reduce(tensor),
        "ring reduce_scatter": lambda: ring.reduce_scatter(tensor),
        "work reduce_scatter": lambda: work.start_reduce_scatter(tensor).wait(),
        "work all_gather": lambda: work.start_all_gather(whole[:250_000]).wait(),
        "halving and doubling": lambda: halving_doubling.all_reduce(tensor),
        "star": lambda: star.all_reduce(tensor),
        "ring broadcast": lambda: ring.broadcast(tensor),
        "gloo reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.empty(250_000), whole),
    }
    found = {}
    for name, collective in collectives.items():
        dist.barrier()
        counter = WireCounter()
        collective()
        found[name] = counter.sent_since_last()
    return found


@KERNEL_COUNTS
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_kernel_counts_the_formula_s_bytes_and_an_all_reduce_s_worth_for_gloo_s_reduce_scatter(ranks):
    whole = 4 * ranks * 250_000
    for rank, found in enumerate(dc.launch(on_the_wire, ranks, ranks=ranks)):
        wanted = {
            name: formula(name, ELEMENTS, ranks, rank)[0] * 2  # 4 bytes each
            for name in ("ring", "ring reduce_scatter", "halving and doubling", "star")
        } | {
            "work reduce_scatter": ring_bytes.reduce_scatter_sent_exactly(ELEMENTS, 4, ranks, rank),
            "work all_gather": whole // ranks * (ranks - 1),
            "ring broadcast": 4 * ELEMENTS if rank < ranks - 1 else 0,
            "gloo reduce_scatter": 2 * whole * (ranks - 1) / ranks,
        }
        assert found == pytest.approx(wanted, rel=0.002, abs=1000)
