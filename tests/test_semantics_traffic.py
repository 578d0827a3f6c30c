"""Golden values of traffic: one all-reduce as recorder and kernel count it, and calls that do not match."""

import json

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dpcourse as dc
from dpcourse.ledger import Span, overlap
from dpcourse.measure.traffic import TrafficMeter
from dpcourse.measure.wire import WireCounter
from dpcourse.strategies.sanity import check_gradients_equal
from dpcourse.theory import bus

torch.set_num_threads(1)  # other tests run beside these


def test_the_factor_of_bus_bandwidth():
    assert [bus.bus_factor("all_reduce", n) for n in (2, 4, 8)] == [1.0, 1.5, 1.75]
    assert bus.bus_factor("all_gather", 8) == bus.bus_factor("reduce_scatter", 8) == 0.875
    assert bus.bus_factor("broadcast", 8) == 1
    assert [bus.bus_factor(c, 1) for c in ("all_reduce", "all_gather", "broadcast")] == [0, 0, 0]
    assert bus.bus_bandwidth("all_reduce", 1_000_000, 0.001, 4) == 1.5e9


def test_computation_0_to_10_and_communication_5_to_12_are_active_12_overlap_5_and_71_percent_hidden():
    spans = [
        Span("computation", "backward", 0, 10),
        Span("computation", "a part of it", 2, 9),
        Span("communication", "bucket 0", 5, 12),
        Span("communication", "bucket 1", 6, 7),
    ]
    found = overlap(spans)
    assert (found.active_seconds, found.overlap_seconds) == (12, 5)
    assert f"{found.hidden_share:.0%}" == "71%"


# -- one all-reduce of 1 MB on 4 ranks --------------------------------------------


def one_all_reduce() -> tuple[list[tuple[str, int]], float | None]:
    dist.all_reduce(torch.ones(1))  # opens the connections
    traffic, wire = TrafficMeter(), WireCounter()
    dist.all_reduce(torch.ones(250_000))
    sent = wire.sent_since_last()
    traffic.mark("step")
    return [(t.collective, t.payload_bytes) for t in traffic.transfers], sent


def test_one_all_reduce_of_1_mb_on_4_ranks_is_1_call_1_mb_of_payload_1_5_mb_sent_and_6_mb_on_all_wires():
    results = dc.launch(one_all_reduce, ranks=4)
    assert [calls for calls, _ in results] == [[("all_reduce", 1_000_000)]] * 4
    assert bus.bus_factor("all_reduce", 4) * 1_000_000 == 1_500_000
    assert bus.bytes_on_all_wires("all_reduce", 1_000_000, 4) == 6_000_000
    sent = [num_bytes for _, num_bytes in results]
    if None not in sent:  # the kernel counts on Linux alone
        assert sent == pytest.approx([1_500_000] * 4, rel=0.002)  # and headers
        assert sum(sent) == pytest.approx(6_000_000, rel=0.002)


# -- calls that do not match ------------------------------------------------------


def swapped_kinds() -> list[float]:
    mine = torch.full((3,), 1.0 + dist.get_rank())
    calls = [lambda: dist.all_reduce(mine), lambda: dist.broadcast(torch.full((3,), 7.0), 0)]
    for call in calls if dist.get_rank() == 0 else reversed(calls):
        call()
    return mine.tolist()


def int_against_float() -> list[float]:
    mine = torch.ones(4, dtype=[torch.float32, torch.int32][dist.get_rank()])
    dist.all_reduce(mine)
    return mine.tolist()


def one_against_two_million() -> list[float]:
    mine = torch.ones(1_000_000 * (1 + dist.get_rank()))
    dist.all_reduce(mine)
    return mine[-2:].tolist()


def written(function, folder) -> None:
    """Leave what a rank came to believe in a file: where calls do not match, launch gives no results."""
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(function()))


@pytest.mark.parametrize(
    ("function", "right", "said"),
    [
        (
            swapped_kinds,
            [3.0] * 3,
            r"rank \d (called|waits in) .* #1 of \[3\] float32, rank \d",
        ),
        (int_against_float, [2.0] * 4, r"all_reduce #1 of \[4\] float32, rank 1 called .* of \[4\] int32"),
        (one_against_two_million, [2.0] * 2, r"all_reduce #1 of \[[12]000000\] float32.*\[[12]000000\]"),
    ],
    ids=["swapped order", "int against float", "1M against 2M"],
)
def test_calls_that_do_not_match_never_pass_as_a_result(function, right, said, tmp_path):
    """gloo lets some of these through with wrong numbers and hangs in others: both are named."""
    with pytest.raises(dc.RankError, match=said) as caught:
        dc.launch(written, function, tmp_path, deadline_seconds=30)
    assert caught.value.kind in ("mismatch", "hang")
    believed = [json.loads(path.read_text()) for path in sorted(tmp_path.iterdir())]
    assert caught.value.kind == "hang" or any(numbers != right for numbers in believed)


def reduced_in_swapped_order() -> tuple[list[float], str]:
    """Two gradients of one size, reduced in another order on rank 1: to a launcher the calls look alike."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    for value, parameter in zip((1.0, 10.0), model.parameters(), strict=True):
        parameter.grad = torch.full((1, 1), value * (1 + dist.get_rank()))
    gradients = [parameter.grad for parameter in model.parameters()]
    for gradient in gradients if dist.get_rank() == 0 else reversed(gradients):
        dist.all_reduce(gradient)
    try:
        check_gradients_equal(model)
        said = ""
    except RuntimeError as error:
        said = str(error)
    return [gradient.item() for gradient in gradients], said


def test_a_swapped_order_of_like_calls_passes_silently_and_is_caught_by_comparing_gradients():
    for rank, (gradients, said) in enumerate(dc.launch(reduced_in_swapped_order)):
        mixed = [1 + 20, 10 + 2]  # right: 1 + 2 and 10 + 20
        assert gradients == (mixed if rank == 0 else mixed[::-1])
        assert "0.weight[0, 0] is 21 on rank 0, 12 on rank 1" in said
