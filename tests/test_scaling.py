"""Machines of two levels, worked out by hand and against a simulation; a step from 1 to 100,000 ranks."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

import dpcourse as dc
from dpcourse.ledger import COMMUNICATION, Span, Transfer, select, total
from dpcourse.models import Mlp
from dpcourse.ranks.links import Links
from dpcourse.scaling import EXAMPLE_WORK, latency_walls, scale
from dpcourse.tables import seconds_text
from dpcourse.theory import hierarchy, links, step
from dpcourse.theory.hierarchy import Cost, Machine, all_reduce_cost, gather_cost, reduce_cost
from dpcourse.theory.links import Link
from dpcourse.theory.schedule import PHASES, schedule, step_seconds
from dpcourse.theory.step import Work, transformer_work

MEGABYTE = 1_000_000
SLOW, FAST = Link(0.1, MEGABYTE), Link(0.01, 10 * MEGABYTE)
PAIRS = Machine(SLOW, FAST, ranks_per_host=2)
FOURS = Machine(SLOW, FAST, ranks_per_host=4)


def approx(latency_seconds, bytes_seconds):
    return pytest.approx((latency_seconds, bytes_seconds))


def parts(cost):
    return cost.latency_seconds, cost.bytes_seconds


# -- one collective on two levels, by hand ---------------------------------------


def test_a_flat_ring_crosses_each_card_once_and_pays_for_the_hops_between_hosts():
    # 2 hosts of 2: six hops, of which at most three cross; each card sends 2 * 3/4 of 4 MB
    assert parts(all_reduce_cost("ring", 4 * MEGABYTE, PAIRS, 4)) == approx(3 * 0.1 + 3 * 0.01, 6.0)


def test_hierarchical_shares_the_card_among_the_rings_of_all_local_ranks():
    # inside: 2 MB each way at 10 MB/s; across: two rings of 2 MB, each sends 2 MB over the one card
    cost = all_reduce_cost("hierarchical", 4 * MEGABYTE, PAIRS, 4)
    assert parts(cost) == approx(0.01 + 2 * 0.1 + 0.01, 0.2 + 4.0 + 0.2)


def test_a_double_tree_pays_log_h_latencies_across_and_at_most_twice_the_tensor_on_a_card():
    # 4 hosts of 4: two levels up, two down; three hops in a chain inside each way
    assert parts(all_reduce_cost("tree", 4 * MEGABYTE, FOURS, 16)) == approx(4 * 0.1 + 6 * 0.01, 8.0)
    assert parts(all_reduce_cost("tree", 4 * MEGABYTE, FOURS, 8)) == approx(2 * 0.1 + 6 * 0.01, 4.0)


def test_halving_and_doubling_sends_a_ring_s_bytes_from_every_rank_of_a_host():
    # 2 hosts of 2: both ranks send half of 4 MB across, a quarter inside; and back
    cost = all_reduce_cost("halving-doubling", 4 * MEGABYTE, PAIRS, 4)
    assert parts(cost) == approx(2 * (0.1 + 0.01), 2 * (2 * 2.0 + 0.1))
    # 3 hosts of 2: ranks 4 and 5 hand over 4 MB each, and get it back
    cost = all_reduce_cost("halving-doubling", 4 * MEGABYTE, PAIRS, 6)
    assert parts(cost) == approx(2 * (0.1 + 0.01 + 0.1), 2 * (2 * 2.0 + 0.1 + 2 * 4.0))


def test_a_unit_sharded_over_all_is_gathered_across_and_a_hybrid_s_inside():
    assert parts(gather_cost(4 * MEGABYTE, PAIRS, 4)) == approx(2 * 0.1 + 0.01, 3.0)
    assert parts(gather_cost(4 * MEGABYTE, PAIRS, 4, is_hybrid=True)) == approx(0.01, 0.2)
    assert parts(reduce_cost(4 * MEGABYTE, PAIRS, 4)) == approx(2 * 0.1 + 0.01, 3.0)
    hybrid = reduce_cost(4 * MEGABYTE, PAIRS, 4, is_hybrid=True)
    assert parts(hybrid) == approx(0.01 + 2 * 0.1, 0.2 + 4.0)


def test_gloo_reduces_twice_as_much_in_twice_as_many_rounds():
    for num_ranks, is_hybrid in product((2, 4, 8), (False, True)):
        ideal = hierarchy.ring_cost("reduce_scatter", MEGABYTE, PAIRS.everyone(num_ranks), PAIRS)
        gloo = hierarchy.ring_cost("reduce_scatter", MEGABYTE, PAIRS.everyone(num_ranks), PAIRS, "gloo")
        assert gloo.bytes_seconds == 2 * ideal.bytes_seconds
        assert gloo == hierarchy.ring_cost("all_reduce", MEGABYTE, PAIRS.everyone(num_ranks), PAIRS)
        assert reduce_cost(MEGABYTE, PAIRS, num_ranks, is_hybrid, "gloo").seconds > (
            reduce_cost(MEGABYTE, PAIRS, num_ranks, is_hybrid).seconds
        )


def test_a_loopback_is_shared_by_the_ranks_of_a_host_as_the_card_is():
    loopback = Machine(Link(0, math.inf), Link(0, MEGABYTE), 2, shares_intra=True)
    assert gather_cost(4 * MEGABYTE, loopback, 4, is_hybrid=True).seconds == 4.0
    assert all_reduce_cost("ring", 4 * MEGABYTE, loopback, 4).seconds == 6.0  # the other rank's goes across


@pytest.mark.parametrize("algorithm", sorted(hierarchy.ALL_REDUCES))
def test_every_all_reduce_is_free_alone_and_on_two_ranks_sends_one_tensor(algorithm):
    single = Machine(SLOW, FAST, 1)
    assert all_reduce_cost(algorithm, MEGABYTE, single, 1) == Cost()
    assert all_reduce_cost(algorithm, MEGABYTE, single, 2).bytes_seconds == pytest.approx(1.0)
    assert parts(all_reduce_cost(algorithm, MEGABYTE, PAIRS, 2)) == approx(2 * 0.01, 0.1)


def test_with_one_rank_a_host_a_machine_is_a_single_link():
    single = Machine(SLOW, FAST, 1)
    for num_ranks in (2, 3, 4, 7, 8):
        ring = all_reduce_cost("ring", MEGABYTE, single, num_ranks).seconds
        assert ring == pytest.approx(links.ring_seconds(MEGABYTE, num_ranks, SLOW))
        assert ring == pytest.approx(all_reduce_cost("hierarchical", MEGABYTE, single, num_ranks).seconds)
    halving = all_reduce_cost("halving-doubling", MEGABYTE, single, 8).seconds
    assert halving == pytest.approx(links.halving_doubling_seconds(MEGABYTE, 8, SLOW))


def ring_walk_in_time(machine, num_ranks, num_hops, piece_bytes):
    """Every message of a ring one by one: a rank passes on what has come as soon as its link is free."""
    ready, free = [0.0] * num_ranks, [0.0] * num_ranks
    for _ in range(num_hops):
        arrived = [0.0] * num_ranks
        for rank in range(num_ranks):
            after = (rank + 1) % num_ranks
            is_across = rank // machine.ranks_per_host != after // machine.ranks_per_host
            link = machine.inter if is_across else machine.intra
            free[rank] = max(ready[rank], free[rank]) + piece_bytes / link.bytes_per_second
            arrived[after] = free[rank] + link.latency_seconds
        ready = arrived
    return max(ready)


@pytest.mark.parametrize("payload", [1e3, 1e5, 1e6, 1e8])
def test_a_ring_s_cost_holds_against_each_of_its_messages(payload):
    for per_host, hosts in product((1, 2, 4), (1, 2, 3, 8)):
        machine, num_ranks = Machine(SLOW, FAST, per_host), per_host * hosts
        cost = all_reduce_cost("ring", payload, machine, num_ranks)
        found = ring_walk_in_time(machine, num_ranks, 2 * (num_ranks - 1), payload / num_ranks)
        assert max(parts(cost)) - 1e-9 <= found <= cost.seconds + 1e-9
        if per_host == 1 or hosts == 1:
            assert found == pytest.approx(cost.seconds)  # all links alike: exact


# -- the cost of a list's transfers -------------------------------------------------


def transfer(collective, group, megabytes=4, sent=None):
    return Transfer(collective, "unit", group, megabytes * MEGABYTE, sent, "backward")


def test_a_transfer_costs_what_its_group_s_hosts_make_it_cost():
    for collective, group, expected in (
        ("all_reduce", (0, 1, 2, 3), all_reduce_cost("ring", 4 * MEGABYTE, PAIRS, 4)),
        ("all_gather", (2, 3), gather_cost(4 * MEGABYTE, PAIRS, 4, is_hybrid=True)),
        ("all_reduce", (1, 3), Cost(0.2, 8.0)),  # and (0, 2) at the same time over the same card
        ("send", (1, 2), Cost(0.1, 4.0)),
        ("send", (2, 3), Cost(0.01, 0.4)),
        ("broadcast", (0, 1, 2, 3), Cost(0.11, 3.0)),
    ):
        assert parts(hierarchy.transfer_cost(transfer(collective, group), PAIRS)) == approx(*parts(expected))
    gloo = hierarchy.transfer_cost(transfer("reduce_scatter", (0, 1, 2, 3), sent=6 * MEGABYTE), PAIRS, "gloo")
    assert gloo == all_reduce_cost("ring", 4 * MEGABYTE, PAIRS, 4)
    assert hierarchy.transfer_seconds(transfer("all_reduce", (0, 1)), SLOW) == 0.2 + 4.0


def test_ranks_that_fill_no_hosts_and_ways_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match="6 ranks do not fill hosts of 4; ask for 4 or 8"):
        all_reduce_cost("ring", MEGABYTE, FOURS, 6)
    with pytest.raises(ValueError, match="ranks=0: give a whole number from 1 on"):
        all_reduce_cost("ring", MEGABYTE, FOURS, 0)
    with pytest.raises(ValueError, match="ranks_per_host=0: give a whole number"):
        Machine(SLOW, FAST, 0)
    with pytest.raises(ValueError, match="algorithm='star': give 'ring', 'tree'"):
        all_reduce_cost("star", MEGABYTE, FOURS, 4)
    with pytest.raises(ValueError, match="collective='broadcast': give 'all_reduce'"):
        hierarchy.ring_cost("broadcast", MEGABYTE, FOURS.everyone(4), FOURS)
    with pytest.raises(ValueError, match="give a bandwidth above 0"):
        Machine(Link(0, 0), FAST, 1)


# -- one step on many ranks -----------------------------------------------------------

WORK = Work(8 * MEGABYTE, forward_seconds=2.0, backward_seconds=4.0, num_units=4, bucket_bytes=2 * MEGABYTE)


def test_a_step_of_ddp_hides_all_buckets_but_the_last_where_the_link_keeps_up():
    single = Machine(Link(0, 2 * MEGABYTE), FAST, 1)  # a bucket of 2 MB takes a second on two ranks
    found = step.point("ring", 2, WORK, single)
    assert (found.step_seconds, found.compute_seconds, found.efficiency) == (7.0, 6.0, 6 / 7)
    assert found.is_hidden
    assert parts(found.communication) == (0, 4.0)
    slow = step.point("ring", 2, WORK, Machine(Link(0, MEGABYTE), FAST, 1))  # two seconds each
    assert (slow.step_seconds, slow.is_hidden) == (2 + 1 + 4 * 2, False)


def test_a_step_of_fsdp_gathers_twice_and_reduces_once_by_hand():
    single = Machine(Link(0, 2 * MEGABYTE), FAST, 1)  # half a second to gather, half to reduce, of 0.5 and 1
    found = step.point("fsdp", 2, WORK, single)
    assert parts(found.communication) == (0, 3 * 4 * 0.5)
    assert found.step_seconds == (0.5 + 2.0) + (0.5 + 4.0 + 0.5)
    assert step.point("hybrid", 2, WORK, single).step_seconds == 2.0 + (4.0 + 1.0)  # replicas only: DDP


MACHINES = (
    PAIRS,
    FOURS,
    Machine(Link(1e-3, 50e6), Link(1e-4, 1e9), 8),
    Machine(Link(0, 1e7), Link(0, 1e7), 1),
)
LOADS = (WORK, Work(8 * MEGABYTE, 0.01, 0.02, 0.1, 7), Work(3 * MEGABYTE, 50.0, 90.0, 1.0, 1))


def laid_out(strategy: str, num_ranks: int, work: Work, machine: Machine, is_strong: bool) -> list[Span]:
    """Lay a step out on a clock, collective by collective: spans as a timeline has them."""
    work = work.shared_by(num_ranks) if is_strong else work
    phases = (work.forward_seconds, work.backward_seconds, work.optimizer_seconds)
    compute = dict(zip(PHASES, phases, strict=True))
    if num_ranks == 1:
        return schedule([], compute, machine)
    if strategy in step.SHARDED:
        return schedule(_sharded_step(work, machine, num_ranks, strategy == "hybrid"), compute, machine)
    return schedule(
        _bucketed_step(work, num_ranks),
        compute,
        lambda transfer: all_reduce_cost(strategy, transfer.payload_bytes, machine, num_ranks).seconds,
    )


def _bucketed_step(work: Work, num_ranks: int) -> Iterator[Transfer]:
    everyone, payload = tuple(range(num_ranks)), round(work.payload_bytes / work.num_buckets)
    for index in range(work.num_buckets):
        yield Transfer("all_reduce", f"bucket {index}", everyone, payload, None, "backward")


def _sharded_step(work: Work, machine: Machine, num_ranks: int, is_hybrid: bool) -> Iterator[Transfer]:
    """Gather in forward; in backward gather the next unit before one is reduced."""
    on_host = machine.everyone(num_ranks).num_on_host
    shards = tuple(range(on_host if is_hybrid else num_ranks))
    replicas = tuple(range(0, num_ranks, on_host)) if is_hybrid else (0,)
    payload = round(work.payload_bytes / work.num_units)
    units = [f"unit {index}" for index in range(work.num_units)]

    def reduced(unit: str) -> Iterator[Transfer]:
        yield Transfer("reduce_scatter", unit, shards, payload, None, "backward")
        yield Transfer("all_reduce", unit, replicas, payload // len(shards), None, "backward")

    for unit in units:
        yield Transfer("all_gather", unit, shards, payload, None, "forward")
    for index, unit in enumerate(units):
        yield Transfer("all_gather", unit, shards, payload, None, "backward")
        if index:
            yield from reduced(units[index - 1])
    yield from reduced(units[-1])


@pytest.mark.parametrize("strategy", step.STRATEGIES)
def test_the_closed_form_is_the_schedule_laid_out_collective_by_collective(strategy):
    for machine, work, num_ranks, is_strong in product(MACHINES, LOADS, (1, 2, 8, 64), (False, True)):
        found = step.point(strategy, num_ranks, work, machine, is_strong).step_seconds
        spans = laid_out(strategy, num_ranks, work, machine, is_strong)
        assert found == pytest.approx(step_seconds(spans), rel=1e-6)  # payloads are whole bytes there


def test_a_transformer_s_work_is_six_operations_for_each_parameter_and_token():
    work = transformer_work(1e9, tokens_per_rank=1000, operations_per_second=1e12)
    assert (work.forward_seconds, work.backward_seconds, work.payload_bytes) == (2.0, 4.0, 2e9)
    assert work.num_buckets == 77


# -- from 1 to 100,000 ranks ------------------------------------------------------------


@pytest.fixture(scope="module")
def scaling():
    return scale()


def test_alone_every_strategy_computes_and_from_there_on_communication_only_grows(scaling):
    for strategy in scaling.strategies:
        found = scaling.points(strategy)
        assert (found[0].efficiency, found[0].communication) == (1.0, Cost())
        efficiencies = [point.efficiency for point in found]
        assert efficiencies == sorted(efficiencies, reverse=True)
        assert found[-1].num_ranks == 100_000


def test_a_wall_is_the_first_number_of_ranks_behind_it(scaling):
    for strategy in scaling.strategies:
        wall = scaling.wall(strategy)
        for wall_at, is_over in (
            (wall.half_from, lambda point: point.efficiency < 0.5),
            (wall.exposed_from, lambda point: not point.is_hidden),
            (wall.latency_from, lambda p: p.communication.latency_seconds > p.communication.bytes_seconds),
        ):
            before, behind = ((wall_at or 100_008) - 8, wall_at or 100_000)
            assert not is_over(scaling.point(strategy, before))
            assert is_over(scaling.point(strategy, behind)) == (wall_at is not None)


def test_on_the_example_a_ring_meets_its_wall_around_512_ranks_and_a_tree_never(scaling):
    walls = {strategy: scaling.wall(strategy) for strategy in scaling.strategies}
    ring = walls["ring"]
    assert ring.exposed_from < 512 < ring.half_from < 1024
    assert ring.why.startswith(f"latency: at {ring.half_from} ranks latency takes")
    assert walls["tree"].half_from is None
    assert walls["tree"].why.startswith("no wall: at 100,000 ranks")
    order = ("ring", "fsdp", "hierarchical", "hybrid")
    assert sorted(order, key=lambda strategy: walls[strategy].half_from) == list(order)


def test_a_wall_inside_one_host_is_found_and_one_of_latency_that_a_slow_card_takes_back_is_not():
    slow_inside = Machine(Link(1.0, MEGABYTE), Link(0.5, 10 * MEGABYTE), 8)
    assert scale(WORK, slow_inside, ["ring"]).wall("ring").half_from == 3
    narrow_card = Machine(Link(1e-6, 1e5), Link(1e-3, 1e12), 8)  # latency inside, bytes across, latency again
    inside = step.point("ring", 8, WORK, narrow_card).communication
    assert inside.latency_seconds > inside.bytes_seconds
    assert scale(WORK, narrow_card, ["ring"]).wall("ring").latency_from > 16


def test_on_a_narrow_link_the_wall_is_bandwidth_and_where_ranks_share_the_work_too_little_of_it():
    narrow = Machine(Link(0, 100e6), Link(0, 100e9), 8)
    assert scale(machine=narrow).wall("tree").why.startswith("bandwidth: at 16 ranks latency takes 0 us")
    assert scale(is_strong=True).wall("ring").why.startswith("too little computation: at 24 ranks")
    work = EXAMPLE_WORK.shared_by(64)
    assert scale(is_strong=True).point("ring", 64) == scale(work).point("ring", 64)


def test_past_512_is_true_of_a_bucket_on_one_link_and_of_no_other_payload_or_link():
    table = latency_walls()
    assert table.columns[2] == "100 Gbit/s after 4 us"
    column = [table.number(row, table.columns[2]) for row in range(len(table.rows))]
    assert column[1] == 525  # 25 MiB
    assert column[0] < 30
    assert column[-1] > 100_000
    for row, payload in enumerate((2**20, 25 * 2**20)):
        wall = int(column[row])
        link = Machine(Link(4e-6, 12.5e9), FAST, 1)
        for num_ranks, is_over in ((wall - 1, False), (wall, True)):
            cost = all_reduce_cost("ring", payload, link, num_ranks)
            assert (cost.latency_seconds > cost.bytes_seconds) == is_over


def test_a_scaling_shows_itself_in_words_a_table_and_a_figure(scaling):
    text = str(scaling)
    assert "100,000" in text
    assert "1600 Gbit/s after 14 us between" in text
    assert "under 50 %" in scaling.to_html()
    figure = scaling.plot()
    assert (
        f"ring: {seconds_text(scaling.points('ring')[-1].step_seconds)} at the end, under 50 % from 776"
        in (figure.alt)
    )
    assert "tree: 457.11 ms at the end, never under 50 %" in figure.alt
    assert figure.png().startswith(b"\x89PNG")


def test_what_is_computed_is_drawn_broken_and_each_strategy_bears_its_name_and_its_wall(scaling):
    [ax] = scaling.plot().draw().axes
    names = [text.get_text() for text in ax.texts]
    for strategy, line in zip(
        scaling.strategies, [line for line in ax.lines if line.get_lw() == 2], strict=False
    ):
        wall = scaling.wall(strategy).half_from
        assert f"{strategy}: {f'under 50 % from {wall:,}' if wall else 'never under 50 %'}" in names
        assert list(line.get_ydata()) == [point.step_seconds for point in scaling.points(strategy)]
        assert line.is_dashed()


def test_work_that_is_none_and_machines_without_ranks_are_refused():
    with pytest.raises(
        ValueError, match="payload_bytes=0 in buckets of bucket_bytes=26214400: give sizes above"
    ):
        Work(0, 1.0, 1.0)
    with pytest.raises(
        ValueError, match=r"forward, backward and optimizer take -1\.0, 1\.0 and 0\.0 seconds"
    ):
        Work(1, -1.0, 1.0)
    with pytest.raises(ValueError, match="one of them above 0"):
        Work(1, 0.0, 0.0)
    with pytest.raises(ValueError, match="num_units=0: give a whole number"):
        Work(1, 1.0, 1.0, num_units=0)
    with pytest.raises(ValueError, match="operations_per_second=0: give"):
        transformer_work(1e9, 1000, 0)
    with pytest.raises(ValueError, match="strategy='star': give 'ring'"):
        scale(strategies=["star"])
    with pytest.raises(ValueError, match="12 ranks do not fill hosts of 8; ask for 8 or 16"):
        scale(ranks=[8, 12])
    with pytest.raises(ValueError, match="no strategy or no number of ranks"):
        scale(ranks=[])
    with pytest.raises(ValueError, match="ranks has 800,000; the model was thought through up to 100,000"):
        scale(ranks=[800_000])
    for size in (0, -5, math.nan, "1MB"):
        with pytest.raises(ValueError, match=r"payload_bytes=.*give a whole number from 1 on"):
            latency_walls([size])


# -- beside a measurement: two emulated hosts of two ranks, gloo, 500 Mbit/s between them --------

MEASURED_SECONDS = {"ddp": 1.00, "fsdp2": 1.91, "hybrid": 1.02}  # 8.4 million parameters
MEASURED_ACROSS = {"ddp": 1.503, "fsdp2": 3.007, "hybrid": 1.002}  # bytes a card sends, per parameter-byte
PERCEPTRON = Mlp(features=1024, width=1024, depth=8, classes=10)
LISTS = {
    name: select(dc.expect(strategy, model=PERCEPTRON, ranks=4, **options).traffic, rank=0)
    for name, strategy, options in (
        ("ddp", "ddp", {}),
        ("fsdp2", "fsdp2", {}),
        ("hybrid", "fsdp2", {"mesh": (2, 2)}),
    )
}
CARD = Link(0, 500e6 / 8)


def emulated(loopback_bytes_per_second):
    return Machine(CARD, Link(0, loopback_bytes_per_second), ranks_per_host=2, shares_intra=True)


def predicted_seconds(name, machine, compute_seconds):
    compute = {"forward": compute_seconds / 3, "backward": compute_seconds * 2 / 3}
    return step_seconds(schedule(LISTS[name], compute, machine, name != "ddp", "gloo"))


def compute_seconds_of_ddp(machine):
    """The one unknown: how long the ranks computed, so that DDP takes what was measured."""
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        is_less = predicted_seconds("ddp", machine, middle) < MEASURED_SECONDS["ddp"]
        low, high = (middle, high) if is_less else (low, middle)
    return low


def errors(machine):
    """How far the times of FSDP2, whole and hybrid, are from the measured ones, DDP's being met."""
    compute = compute_seconds_of_ddp(machine)
    return [
        predicted_seconds(name, machine, compute) / MEASURED_SECONDS[name] - 1 for name in ("fsdp2", "hybrid")
    ]


