"""Predicted time: collectives on a link, schedules computed by hand, the curve over the size of buckets."""

import math

import pytest

import dpcourse as dc
from dpcourse.layout import Layout, Parameter
from dpcourse.ledger import COMMUNICATION, COMPUTATION, Transfer, overlap, select, total
from dpcourse.models import Mlp
from dpcourse.strategies import Setting, find, options_for
from dpcourse.theory import links
from dpcourse.theory.hierarchy import Machine
from dpcourse.theory.links import Link
from dpcourse.theory.schedule import schedule, step_seconds

MEGABYTE = 1_000_000
SLOW = Link(0, MEGABYTE)  # a megabyte in a second, no latency
PAIR = (0, 1)


def transfer(collective, unit, phase="backward", megabytes=1.0, group=PAIR, sent=None, rank=0):
    payload = int(megabytes * MEGABYTE)
    return Transfer(collective, unit, group, payload, sent, phase, rank)


def buckets(number, megabytes=1.0):
    """All-reduces; on two ranks each sends its payload once."""
    return [transfer("all_reduce", f"bucket {index}", megabytes=megabytes) for index in range(number)]


def lane(spans, name):
    return [(span.name, span.start_seconds, span.end_seconds) for span in select(spans, lane=name)]


# -- one collective ---------------------------------------------------------


@pytest.mark.parametrize(
    ("collective", "seconds"),
    [("all_reduce", 6 * 0.1 + 1.5), ("all_gather", 3 * 0.1 + 0.75), ("broadcast", 2 * 0.1 + 0.75)],
)
def test_a_collective_takes_a_latency_each_round_and_its_bytes(collective, seconds):
    found = links.transfer_seconds(transfer(collective, "unit", group=(0, 1, 2, 3)), Link(0.1, MEGABYTE))
    assert found == pytest.approx(seconds)


def test_what_a_list_says_is_sent_is_what_counts_and_a_group_of_one_takes_no_time():
    link = Link(0.5, MEGABYTE)
    assert links.transfer_seconds(transfer("reduce_scatter", "unit", sent=2 * MEGABYTE), link) == 2.5
    assert links.transfer_seconds(transfer("all_reduce", "unit", group=(3,)), link) == 0
    assert links.transfer_seconds(transfer("send", "unit"), link) == 1.5


def test_rounds_follow_the_backend_as_bytes_do():
    link = Link(0.5, MEGABYTE)
    fours = (0, 1, 2, 3)
    for backend, reduced, passed_on in ((None, 3, 2), ("nccl", 3, 3), ("ring", 3, 3), ("gloo", 6, 2)):
        for collective, rounds in (("reduce_scatter", reduced), ("broadcast", passed_on)):
            moved = transfer(collective, "unit", group=fours, sent=MEGABYTE)
            assert links.transfer_seconds(moved, link, backend) == rounds * 0.5 + 1
    spans = schedule([transfer("reduce_scatter", "unit", sent=MEGABYTE, group=fours)], {}, link, True, "gloo")
    assert step_seconds(spans) == 4


def test_a_ring_meets_the_wall_of_latency_where_the_payload_is_what_the_link_has_in_flight():
    link = Link(10e-6, 10e9)  # 100 kB in flight
    wall = links.latency_wall(51_250_000, link)
    assert wall == 513
    for num_ranks, is_over in ((wall - 2, False), (wall, True)):
        latencies = links.num_rounds("all_reduce", num_ranks) * link.latency_seconds
        assert (latencies > links.ring_seconds(51_250_000, num_ranks, link) / 2) == is_over


def test_a_payload_of_a_whole_number_of_links_in_flight_has_its_wall_one_above_whatever_floats_make_of_it():
    for gigabits, micros in ((200, 5), (100, 4), (10, 30), (50, 7)):
        in_flight = gigabits * 125 * micros
        walls = [links.latency_wall(in_flight * n, Link(micros / 1e6, gigabits * 1.25e8)) for n in (3, 8000)]
        assert walls == [4, 8001], (gigabits, micros)


