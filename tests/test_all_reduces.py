"""All-reduces compared: every rank's bytes by the kernel's count, and which algorithm a latency favours."""

import re
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

import dpcourse as dc
from dpcourse import experiments
from dpcourse.experiments.few_or_many import HALVING, RING, TREE, FewOrMany, Race
from dpcourse.experiments.wire_counts import Counted, WireCounts
from dpcourse.measure.wire import WireCounter, is_available
from dpcourse.parts.traffic import HEADER_BYTES, HEADER_SHARE
from dpcourse.ranks.links import Links
from dpcourse.scratch import tree
from dpcourse.theory import links, ring
from dpcourse.theory import tree as tree_bytes
from dpcourse.theory.links import Link

pytestmark = pytest.mark.long

LINK = Link(latency_seconds=1.0, bytes_per_second=1.0)


# -- formulas


def test_a_star_takes_n_times_as_long_as_a_ring_where_there_is_no_latency():
    link = Link(0.0, 1e6)
    for num_ranks in (2, 3, 8):
        ratio = links.star_seconds(10**6, num_ranks, link) / links.ring_seconds(10**6, num_ranks, link)
        assert ratio == pytest.approx(num_ranks)


def test_a_tree_s_time_is_its_longest_way_and_what_passes_its_root():
    assert links.tree_seconds(1, 8, LINK) == 6 + 6
    assert links.tree_seconds(1, 6, LINK) == 4 + 6
    assert links.tree_seconds(1, 2, LINK) == 2 + 2
    assert links.star_seconds(7, 1, LINK) == links.tree_seconds(7, 1, LINK) == 0


def test_halving_and_doubling_pays_for_ranks_beyond_a_power_of_two():
    """On 6 ranks rank 0 takes in rank 4's tensor, halves and doubles over 4, and gives the result back."""
    assert links.halving_doubling_seconds(8, 6, LINK) == (1 + 4 + 1) + (8 + 12 + 8)
    assert links.halving_doubling_seconds(8, 8, LINK) == 6 + 14


@pytest.mark.parametrize("num_ranks", range(1, 10))
def test_a_tree_sends_as_much_in_all_as_any_algorithm_that_adds_in_one_place(num_ranks):
    sent = [tree_bytes.all_reduce_sent_bytes(100, num_ranks, rank) for rank in range(num_ranks)]
    assert sum(sent) == 2 * (num_ranks - 1) * 100
    assert sent[0] == 100 * (num_ranks - 1).bit_length()


# -- the tree on real ranks


def _tree_sums(num_ranks_each):
    found = []
    for count in num_ranks_each:
        group = dist.new_group(list(range(count)))
        if dist.get_rank() < count:
            tensor = torch.arange(30.0).view(5, 6).t() + dist.get_rank()  # does not lie in a row
            dist.barrier(group)
            counter = WireCounter()
            tree.all_reduce(tensor, group)
            sent = counter.sent_since_last()
            dist.barrier(group)
            found.append((tensor, sent))
    return found


def test_a_tree_gives_every_rank_the_sum_and_sends_what_its_formula_says():
    counts = (1, 2, 3, 5)
    results = dc.launch(_tree_sums, counts, ranks=5, device="cpu")
    for place, count in enumerate(counts):
        expected = count * torch.arange(30.0).view(5, 6).t() + sum(range(count))
        for rank in range(count):
            tensor, sent = results[rank][place - (counts.index(next(c for c in counts if c > rank)))]
            assert torch.equal(tensor, expected)
            formula = tree_bytes.all_reduce_sent_bytes(120, count, rank)
            assert sent is None or formula <= sent <= formula + HEADER_BYTES


# -- bytes


@pytest.fixture(scope="module")
def counts():
    return experiments.wire_counts(most=3, payload_bytes=120_000)


def test_every_rank_of_star_ring_and_gloo_sends_what_the_formulas_say(counts):
    assert [(row.algorithm, row.num_ranks) for row in counts.rows] == [
        (name, count) for name in ("star", "ring", "gloo") for count in (2, 3)
    ]
    assert counts.one("star", 3).expected_bytes == (240_000, 120_000, 120_000)
    assert counts.one("ring", 3).expected_bytes == (160_000,) * 3
    assert counts.one("gloo", 2).expected_bytes == (120_000,) * 2
    for row in counts.rows if is_available() else []:
        for sent, expected in zip(row.sent_bytes, row.expected_bytes, strict=True):
            assert expected <= sent <= expected + max(HEADER_SHARE * expected, HEADER_BYTES)


