"""How messages share links, as numbers: who waits for whom, without a process or a clock."""

import math

import pytest

from dpcourse.network.cards import Cards, Message, capacities_of, with_another
from dpcourse.ranks.links import Links
from dpcourse.theory.sharing import carry, fair_rates

RATE = 100.0  # bytes a second
# Links are numbers: of host h, 3h sends, 3h + 1 receives, 3h + 2 joins its own ranks.
CARDS = {3 * host + way: RATE for host in range(4) for way in (0, 1)}


def to(source: int, target: int) -> tuple[int, ...]:
    return 3 * source, 3 * target + 1


def ends(paths, sizes, capacities=CARDS, start=0.0):
    return carry(paths, sizes, capacities, start)[1]


@pytest.mark.parametrize(
    ("paths", "seconds"),
    [
        ([to(0, 1)], [1]),
        ([to(0, 1), to(1, 0)], [1, 1]),  # full duplex
        ([to(0, 1), to(1, 2), to(2, 3), to(3, 0)], [1] * 4),  # a ring
        ([to(1, 0), to(2, 0), to(3, 0)], [3] * 3),  # a star: all into one card
        ([to(0, 1), to(0, 2), to(0, 3)], [3] * 3),  # and all out of one
        ([to(a, b) for a in range(4) for b in range(4) if a != b], [3] * 12),  # all to all
        ([to(1, 0), to(2, 0), to(2, 3)], [2, 2, 2]),
        ([(), to(0, 1)], [0, 1]),  # one without a limit
    ],
)
def test_messages_that_start_at_once_end_when_their_fullest_link_lets_them(paths, seconds):
    assert ends(paths, [RATE] * len(paths)) == pytest.approx(seconds)


def test_what_one_link_leaves_on_another_is_taken_up():
    paths = [to(1, 0), to(2, 0), to(3, 0), to(3, 1)]
    assert fair_rates(paths, CARDS) == pytest.approx([RATE / 3] * 3 + [RATE * 2 / 3])


def test_who_is_left_goes_faster():
    assert ends([to(0, 1), to(0, 1)], [50, 100]) == pytest.approx([1.0, 1.5])


def test_no_link_carries_more_than_it_can_and_none_is_idle_without_need():
    paths = [to(0, 1), to(0, 2), to(1, 2), to(3, 2), to(2, 0)]
    rates = fair_rates(paths, CARDS)
    used = {
        link: sum(rate for path, rate in zip(paths, rates, strict=True) if link in path) for link in CARDS
    }
    assert max(used.values()) <= RATE + 1e-9
    for path in paths:
        assert any(used[link] == pytest.approx(RATE) for link in path)


def test_carrying_in_two_parts_is_carrying_at_once():
    paths, sizes = [to(0, 1), to(0, 2), to(3, 2)], [30.0, 200.0, 100.0]
    left, early = carry(paths, sizes, CARDS, 5.0, until=6.0)
    late = ends(
        [p for p, end in zip(paths, early, strict=True) if end == math.inf], [n for n in left if n], start=6.0
    )
    whole = ends(paths, sizes, start=5.0)
    assert [end for end in early if end < math.inf] + late == pytest.approx(whole)
    assert carry(paths, sizes, CARDS, 5.0, until=5.0)[0] == sizes


# -- the table of messages --------------------------------------------------

LINKS = Links("paced", 2, 2, RATE, 10 * RATE)
LIMITS = capacities_of(LINKS)


def message(key, source, target, num_bytes=RATE, waiters=2):
    return Message(key, source, target, waiters, num_bytes)


def entered(*messages_and_starts):
    """Enter messages one after another; give the table, by key."""
    table = []
    for new, start in messages_and_starts:
        table = with_another(table, new, start, LIMITS)
    return {item.key: item for item in table}


def end_of(found):
    return {key: item.end_seconds for key, item in found.items()}