def test_bytes_that_cross_a_card_are_those_that_its_counter_measured():
    machine = Machine(Link(0, 4 * PERCEPTRON.layout().num_params), Link(0, math.inf), 2)  # once in a second
    for name, across in MEASURED_ACROSS.items():
        moved = [item for item in LISTS[name] if item.phase != "init"]
        seconds = sum(hierarchy.transfer_seconds(item, machine, "gloo") for item in moved)
        assert seconds == pytest.approx(across, rel=0.005)  # headers are 0.2 to 0.4 % of what a card counts


def test_one_measured_time_gives_the_two_others_with_an_error_that_is_the_loopback_s():
    # FSDP2 waits for the card alone; a hybrid moves four times the model over each host's loopback, whose
    # rate nobody wrote down. Free, it leaves the hybrid 18 % short; at 1 GB/s 5 %; at 0.7 GB/s nothing.
    for loopback, hybrid_error in ((math.inf, -0.18), (1e9, -0.05), (0.7e9, 0.0)):
        found = errors(emulated(loopback))
        assert found == pytest.approx([0.0, hybrid_error], abs=0.02)


def test_without_hosts_in_the_model_the_measured_times_come_out_wrong():
    def error(name):
        spans = schedule(LISTS[name], {"forward": 0.1, "backward": 0.2}, CARD, name != "ddp", "gloo")
        return step_seconds(spans) / MEASURED_SECONDS[name] - 1

    assert abs(error("fsdp2")) < 0.05
    assert error("hybrid") > 0.5  # what stays inside a host would have gone over a card


def test_a_run_on_hosts_predicts_its_step_on_them_and_another_asks_for_a_link():
    run = dc.train("ddp", model="mlp", ranks=2)
    with pytest.raises(ValueError, match=r"on no emulated hosts.*name a link: predicted\(Link"):
        run.timeline.predicted()
    apart, together = (
        replace(run, links=Links("paced", *shape, inter_bytes_per_second=1e3, intra_bytes_per_second=1e6))
        for shape in ((2, 1), (1, 2))
    )
    for on_hosts, rate in ((apart, 1e3), (together, 0.5e6)):  # both ranks of a host share its inside
        moved = total(select(on_hosts.timeline.predicted(), lane=COMMUNICATION))
        assert moved == pytest.approx(run.traffic.expected_sent_bytes() / rate)
