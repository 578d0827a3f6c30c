"""Machines of two levels, worked out by hand and against a simulation; a step from 1 to 100,000 ranks."""

import math
from itertools import product

import pytest

from dpcourse.ledger import Transfer
from dpcourse.theory import hierarchy, links
from dpcourse.theory.hierarchy import Cost, Machine, all_reduce_cost, gather_cost, reduce_cost
from dpcourse.theory.links import Link

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