def test_a_message_that_comes_later_slows_down_the_one_that_is_under_way():
    assert end_of(entered((message(1, 0, 1), 10.0))) == pytest.approx({1: 11.0})
    both = entered((message(1, 0, 1), 10.0), (message(2, 0, 1), 10.5))
    assert end_of(both) == pytest.approx({1: 11.5, 2: 12.0})


def test_the_other_way_and_inside_a_host_there_are_other_links():
    found = entered(
        (message(1, 0, 1), 0.0), (message(2, 1, 0), 0.0), (message(3, 0, 0), 0.0), (message(4, 1, 1), 0.0)
    )
    assert end_of(found) == pytest.approx({1: 1.0, 2: 1.0, 3: 0.1, 4: 0.1})
    shared = entered((message(1, 0, 0), 0.0), (message(2, 0, 0), 0.0))
    assert end_of(shared) == pytest.approx({1: 0.2, 2: 0.2})


def test_what_has_passed_stays_as_it_was_until_nobody_waits_for_it():
    found = entered((message(1, 0, 1), 0.0), (message(2, 0, 1, waiters=0), 0.0), (message(3, 0, 1), 5.0))
    assert end_of(found) == pytest.approx({1: 2.0, 3: 6.0})


def test_without_limits_a_message_ends_at_once():
    free = Links("paced", 2, 1, None, None, 0.5)
    assert capacities_of(free) == {}
    assert with_another([], message(1, 0, 1), 3.0, {})[0].end_seconds == 3.0


def test_all_who_map_the_file_see_one_table(tmp_path):
    mine, other = (Cards(LINKS, str(tmp_path / "cards")) for _ in range(2))
    mine.enter(7, 0, 1, 1)
    assert other.end(7) == mine.end(7) is not None
    assert other.end(8) is None
    over = other.wait(7, 0.0)
    assert over == mine.end(7) == mine.wait(7, 0.0)
    mine.enter(8, 0, 1, 1)
    assert mine.end(7) is None  # both have waited for it


def test_a_message_may_be_entered_late_but_not_before_one_that_it_shares_a_link_with():
    late = entered((message(1, 0, 1), 5.0), (message(2, 1, 0), 3.0), (message(3, 0, 1), 4.0))
    assert end_of(late) == pytest.approx({1: 7.0, 2: 4.0, 3: 7.0})
    after = entered((message(1, 0, 1), 5.0), (message(2, 0, 1), 6.0))  # the first has passed
    assert end_of(after) == pytest.approx({1: 6.0, 2: 7.0})


def test_messages_entered_in_any_order_that_share_nothing_have_the_times_of_each_alone():
    ring = [(message(host, host, (host + 1) % 4), float(start)) for host, start in enumerate((3, 0, 2, 1))]
    limits, table = capacities_of(Links("paced", 4, 1, RATE, None)), []
    for new, start in ring:
        table = with_another(table, new, start, limits)
    assert [item.end_seconds for item in table] == [4.0, 1.0, 3.0, 2.0]


def test_one_that_has_passed_had_its_share_though_nobody_waits_for_it_any_more():
    first = entered((message(1, 0, 1), 0.0), (message(2, 0, 1, 2 * RATE), 0.0))
    assert end_of(first) == pytest.approx({1: 2.0, 2: 3.0})
    table = [first[1]._replace(num_waiters=0), first[2]]
    table = with_another(table, message(3, 1, 0), 2.1, LIMITS)  # of another link: the first is still known
    table = with_another(table, message(4, 0, 1, 10.0), 2.5, LIMITS)
    assert end_of({item.key: item for item in table}) == pytest.approx({2: 3.1, 3: 3.1, 4: 2.7})


def test_more_messages_than_there_is_room_for_are_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setattr("dpcourse.network.cards.SLOTS", 2)
    cards = Cards(LINKS, str(tmp_path / "cards"))
    cards.enter(1, 0, 1, 10**6)
    cards.enter(2, 0, 1, 10**6)
    with pytest.raises(RuntimeError, match="3 messages are under way at once, and paced links keep 2; wait"):
        cards.enter(3, 0, 1, 10**6)
