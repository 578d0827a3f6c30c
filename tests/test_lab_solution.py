"""A solution is there for who has tried, and says where it is not."""

from pathlib import Path

import pytest
import torch

import dpcourse as dc
from dpcourse.labs import LAB_NAMES, load, solution
from dpcourse.labs.verdict import Verdict


def wrong(batch, rank, world_size):
    return batch


def test_a_solution_comes_after_a_try_and_not_before(monkeypatch, tmp_path):
    monkeypatch.setenv("DPCOURSE_PROGRESS", str(tmp_path / "progress.json"))
    lab = dc.lab("01")
    with pytest.raises(ValueError, match="try first"):
        lab.solution("shard_batch")
    assert lab.check("shard_batch", wrong).status == "wrong"
    shown = lab.solution("shard_batch")
    assert "len(batch) * rank // world_size" in str(shown)
    assert "### " not in str(shown)
    assert "<pre" in shown.to_html()
    # Another session knows of the try from the learner's record.
    assert str(dc.lab("01").solution("shard_batch")) == str(shown)


def test_a_stub_is_no_try(monkeypatch, tmp_path):
    monkeypatch.setenv("DPCOURSE_PROGRESS", str(tmp_path / "progress.json"))
    lab = dc.lab("01")
    unanswered = {"step_with_mean": None, "step_with_sum": None, "learning_rate": None}
    assert lab.check("learning_rate", unanswered).status == "unanswered"
    with pytest.raises(ValueError, match="try first"):
        lab.solution("learning_rate")


def test_a_value_is_shown_without_its_stub():
    text = str(solution.solution_of("01_equivalence", load("01").question("learning_rate")))
    assert text == 'derivation = {"step_with_mean": 0.3, "step_with_sum": 1.2, "learning_rate": 0.025}'


def test_the_script_that_was_handed_out_is_no_try(monkeypatch, tmp_path):
    monkeypatch.setenv("DPCOURSE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr("dpcourse.labs.check.check", lambda *_, **__: Verdict("evaluate", "wrong", 0, 10))
    lab, script = dc.lab("10"), load("10").question("evaluate").handed_out
    lab.check("evaluate", function_of(script, tmp_path / "handed_out.py"))
    with pytest.raises(ValueError, match="try first"):
        lab.solution("evaluate")
    lab.check("evaluate", function_of(f"{script}    pass\n", tmp_path / "changed.py"))
    assert lab.solution("evaluate")


def function_of(source: str, path: Path):
    path.write_text(source)
    namespace: dict = {"torch": torch}
    exec(compile(source, str(path), "exec"), namespace)
    return namespace["evaluate"]


@pytest.mark.parametrize("name", LAB_NAMES)
def test_every_question_has_a_solution_to_show(name):
    lab = load(name)
    assert all(str(solution.solution_of(name, question)) for question in lab.questions)


def test_a_copy_without_solutions_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(solution, "__file__", str(tmp_path / "dpcourse" / "labs" / "solution.py"))
    with pytest.raises(ValueError, match="came without labs/source"):
        solution.solution_of("01_equivalence", load("01").question("shard_batch"))
