"""Verdicts on where ranks stand, without processes: certain ones are given, all others are not."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dpcourse.ranks import witness
from dpcourse.ranks.hang import Call, Standing, first_disagreement, never_ends
from dpcourse.ranks.places import Place

PAIR = Call("0", (0, 1), 6, "all_reduce", ((72,),), ("Float",), is_pending=True)
DONE = replace(PAIR, number=5, is_pending=False)
IN_RECV = (Place("/x/torch/distributed/distributed_c10d.py", 1, "recv"),)


def finished(rank: int, *calls: Call) -> Standing:
    return Standing(rank, is_returned=True, calls=calls)


def waiting(rank: int, *calls: Call) -> Standing:
    return Standing(rank, calls=calls)


def verdict(*standings: Standing) -> str | None:
    """Judge ranks that have stood like this for a while."""
    now = {standing.rank: standing for standing in standings}
    return never_ends(now, [now, now, now])


def test_a_rank_that_has_finished_will_not_come():
    assert verdict(finished(0, DONE), waiting(1, DONE, PAIR)) == (
        "rank 0 finished after 5 collectives, rank 1 waits in all_reduce #6 of [72] float32"
    )


def test_the_line_that_started_a_rank_is_not_shown_as_the_learners():
    started = Place("<string>", 1, "<module>")
    installed = Place("/x/site-packages/torch/autograd.py", 7, "backward")
    assert str(Standing(1, stack=(started, installed))).endswith("line 7, in backward")
    own = Place("lesson.py", 3, "train")
    assert str(Standing(1, stack=(started, own, installed))).endswith("at lesson.py, line 3, in train")


def test_a_finished_rank_that_took_part_is_not_missed():
    assert verdict(finished(0, replace(PAIR, is_pending=False)), waiting(1, PAIR)) is None


def test_a_finished_rank_that_has_forgotten_its_calls_is_not_missed():
    assert verdict(replace(finished(0), has_forgotten=True), waiting(1, PAIR)) is None


def test_sizes_are_compared_by_their_elements():
    assert verdict(waiting(0, PAIR), waiting(1, replace(PAIR, sizes=((8, 9),)))) is None


def test_a_finished_rank_outside_the_group_is_not_missed():
    assert verdict(finished(2), waiting(0, PAIR), Standing(1, stack=(Place("a.py", 1, "f"),))) is None


def test_one_look_is_not_enough():
    now = {0: finished(0, DONE), 1: waiting(1, PAIR)}
    assert never_ends(now, []) is None
    assert never_ends(now, [{0: finished(0, DONE), 1: waiting(1, DONE)}]) is None


@pytest.mark.parametrize(
    "other",
    [
        replace(PAIR, name="broadcast"),
        replace(PAIR, sizes=((36,),)),
        replace(PAIR, dtypes=("Int",)),
    ],
)
def test_two_different_operations_at_one_place_never_meet(other):
    assert verdict(waiting(0, PAIR), waiting(1, other)) == (
        f"rank 0 waits in all_reduce #6 of [72] float32, rank 1 waits in {other}"
    )


def test_operations_whose_sizes_may_differ_are_left_alone():
    gather = replace(PAIR, name="all_gather")
    assert verdict(waiting(0, gather), waiting(1, replace(gather, sizes=((36,),)))) is None


def test_a_scatter_to_which_only_one_rank_brings_something_is_left_alone():
    scatter = replace(PAIR, name="scatter")
    assert verdict(waiting(0, scatter), waiting(1, replace(scatter, sizes=(), dtypes=()))) is None
    assert "int64" in verdict(waiting(0, scatter), waiting(1, replace(scatter, dtypes=("Long",))))


def test_idle_ranks_that_may_wait_for_one_that_computes_are_left_alone():
    assert verdict(waiting(0, PAIR), Standing(1, stack=(Place("a.py", 1, "f"),))) is None


def test_a_receiver_whose_peers_have_all_finished_is_abandoned_only_if_it_is_still():
    receiver = Standing(1, stack=IN_RECV)
    assert verdict(finished(0), receiver) == "rank 0 finished after 0 collectives, rank 1 waits for a peer"
    others = replace(receiver, rank=2), receiver, finished(0)
    assert verdict(*others).endswith("rank 1 waits for a peer, rank 2 waits for a peer")  # in their order
    moving = [{0: finished(0), 1: replace(receiver, cpu_seconds=float(second))} for second in range(4)]
    assert never_ends(moving[3], moving[:3]) is None
    assert verdict(finished(0), replace(receiver, is_alone=False)) is None
    asleep = Standing(1, stack=(Place("a.py", 1, "sleep"),))
    assert verdict(finished(0), asleep) is None


def test_what_ranks_called_is_compared_place_by_place():
    other = replace(PAIR, name="broadcast")
    assert first_disagreement({0: [DONE, PAIR], 1: [DONE, other]}) == (
        "rank 0 called all_reduce #6 of [72] float32, rank 1 called broadcast #6 of [72] float32"
    )
    assert first_disagreement({0: [DONE, PAIR], 1: [DONE, PAIR]}) is None
    assert first_disagreement({0: [PAIR], 1: [DONE, PAIR]}) is None  # a recorder keeps the latest only


def test_a_group_made_anew_counts_anew():
    second = replace(PAIR, name="broadcast")
    assert first_disagreement({0: [PAIR, second], 1: [PAIR, second]}) is None


def test_a_rank_between_two_lines_stands_at_its_function(monkeypatch):
    code = SimpleNamespace(co_filename="<answer f>", co_firstlineno=7, co_name="f")
    frame = SimpleNamespace(f_code=code, f_lineno=None, f_back=None)
    monkeypatch.setattr(witness.sys, "_current_frames", lambda: {1: frame})
    assert str(Place(*witness._stack_of(1)[0])) == "<answer f>, line 7, in f"