def test_halving_and_doubling_sends_a_ring_s_bytes_and_pays_log_n_latencies():
    link = Link(1.0, 1e6)
    assert links.ring_seconds(8 * MEGABYTE, 8, link) == 14 + 14
    assert links.halving_doubling_seconds(8 * MEGABYTE, 8, link) == 6 + 14
    assert links.halving_doubling_seconds(8 * MEGABYTE, 1, link) == links.ring_seconds(8, 1, link) == 0


def test_links_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="give a bandwidth above 0 and a latency of 0 or more"):
        Link(-1, 1)
    with pytest.raises(ValueError, match="no link of 0 bytes"):
        Link(0, 0)
    for latency, rate in ((math.nan, 1), (0, math.nan)):
        with pytest.raises(ValueError, match="no link of"):
            Link(latency, rate)
    with pytest.raises(ValueError, match="without latency no number of ranks is too large"):
        links.latency_wall(1, SLOW)


# -- schedules computed by hand ---------------------------------------------


def test_on_a_link_that_keeps_up_all_buckets_but_the_last_are_hidden():
    spans = schedule(buckets(4), {"forward": 2, "backward": 4, "step": 1}, SLOW)
    assert lane(spans, COMPUTATION) == [("forward", 0, 2), ("backward", 2, 6), ("step", 7, 8)]
    assert lane(spans, COMMUNICATION) == [(f"bucket {i}", 3 + i, 4 + i) for i in range(4)]
    assert overlap(spans).hidden_share == 3 / 4
    assert step_seconds(spans) == 8


def test_on_a_slower_link_buckets_queue_one_at_a_time():
    spans = schedule(buckets(4, megabytes=2), {"backward": 4}, SLOW)
    assert lane(spans, COMMUNICATION) == [(f"bucket {i}", 1 + 2 * i, 3 + 2 * i) for i in range(4)]
    assert (step_seconds(spans), overlap(spans).overlap_seconds) == (9, 3)


def test_a_bucket_starts_when_its_share_of_backward_is_over():
    unequal = [*buckets(1, megabytes=3), transfer("all_reduce", "bucket 1")]
    spans = schedule(unequal, {"backward": 8}, SLOW)
    assert lane(spans, COMMUNICATION) == [("bucket 0", 6, 9), ("bucket 1", 9, 10)]


def test_what_forward_broadcasts_it_waits_for_and_what_the_step_sends_follows_it():
    spans = schedule(
        [
            transfer("broadcast", "buffers", "forward", sent=MEGABYTE),
            transfer("all_gather", "weights", "step", 2),
        ],
        {"forward": 2, "step": 3},
        SLOW,
    )
    assert lane(spans, COMPUTATION) == [("forward", 1, 3), ("step", 3, 6)]
    assert lane(spans, COMMUNICATION) == [("buffers", 0, 1), ("weights", 6, 7)]


UNITS = ("a", "b", "c")


def sharded_step():
    """Three units of 2 MB on two ranks: each gather and each reduction takes a second."""
    forward = [transfer("all_gather", unit, "forward", 2) for unit in UNITS]
    backward = []
    for unit in reversed(UNITS):
        backward += [transfer("all_gather", unit, megabytes=2), transfer("reduce_scatter", unit, megabytes=2)]
    return forward + backward


def test_blocking_collectives_and_computation_alternate():
    spans = schedule(sharded_step(), {"forward": 3, "backward": 6}, SLOW, is_blocking=True)
    assert lane(spans, COMMUNICATION)[:3] == [("a", 0, 1), ("b", 2, 3), ("c", 4, 5)]
    assert lane(spans, COMMUNICATION)[3:5] == [("c", 6, 7), ("c", 9, 10)]
    assert overlap(spans).overlap_seconds == 0
    assert step_seconds(spans) == total(spans) == 9 + 9


def test_collectives_that_do_not_block_gather_the_next_unit_while_one_computes():
    spans = schedule(sharded_step(), {"forward": 6, "backward": 0}, SLOW)
    forward = lane(spans, COMMUNICATION)[:3]
    assert forward == [("a", 0, 1), ("b", 1, 2), ("c", 3, 4)]  # c waits until a is computed and freed
    assert lane(spans, COMPUTATION) == [("forward", 1, 7)]


