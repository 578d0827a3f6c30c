"""The table of decisions: every path is walked, and each answer is what the ranking puts first."""

from itertools import product

import pytest

import dpcourse as dc
from dpcourse.planning import decision
from dpcourse.planning.candidates import Candidate
from dpcourse.planning.clock import StepTime
from dpcourse.planning.decision import RECOMPUTED, TREE, Facts, Path, Question, answers, walk
from dpcourse.planning.peak import Held, Memory
from dpcourse.planning.ranking import PREFERENCE, Row, facts_of, number_and_reason, ranked

CARD = 80
SHARDED = ("kept", "full", "hybrid")
SEVERAL = ["ddp", "kept", "full", "hybrid"]
# What one candidate can be like: too large, or it fits in a step of so many seconds.
LIKE = [(CARD + 1, 1.0), (CARD, 1.0), (CARD, 1.2)]
OPTIONS = {
    "kept": {"reshard_after_forward": False},
    "full": {},
    "hybrid": {"mesh": (2, 2)},
    "offload": {"cpu_offload": True},
}


def row(key: str, peak: int, seconds: float) -> Row:
    family, _, recomputed = key.partition("+")
    strategy = "fsdp2" if family in OPTIONS else family
    mode = "full" if recomputed else "none"
    candidate = Candidate(strategy, OPTIONS.get(family, {}), 0, family, mode)
    memory = Memory((Held("loss", {"activations": peak}),), 0, 0, 0, 0)
    return Row(candidate, "bf16", memory, StepTime(seconds, seconds, 0.0, 0.0, 0), CARD)


def situations():
    """Every way in which candidates can fit and be quick, on one card, on one host and on two."""
    for single, again, offload, layer in product(LIKE[:2], LIKE[:2], LIKE[:2], (CARD, CARD + 1)):
        rows = [row("single", *single), row("single+recompute", *again), row("offload", *offload)]
        yield rows, facts_of(rows, 1, 1, CARD, layer)
    keys = [key + suffix for suffix in ("", RECOMPUTED) for key in SEVERAL]
    for likes in product(LIKE, repeat=len(keys)):
        for hosts, offload, layer in ((1, LIKE[1], CARD), (2, LIKE[1], CARD)):
            rows = [
                row(key, *like)
                for key, like in zip(keys, likes, strict=True)
                if hosts > 1 or not key.startswith("hybrid")
            ]
            rows.append(row("offload", *offload))
            yield rows, facts_of(rows, 4, hosts, CARD, layer)
    for offload, layer, hosts in product(LIKE[:2], (CARD, CARD + 1), (1, 2)):
        rows = [row(key, *LIKE[0]) for key in keys] + [row("offload", *offload)]
        yield rows, facts_of(rows, 4, hosts, CARD, layer)


@pytest.fixture(scope="module")
def walked() -> list[tuple[list[Row], Facts, Path]]:
    return [(rows, facts, walk(TREE, facts)) for rows, facts in situations()]


def questions(node) -> list[Question]:
    return [node, *questions(node.yes), *questions(node.no)] if isinstance(node, Question) else []


def test_every_path_is_walked_and_no_question_is_idle(walked):
    assert {path.answer.key for _, _, path in walked} == {answer.key for answer in answers(TREE)}
    settled = {(step.question.key, step.is_yes) for _, _, path in walked for step in path.steps}
    assert settled == {(question.key, reply) for question in questions(TREE) for reply in (True, False)}


def test_the_answer_is_what_the_ranking_puts_first(walked):
    for rows, facts, path in walked:
        best = ranked(rows, facts)[0]
        assert path.answer.candidate == (best.candidate.key if best.fits else None)


def test_a_tree_with_two_answers_swapped_is_caught(walked):
    """The check above, on a wrong table: sharding fully where keeping units is as good, and the reverse."""
    wrong = {"kept": "full", "full": "kept"}
    misses = [
        path
        for rows, facts, path in walked
        if (best := ranked(rows, facts)[0]).fits
        and wrong.get(path.answer.candidate or "", path.answer.candidate) != best.candidate.key
    ]
    assert misses


def test_every_step_says_the_number_that_settled_it(walked):
    for _, _, path in walked[:: max(1, len(walked) // 500)]:
        assert all(any(letter.isdigit() for letter in step.because) for step in path.steps)


def test_keys_are_unique_and_every_answer_but_the_last_two_names_a_strategy():
    keys = [node.key for node in (*questions(TREE), *answers(TREE))]
    assert len(set(keys)) == len(keys) - _shared_nodes()
    without = {answer.key for answer in answers(TREE) if answer.candidate is None}
    assert without == {"answer-more", "answer-tensor"}
    named = {answer.candidate for answer in answers(TREE)} - {None}
    assert named == set(PREFERENCE)


def _shared_nodes() -> int:
    """Count what one host and several ask alike, and what is asked where nothing fits: one node, two ways."""
    every = [*questions(TREE), *answers(TREE)]
    return len(every) - len({id(node) for node in every})


def test_a_tie_goes_to_what_is_less_work_and_a_clear_win_to_the_quicker():
    def best(ddp_seconds: float) -> str | None:
        peaks = dict.fromkeys(("ddp", "kept", "full"), 10.0)
        seconds = {"ddp": ddp_seconds, "kept": 1.0, "full": 1.1}
        return walk(TREE, Facts(4, 1, CARD, 1, peaks, seconds)).answer.candidate

    assert best(1 + decision.TIE) == "ddp"
    assert best(1.06) == "kept"


def test_hybrid_sharding_gives_way_where_one_host_cannot_hold_the_model():
    peaks = {"hybrid": 140.0, "kept": 200.0, "full": 17.5}
    facts = Facts(64, 8, CARD, 1, peaks, dict.fromkeys(peaks, 1.0))
    path = walk(TREE, facts)
    assert path.answer.candidate == "full"
    (step,) = [step for step in path.steps if step.question.key == "hybrid"]
    assert step.because == "140 B over the 80 B of a card"


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_rows_of_one_name_the_smaller_gives_peak_and_seconds(order):
    facts = facts_of([row("full", 30, 1.2), row("full", 40, 1.0)][::order], 4, 1, CARD, 1)
    assert (facts.peak_bytes, facts.step_seconds) == ({"full": 30}, {"full": 1.2})


def test_reasons_name_what_is_too_much_and_what_is_slow():
    rows = [row("ddp", 90, 1.0), row("kept", 40, 1.0), row("full", 30, 1.2), row("full+recompute", 20, 1.3)]
    facts = facts_of(rows, 4, 1, CARD, 1)
    best = ranked(rows, facts)[0]
    reasons = {r.candidate.key: number_and_reason(r, best, facts) for r in rows}
    assert best.candidate.key == "kept"
    assert reasons["ddp"] == ("90 B of 80 B", "10 B over a card at the loss; most of it is activations, 90 B")
    assert reasons["kept"][1].startswith("fits with 40 B to spare")
    assert "a step takes 20% longer" in reasons["full"][1]
    assert reasons["full+recompute"][1].endswith("blocks are computed twice")


@pytest.mark.parametrize("asked", [{"model": "7B"}, {"model": "llama-2-7b", "checkpointing": "full"}])
def test_what_was_not_planned_is_said_in_words_and_not_as_an_endless_number(asked):
    shown = str(dc.plan(**asked, gpus=8, gpu_memory="24GB"))
    assert "No: nothing of the kind was planned." in shown
    assert "inf" not in shown.split()
