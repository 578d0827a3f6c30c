"""Two written rules of thumb walked by a plan's numbers: where they lead, and what the ledgers say of it."""

import re

import pytest

import dpcourse as dc
from dpcourse.planning import thumb
from dpcourse.planning.decision import answers
from dpcourse.planning.thumb import RULES, on_trial

TREE, LIST = RULES
BIG = {"gpu": "a100-80gb", "recipe": "mixed-adam", "sequence_length": 4096}
GPT2 = {"gpus": 8, "gpu": "a100-40gb", "recipe": "autocast", "sequence_length": 1024}


@pytest.fixture(scope="module")
def trial() -> thumb.Trial:
    return on_trial(
        {
            "GPT-2, 16 sequences": dc.plan("gpt2", micro_batch=16, **GPT2),
            "GPT-2, 32 sequences": dc.plan("gpt2", micro_batch=32, **GPT2),
            "7B": dc.plan("llama-2-7b", gpus=8, **BIG),
            "13B, 4 hosts": dc.plan("llama-2-13b", gpus=32, **BIG),
            "70B, 8 hosts": dc.plan("llama-2-70b", gpus=64, **BIG),
        }
    )


def led(trial: thumb.Trial, job: str, rule: str) -> thumb.Led:
    return trial.led[[name for name, _ in trial.plans].index(job)][rule]


@pytest.mark.parametrize(
    ("job", "rule", "name", "said"),
    [
        ("GPT-2, 16 sequences", TREE, "DDP", "as quick as any"),
        ("GPT-2, 16 sequences", LIST, "DDP", "as quick as any"),
        # Its states fit, what it computes does not: a tree that asks for states alone runs out of memory.
        ("GPT-2, 32 sequences", TREE, "DDP", "40.78 GB of 40.00 GB: does not fit"),
        ("GPT-2, 32 sequences", LIST, "DDP + recomputing", "24% slower"),
        ("7B", TREE, "shards, kept", "as quick as any"),
        ("7B", LIST, "shards + recomputing", "33% slower"),
        ("13B, 4 hosts", TREE, "hybrid", "as quick as any"),
        ("70B, 8 hosts", TREE, "hybrid", "does not fit"),
        ("70B, 8 hosts", LIST, "shards + recomputing", "as quick as any"),
    ],
)
def test_where_a_rule_leads_and_what_the_ledger_says(trial, job, rule, name, said):
    found = led(trial, job, rule)
    assert found.name == name
    assert said in found.verdict
    assert found.is_good == (said == "as quick as any")


def test_hybrid_for_every_job_on_several_hosts_is_wrong_by_what_a_host_holds(trial):
    """Hybrid divides the states by the ranks of one host: 8 of 64."""
    found = led(trial, "70B, 8 hosts", TREE)
    states = thumb.states_bytes(trial.plans[-1][1])
    assert found.row.peak_bytes > states / 8 > found.row.capacity_bytes > states / 64


def test_what_a_rule_comes_to_is_what_the_plan_has_of_it(trial):
    for (_, plan), ways in zip(trial.plans, trial.led, strict=True):
        for found in ways.values():
            assert found.row in plan.rows
            assert found.row.peak_bytes == plan.facts.peak_bytes[found.path.answer.candidate]


def test_the_plan_is_at_least_as_good_as_each_rule_on_every_job(trial):
    """A rule that were quicker would be a mistake of the plan's own table."""
    for (_, plan), ways in zip(trial.plans, trial.led, strict=True):
        good = [found.row.time.seconds for found in ways.values() if found.fits]
        assert plan.best.time.seconds <= 1.05 * min(good, default=float("inf"))
    assert (trial.num_good(TREE), trial.num_good(LIST)) == (3, 2)


def test_both_trees_reach_every_answer_of_theirs():
    jobs = [
        dc.plan("gpt2", micro_batch=16, **GPT2),
        dc.plan("gpt2", micro_batch=32, **GPT2),
        dc.plan("llama-2-7b", gpus=8, **BIG),
        dc.plan("llama-2-13b", gpus=8, **BIG),
        dc.plan("llama-2-7b", gpus=16, **BIG),
        dc.plan("llama-2-7b", gpus=8, gpu_memory="2GB", recipe="mixed-adam"),
    ]
    for rule, tree in RULES.items():
        reached = {thumb.led_by(rule, plan).path.answer.key for plan in jobs}
        assert reached == {answer.key for answer in answers(tree)}


def test_a_layer_that_is_too_large_leads_out_of_the_tree():
    plan = dc.plan("llama-2-7b", gpus=8, gpu_memory="2GB", recipe="mixed-adam")
    found = thumb.led_by(TREE, plan)
    assert (found.row, found.verdict, found.is_good) == (None, "another dimension", False)
    assert "another dimension" in str(on_trial({"small cards": plan}))


def test_a_rule_is_drawn_with_its_way_lit_and_a_verdict(trial):
    figure = led(trial, "70B, 8 hosts", TREE).plot()
    assert figure.title.endswith("does not fit)")
    assert "8 hosts" in figure.alt
    assert figure.png()[:4] == b"\x89PNG"


def test_a_trial_prints_each_job_once_and_every_rule_with_it(trial):
    text = str(trial)
    assert len(re.findall("the plan", text)) == len(trial.plans) == text.count("70B, 8 hosts") * 5
    assert trial.to_html().count("the article") == 5
    alone = on_trial({"one card": dc.plan("gpt2", gpus=1)}).led[0][TREE]
    assert (alone.name, alone.verdict) == ("DDP", "no choice here")


def test_what_is_no_plan_is_refused():
    with pytest.raises(ValueError, match="was given no job; give it plans by name"):
        on_trial({})
    with pytest.raises(TypeError, match=r"job 'mine' is a str; give it what dc.plan returned"):
        on_trial({"mine": "llama-2-7b"})