def test_a_rank_alone_only_computes():
    spans = schedule([], {"forward": 1, "backward": 2, "step": 1}, SLOW)
    assert lane(spans, COMPUTATION) == [("forward", 0, 1), ("backward", 1, 3), ("step", 3, 4)]
    assert step_seconds([]) == 0


def test_several_ranks_and_unknown_phases_are_refused():
    with pytest.raises(ValueError, match=r"ranks \[0, 1\].*select\(transfers, rank=0\)"):
        schedule([*buckets(1), transfer("all_reduce", "bucket 0", rank=1)], {}, SLOW)
    with pytest.raises(ValueError, match="no phase is called 'optimiser'; there is forward, backward, step"):
        schedule(buckets(1), {"optimiser": 1.0}, SLOW)


def test_on_hosts_that_share_a_card_a_collective_takes_what_its_group_makes_it_take():
    pairs = Machine(SLOW, Link(0, 10 * MEGABYTE), ranks_per_host=2)
    inside, across = (
        transfer("reduce_scatter", "unit", megabytes=4),
        transfer("all_reduce", "unit", megabytes=2, group=(0, 2)),
    )
    spans = schedule([inside, across], {"backward": 1}, pairs)
    assert lane(spans, COMMUNICATION) == [("unit", 1, 1.2), ("unit", 1.2, 5.2)]


def test_a_function_may_say_how_long_a_transfer_takes():
    spans = schedule(buckets(2), {"backward": 2}, lambda transfer: 0.5)
    assert lane(spans, COMMUNICATION) == [("bucket 0", 1, 1.5), ("bucket 1", 2, 2.5)]


# -- the size of buckets ------------------------------------------------------


def backward_seconds(bucket_cap_mb: float) -> float:
    """The predicted step of DDP with 64 layers of 1 MiB on 4 ranks, backward taking half of what is sent."""
    layout = Layout(tuple(Parameter(f"layers.{i}.weight", (512, 512)) for i in range(64)))
    setting = Setting(layout, 4, 16, options=options_for("ddp", {"bucket_cap_mb": bucket_cap_mb}))
    transfers = select(find("ddp").expected_traffic(setting), rank=0)
    return step_seconds(schedule(transfers, {"backward": 0.5}, Link(0.01, 200e6)))


def test_the_curve_over_the_size_of_buckets_has_its_bottom_between_many_small_and_one_large():
    caps = [1, 2, 4, 8, 16, 32, 64]
    times = [backward_seconds(cap) for cap in caps]
    best = times.index(min(times))
    assert 0 < best < len(caps) - 1
    assert times[: best + 1] == sorted(times[: best + 1], reverse=True)
    assert times[best:] == sorted(times[best:])
    assert times[0] > 64 * 6 * 0.01  # too small: nothing but latency
    assert times[-1] == pytest.approx(0.5 + 6 * 0.01 + 1.5 * 64 * 2**20 / 200e6)  # too large: nothing hidden


# -- beside a measurement -------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "options", "is_blocking"),
    [
        ("ddp", {"bucket_cap_mb": 0.1}, False),
        ("fsdp2", {}, True),
        ("scratch-fsdp", {}, False),
        ("scratch-fsdp", {"prefetch": False}, True),
    ],
)
def test_a_schedule_has_the_collectives_that_a_timeline_measures_in_their_order(
    strategy, options, is_blocking
):
    run = dc.train(strategy, model=Mlp(width=256), steps=1, **options)
    measured = select(run.timeline.measured, rank=0, lane=COMMUNICATION)
    measured.sort(key=lambda span: span.start_seconds)
    compute = {"forward": 0.1, "backward": 0.2, "step": 0.1}
    spans = schedule(select(run.traffic.expected, rank=0), compute, Link(1e-4, 1e9), is_blocking)
    predicted = select(spans, lane=COMMUNICATION)
    assert [span.name for span in predicted] == [span.name for span in measured]
    assert len(predicted) >= 3
    assert total(spans, lane=COMPUTATION) == pytest.approx(0.4)
    assert (overlap(spans).hidden_share > 1e-9) == (not is_blocking)