def test_all_ranks_together_send_as_much_in_a_ring_as_in_a_star(counts):
    for count in (2, 3):
        whole = {name: sum(counts.one(name, count).expected_bytes) for name in ("star", "ring")}
        assert whole["star"] == whole["ring"] == 2 * (count - 1) * 120_000


def test_a_rank_that_sends_too_much_or_too_little_is_off(monkeypatch):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    right = Counted("ring", (750_100, 750_200), (750_000, 750_000))

    def verdict(row):
        rows = tuple(replace(row, algorithm=name) for name in ("star", "ring", "gloo"))
        return WireCounts(10**6, rows).table().rows[0][4]

    assert verdict(right) == "formula and headers"
    assert verdict(replace(right, sent_bytes=(750_100, 999_000))) == "off"
    assert verdict(replace(right, sent_bytes=(500_000, 750_100))) == "off"
    assert verdict(replace(right, sent_bytes=None)) == "no kernel count here"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"most": 1}, "most=1: one rank sends nothing; give 2 at least"),
        ({"most": 0}, "most"),
        (
            {"payload_bytes": 1000},
            "payload_bytes=1000 does not cut into 3 equal pieces .* such as 1680000 for 8",
        ),
    ],
)
def test_groups_and_payloads_that_cannot_be_counted_are_refused_before_anything_starts(
    asked, said, no_process
):
    with pytest.raises(ValueError, match=said):
        experiments.wire_counts(**asked)


def test_what_was_not_counted_is_named(counts):
    with pytest.raises(
        ValueError, match="'ring' on 8 ranks was not counted; there is star, ring, gloo on 2 to 3"
    ):
        counts.one("ring", 8)


# -- times


@pytest.fixture(scope="module")
def races():
    return experiments.few_or_many(hosts=(3, 4), sizes=(4096, 120_000), latency="4ms", repeats=1)


def test_every_case_is_timed_and_no_message_arrives_before_its_latency(races):
    assert races.cases == [(3, 4096), (3, 120_000), (4, 4096), (4, 120_000)]
    assert [row.algorithm for row in races.of(3, 4096)] == [RING, HALVING, TREE]
    rounds = {(RING, 4): 6, (HALVING, 4): 4, (TREE, 4): 4, (RING, 3): 4, (HALVING, 3): 4, (TREE, 3): 2}
    for row in races.rows:
        assert row.median_seconds > 0.95 * rounds[row.algorithm, row.num_ranks] * 4e-3


def _raced(**seconds):
    rows = [Race(4, 8, name, (seconds[key],), 1.0 + i) for i, (key, name) in enumerate(_KEYS.items())]
    return FewOrMany(Links("paced", 4, 1, 12.5e6, None, 1e-3), tuple(rows))


_KEYS = {"ring": RING, "halving": HALVING, "tree": TREE}


def test_the_winner_is_the_quickest_by_the_clock_and_by_the_formula():
    found = _raced(ring=3.0, halving=2.0, tree=4.0)
    assert found.winner(4, 8) == HALVING
    assert found.expected_winner(4, 8) == RING
    assert "8 B on 4 hosts: halving and doubling (by the formula ring)" in found.words()


def test_by_the_formulas_each_algorithm_has_its_case():
    """Few bytes: fewest messages. Many bytes: fewest bytes, the ring's where n is no power of two."""
    link = Link(1e-2, 25e6)
    small, large = 4096, 1 << 20

    def best(size, count):
        ways = {RING: links.ring_seconds, HALVING: links.halving_doubling_seconds, TREE: links.tree_seconds}
        return min(ways, key=lambda name: ways[name](size, count, link))

    assert (best(small, 8), best(large, 8), best(small, 6), best(large, 6)) == (HALVING, HALVING, TREE, RING)
    assert ring.num_steps(8) == 14


@pytest.mark.parametrize("name", ["counts", "races"])
def test_both_show_a_table_and_a_figure_with_words(name, request, monkeypatch):
    result = request.getfixturevalue(name)
    figure = result.plot()
    assert figure.png().startswith(b"\x89PNG")
    assert result.words() in figure.alt
    assert result.words() in str(result)
    assert "<img" in result.to_html()
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    assert not re.search(r"measured|off\b|\d\.\d{3}\b.*\d\.\d{3}\b.*\d\.\d{3}\b", str(result))


def test_sizes_that_are_no_numbers_of_fp32_are_refused():
    with pytest.raises(
        ValueError, match="sizes has 1001 bytes, and a number of fp32 has 4; give multiples of 4"
    ):
        experiments.few_or_many(sizes=(1001,))
