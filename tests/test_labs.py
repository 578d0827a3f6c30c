"""Checks are checked here: every wrong answer gets its own message, and right ones pass in any style."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import dpcourse as dc
from dpcourse.grade.execute import execute
from dpcourse.grade.limits import Limits
from dpcourse.grade.merge import Release, merge
from dpcourse.grade.reading import read_notebook
from dpcourse.labs import LAB_NAMES, load
from dpcourse.labs.check import check, judged, show_example
from dpcourse.labs.equivalence.sum_or_mean import EFFECTS, train_under_sum
from dpcourse.labs.inside import Source
from dpcourse.labs.question import CodeQuestion
from dpcourse.labs.release import student_copy, student_source
from dpcourse.labs.switch import Log
from dpcourse.labs.verdict import Score, Verdict
from dpcourse.notebook_files import notebook_text
from tests.lab_checks import (
    assert_messages_differ,
    assert_passes,
    assert_refused,
    assert_unanswered,
    code_questions,
    known_mistakes,
    name_of,
    source_of,
)
from tests.wrong_answers import wrong_answers

pytestmark = pytest.mark.long

LABS = Path(__file__).parents[1] / "labs"
LAB = load("01_equivalence")
CODE_QUESTIONS = code_questions(LAB)
ALL_CODE_QUESTIONS = [question for name in LAB_NAMES for question in code_questions(load(name))]

RIGHT = {
    "shard_batch": (
        "def shard_batch(batch, rank, world_size):\n    return batch[rank::world_size]",
        "def shard_batch(batch, rank, world_size):\n    return torch.tensor_split(batch, world_size)[rank]",
        "import warnings, sys\n"
        "def shard_batch(batch, rank, world_size):\n    warnings.warn('careful')\n"
        "    print('loud', file=sys.stderr)\n"
        "    return batch[[row for row in range(len(batch)) if row % world_size == rank]]",
    ),
    "combine_gradients": (
        "def combine_gradients(gradients):\n"
        "    flat = torch.cat([g.flatten().double() for g in gradients]) / dist.get_world_size()\n"
        "    dist.all_reduce(flat)\n"
        "    for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):\n"
        "        g.copy_(part.view_as(g))",
        "import warnings\ndef combine_gradients(gradients):\n    warnings.warn('careful')\n"
        "    for g in gradients:\n"
        "        parts = [torch.empty_like(g) for _ in range(dist.get_world_size())]\n"
        "        dist.all_gather(parts, g)\n"
        "        g[...] = torch.stack(parts).mean(0)",
    ),
    "combine_weighted": (
        "def combine_weighted(gradients, num_rows, num_terms):\n"
        "    total = torch.tensor([num_terms])\n    dist.all_reduce(total)\n"
        "    for g in gradients:\n"
        "        part = torch.nan_to_num(g) * num_terms\n"
        "        dist.all_reduce(part)\n        g.copy_(part / total[0])",
        "import warnings\n"
        "def combine_weighted(gradients, num_rows, num_terms):\n    warnings.warn('careful')\n"
        "    counts = [None] * dist.get_world_size()\n    dist.all_gather_object(counts, num_terms)\n"
        "    for g in gradients:\n"
        "        g.data = g * (num_terms / sum(counts)) if num_terms else torch.zeros_like(g)\n"
        "        dist.all_reduce(g)",
    ),
}


@pytest.mark.parametrize(("question", "mistake"), known_mistakes(LAB), ids=name_of)
def test_each_mistake_is_refused_with_its_own_message(question, mistake):
    assert_refused(question, mistake)


@pytest.mark.parametrize("name", LAB_NAMES)
def test_every_mistake_has_a_wrong_answer_and_every_wrong_answer_a_mistake(name):
    for question in load(name).questions:
        assert set(wrong_answers(question)) == {m.name for m in question.mistakes}, question.name


@pytest.mark.parametrize("question", LAB.questions, ids=name_of)
def test_messages_differ_from_mistake_to_mistake(question):
    assert_messages_differ(question)


@pytest.mark.parametrize("question", CODE_QUESTIONS, ids=name_of)
def test_right_answers_pass_in_any_style_and_with_other_seeds_and_rank_counts(question):
    for style in RIGHT[question.name]:
        assert_passes(question, style)


@pytest.mark.parametrize("question", CODE_QUESTIONS, ids=name_of)
def test_a_stub_is_not_answered_yet(question):
    assert_unanswered(question)


def test_where_and_targets_say_how_far_off_an_answer_is():
    question = LAB.question("combine_gradients")
    verdict = check(question, lambda gradients: [dc_all_reduce(gradient) for gradient in gradients])
    assert verdict.mistake == "sum"
    assert verdict.where.startswith(
        "2 ranks: rank 0, tensor 0, index (0, 0): expected 0.239538, got 0.479077"
    )
    assert [target.is_met for target in verdict.targets] == [False, False]


def dc_all_reduce(tensor):
    import torch.distributed as dist

    dist.all_reduce(tensor)


CHEATS = {
    "exits as if all were well": ("    import sys\n    sys.exit(0)", "exited"),
    "ends the process": ("    import os\n    os._exit(0)", "exited"),
    "kills itself": ("    import os\n    os.kill(os.getpid(), 9)", "died"),
    "raises": ("    return gradients[99]", "raised"),
    "never ends": (
        "    while True:\n        try:\n            while True: pass\n        except KeyboardInterrupt: pass",
        "deadline",
    ),
    "asks for input": ("    input()", "raised"),
    "patches what describes it": (
        "    import dpcourse.labs.inside as inside, dpcourse.labs.equivalence.combine as combine\n"
        "    inside.describe_list = combine.describe_list = lambda value: 'right'",
        "wrong",
    ),
    "patches the judge": (
        "    from dpcourse.labs import sums, check, question\n"
        "    sums.Sums.judge = check.judged = lambda *a: question.Finding()",
        "wrong",
    ),
}


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_passes_and_each_gets_a_name(name):
    body, status = CHEATS[name]
    question = LAB.question("combine_gradients")
    source = Source(f"def combine_gradients(gradients):\n{body}", question.entry)
    verdict = check(question, source, deadline_seconds=3 if name == "never ends" else 20)
    assert (verdict.status, verdict.points) == (status, 0), str(verdict)


def test_an_error_shows_the_learners_line():
    question = LAB.question("combine_gradients")
    verdict = check(
        question, Source("def combine_gradients(gradients):\n    return gradients[99]", question.entry)
    )
    assert "IndexError" in verdict.where
    assert "return gradients[99]" in verdict.details


def test_answers_run_on_the_cpu_also_where_there_are_gpus(monkeypatch):
    from dpcourse.ranks import cluster

    monkeypatch.setattr(cluster, "gpus", lambda: (cluster.Gpu("a card", 80 << 30),) * 8)
    monkeypatch.setattr(cluster, "torch_has_cuda", lambda: True)
    assert cluster.Cluster(ranks=4).chosen_device == "cuda"
    assert_passes(LAB.question("combine_gradients"), RIGHT["combine_gradients"][0])
    derivation = {"step_with_mean": 0.3, "step_with_sum": 1.2, "learning_rate": 0.025}
    shown = show_example(LAB.question("learning_rate"), derivation, ranks=4)
    assert [f"{row[2]:.3f}" for row in shown.rows] == ["0.300", "0.300"]


def test_an_answer_that_is_no_function_is_told_so():
    verdict = check(LAB.question("shard_batch"), 3)
    assert (verdict.status, verdict.mistake) == ("wrong", "not_a_function")
    assert "Give the function itself" in verdict.message


def test_a_cell_that_defines_something_else_is_told_so():
    verdict = check(LAB.question("shard_batch"), Source("def shard(batch): pass", "shard_batch"))
    assert "the answer cell does not define shard_batch" in verdict.where


# What no honest rank sends, of the forms that the questions' own values have too.
FORGED = (
    *(None, [], {}, "right", [[]], True, [{"held": 3, "other": 3}], [[{"held": 3}, {}]] * 2),
    *([{"gradients": 3}] * 3, {"slices": 3, "moments": []}, {"parameters": [1] * 5}),
    *({"lines": [], "shards": []}, {"lines": 3, "shards": 3}, {"values": 3, "asked": None}),
    *([{"written": 3}], {"weight": 3, "loss": "0"}),
)


@pytest.mark.parametrize("question", ALL_CODE_QUESTIONS, ids=name_of)
def test_values_that_no_honest_run_sends_are_refused_and_do_not_crash_the_judge(question):
    case = question.cases(0, (2,))[0]
    log = [] if question.allowed is None else [Log(case.world_size)]
    for forged in FORGED:
        finding = judged(question, case, [forged] * case.world_size, *log)
        # Of these some scripts' values may honestly lack a part.
        assert finding.mistake in ("no_answer", "wrong_type", "not_written", "lacking", "wrong_share"), forged


@pytest.mark.parametrize("value", [None, {"SGD": None}, [], "same", {**EFFECTS, "SGD": {"type": "Equal"}}])
def test_values_of_another_form_are_refused(value):
    assert not check(LAB.question("optimizers"), value).is_right


def test_an_object_equal_to_everything_is_no_value():
    class Equal:
        def __eq__(self, other):
            return True

        __hash__ = None

    assert not check(LAB.question("optimizers"), Equal()).is_right
    assert not check(LAB.question("learning_rate"), dict.fromkeys(("step_with_mean",), Equal())).is_right


def test_what_the_lab_teaches_about_optimizers_is_what_they_do():
    for name, (from_mean, from_faster) in dc.launch(train_under_sum, 20, ranks=4)[0].items():
        seen = "same" if from_mean < 0.001 else "N times the rate" if from_faster < 1e-9 else "neither"
        assert seen == EFFECTS[name], (name, from_mean, from_faster)
        assert seen != "neither" or min(from_mean, from_faster) > 0.02, "too close to tell"


@pytest.mark.parametrize("ranks", [0, -1, "4", None, 2.5, True])
def test_a_lab_on_no_number_of_ranks_is_refused_when_it_is_made(ranks):
    with pytest.raises(ValueError, match="give a whole number from 1 on"):
        dc.lab("04", ranks=ranks)


@pytest.mark.parametrize("seconds", [0, -1, "20", None])
def test_a_lab_with_no_deadline_is_refused_when_it_is_made(seconds):
    with pytest.raises(ValueError, match="give a number of seconds above 0"):
        dc.lab("04", deadline_seconds=seconds)


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="there is no lab '99'; there are: 01_equivalence"):
        dc.lab("99")
    with pytest.raises(ValueError, match="has no question 'shard'; it has shard_batch, combine_gradients"):
        dc.lab("01_equivalence").check("shard", None)


def test_a_scorecard_escapes_what_an_answer_wrote():
    verdict = Verdict("q", "raised", 0, 5, where="<script>alert(1)</script>", details="<img src=x onerror=y>")
    assert "<script" not in verdict.to_html()
    assert "<img" not in verdict.to_html()
    assert Verdict.from_dict(json.loads(json.dumps(verdict.as_dict()))) == verdict


def test_a_score_adds_up_and_stays_as_scrap_data():
    score = Score("lab", (Verdict("a", "right", 5, 5), Verdict("b", "wrong", 0, 3)))
    scrap = score._repr_mimebundle_()["application/scrapbook.scrap.json+json"]
    assert (scrap["name"], scrap["encoder"], scrap["version"]) == ("score", "json", 1)
    assert (scrap["data"]["points"], scrap["data"]["max_points"]) == (5, 8)


# --- the notebooks ---


@pytest.mark.parametrize("name", LAB_NAMES)
def test_the_student_copy_is_made_from_the_source(name):
    assert (LABS / f"{name}.ipynb").read_text(encoding="utf-8") == notebook_text(
        student_copy(source_of(name))
    ), "run python -m dpcourse.labs.release"


@pytest.mark.parametrize("name", LAB_NAMES)
def test_the_notebook_and_the_lab_agree_on_questions_and_points(name):
    cells = [cell["metadata"].get("nbgrader", {}) for cell in source_of(name)["cells"]]
    points = {cell["grade_id"].removeprefix("check_"): cell["points"] for cell in cells if cell.get("grade")}
    answers = [cell["grade_id"] for cell in cells if cell.get("solution")]
    assert points == {question.name: question.points for question in load(name).questions}
    assert answers == [question.name for question in load(name).questions]


def test_student_source_replaces_solutions_and_drops_hidden_tests():
    source = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n"
    source += "### BEGIN HIDDEN TESTS\nassert f()\n### END HIDDEN TESTS\nf"
    assert student_source(source) == "def f():\n    raise NotImplementedError\nf"
    script = "def f():\n    return 2\n\n\n### BEGIN SOLUTION\ndef f():\n    return 1\n\n\n### END SOLUTION"
    assert student_source(script) == "def f():\n    return 2"
    with pytest.raises(ValueError, match="'### END SOLUTION' is missing"):
        student_source("### BEGIN SOLUTION\n1")
    with pytest.raises(ValueError, match="has no beginning"):
        student_source("### END SOLUTION")


def test_every_lab_has_100_points_and_the_last_half_as_many_more():
    assert [load(name).max_points for name in LAB_NAMES] == [*[100] * 9, 150]


@pytest.mark.parametrize(
    ("lab", "question"),
    [(load(name), question) for name in LAB_NAMES for question in load(name).questions],
    ids=lambda item: item.name,
)
def test_a_solved_copy_gets_full_marks_as_the_grader_reads_it(lab, question):
    cells = read_notebook((LABS / "source" / f"{lab.name}.ipynb").read_bytes()).cells
    source = merge(Release.read(lab, LABS), cells).source(question.name, question.entry)
    verdict = check(question, source)
    assert (verdict.status, verdict.points) == ("right", question.points), str(verdict)


def papermill(source: Path, target: Path, *options: str) -> dict:
    command = [
        sys.executable,
        "-m",
        "papermill",
        str(source),
        str(target),
        "--execution-timeout",
        "50",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(target.read_text(encoding="utf-8"))


def score_in(notebook: dict) -> dict:
    bundles = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return next(b["application/scrapbook.scrap.json+json"] for b in reversed(bundles) if len(b) > 2)["data"]


def test_papermill_leaves_the_score_in_the_notebook(tmp_path):
    name = "01_equivalence"
    score = score_in(papermill(LABS / f"{name}.ipynb", tmp_path / "out.ipynb", "-p", "ranks", "2"))
    assert (score["points"], score["max_points"]) == (0, load(name).max_points)


@pytest.mark.parametrize("name", LAB_NAMES)
def test_an_unsolved_lab_runs_to_the_end_and_reports(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = execute(json.loads((LABS / f"{name}.ipynb").read_text(encoding="utf-8")), Limits(), {"ranks": 2})
    assert (done.problem, done.cells_not_run) == ("", ())
    score = score_in(done.notebook)
    assert (score["points"], score["max_points"]) == (0, load(name).max_points)
    cells = {cell["id"]: "".join(cell["source"]) for cell in source_of(name)["cells"]}
    for question in load(name).questions:
        is_stub = "raise NotImplementedError" in student_source(cells[question.name])
        is_script = isinstance(question, CodeQuestion) and not is_stub  # one to mend: broken, not unanswered
        awaited = {"wrong", "hang", "raised"} if is_script else {"unanswered"}
        assert score["questions"][question.name]["status"] in awaited, question.name


@pytest.mark.parametrize("name", ["learning_rate", "optimizers"])
def test_a_run_gives_nothing_away_before_the_answer_is_whole(name, monkeypatch):
    from dpcourse.labs.equivalence import sum_or_mean

    monkeypatch.setattr(sum_or_mean, "launch", lambda *_, **__: pytest.fail("the real thing was run"))
    lab = dc.lab("01_equivalence")
    names = {
        "learning_rate": ("step_with_mean", "step_with_sum", "learning_rate"),
        "optimizers": sum_or_mean.EFFECTS,
    }[name]
    unanswered = dict.fromkeys(names)
    assert "None" in str(lab.run(name, unanswered))
    assert "dict" in str(lab.run(name, 3))
