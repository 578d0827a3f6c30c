"""The check of a GPU machine, run on this one without a GPU, and what it judges, given wrong things."""

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from dpcourse.gpu_check import __main__ as command
from dpcourse.gpu_check import report, running, worker
from dpcourse.gpu_check.ledgers import judge_allocator
from dpcourse.gpu_check.place import place_for
from dpcourse.gpu_check.report import Check, Step
from dpcourse.gpu_check.steps import START, STEPS
from dpcourse.measure.process import BY_CUDA, BY_LEDGER
from dpcourse.run import Run
from tests.conftest import processes_marked, wait_until
from tests.test_gpus import machine  # noqa: F401
from tests.test_run import make_run

# What a GPU machine may lack of the course's own dependencies.
LACKING = (
    *("ipywidgets", "IPython", "ipykernel", "jupyter_client", "jupyter_core", "jupyterlab", "notebook"),
    *(
        "nbformat",
        "nbclient",
        "nbconvert",
        "nbval",
        "papermill",
        "latex2mathml",
        "tqdm",
        "pyroute2",
        "pynvml",
    ),
)


# -- the command ----------------------------------------------------------------


def run_command(folder: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "dpcourse.gpu_check", "--device", "cpu", "--out", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=160,
        env={**os.environ, **environ},
    )


@pytest.mark.long
@pytest.mark.timeout(180)
def test_it_runs_without_jupyter_and_leaves_a_report_runs_and_figures(tmp_path):
    absent = tmp_path / "absent"
    absent.mkdir()
    for name in LACKING:
        (absent / f"{name}.py").write_text(f"raise ImportError('{name} is not on this machine')\n")
    steps = "start,refusals,shared,dataparallel,figures"
    answer = run_command(tmp_path, "--quick", "--only", steps, PYTHONPATH=str(absent))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = json.loads((tmp_path / "gpu-report.json").read_text())
    states = {step["name"]: step["state"] for step in found["steps"]}
    assert states == {
        "start": "passed",
        "refusals": "passed",
        "shared": "passed",
        "dataparallel": "skipped",
        "figures": "passed",
    }
    assert (found["is_passed"], found["device"]) == (True, "cpu")
    assert "nn.DataParallel drives two GPUs or more, and there are 0" in answer.stdout
    (file,) = (tmp_path / "gpu-runs").iterdir()
    assert "no GPU used" in Run.load(file).facts()
    assert len(list((tmp_path / "gpu-figures").iterdir())) == 3


@pytest.mark.long
def test_a_step_at_its_limit_is_ended_with_all_its_processes_and_the_next_is_said_not_to_be_reached(tmp_path):
    run_command(tmp_path, "--only", "start")
    [start] = json.loads((tmp_path / "gpu-report.json").read_text())["steps"]
    seconds = str(start["seconds"] + 3)  # enough to begin the first step, and half of what it takes
    mark = {"DPCOURSE_TEST": str(tmp_path)}
    answer = run_command(tmp_path, "--only", "strategies,recipes", "--seconds", seconds, **mark)
    assert answer.returncode == 1
    first, second = json.loads((tmp_path / "gpu-report.json").read_text())["steps"]
    assert first["state"] == "overtime"
    assert re.fullmatch(r"ended at its limit of [234] s", first["why"])
    assert (second["state"], second["why"]) == ("not reached", "the time for all steps was over")
    assert wait_until(lambda: not processes_marked(str(tmp_path)))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--device", "cuda"], "gpu-check: 1 ranks on GPUs were asked for, and 0 GPUs are visible"),
        (["--device", "cpu", "--only", "shared,sharde"], "gpu-check: --only sharde: there is no such step"),
        (["--device", "tpu"], "gpu-check: device='tpu': give"),
        (["--device", "cpu", "--seconds", "-3"], "gpu-check: --seconds -3.0: give a number"),
        (["--device", "cpu", "--seconds", "nan"], "gpu-check: --seconds nan: give"),
        (["--device", "cpu", "--out", __file__], f"gpu-check: --out {__file__}: "),
    ],
)
def test_what_cannot_start_is_one_line(arguments, said, machine, capsys):  # noqa: F811
    machine(0)
    assert command.main(arguments) == 2
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(("number", "ranks", "backend"), [(1, 2, "staged"), (2, 2, None), (8, 4, None)])
def test_one_gpu_is_shared_and_several_have_a_rank_each(number, ranks, backend, machine, monkeypatch):  # noqa: F811
    machine(min(number, 4))
    if number > 4:
        from dpcourse.ranks import cluster

        cards = cluster.gpus() * 2
        monkeypatch.setattr(cluster, "gpus", lambda: cards)
    place = place_for("cuda", Path("build"), False)
    assert (place.ranks, place.backend, place.num_gpus) == (ranks, backend, number)
    whole = command._whole_seconds(place)
    assert whole == (480 if number == 1 else 600)
    assert sum(place.scaled(step.limit_seconds) for step in STEPS.values()) <= whole


def test_a_report_that_is_there_is_set_aside(tmp_path):
    path = tmp_path / "gpu-report.json"
    assert report.set_aside(path) is None
    for number, name in enumerate(("gpu-report.1.json", "gpu-report.2.json")):
        path.write_text(str(number))
        assert report.set_aside(path) == tmp_path / name
        assert (tmp_path / name).read_text() == str(number)


def test_an_interrupt_is_one_line(tmp_path, monkeypatch, capsys):
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_all", interrupted)
    assert command.main(["--device", "cpu", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err.startswith("gpu-check: interrupted; ")


# -- what becomes of steps ------------------------------------------------------


class Process:
    """Stands for the process of the steps: answers as it is told, and notes what it found."""

    started = 0
    answers: ClassVar[list] = []

    def __init__(self, place):
        self.place = place
        Process.started += 1

    def carry_out(self, name, limit_seconds):
        if name == START:
            return worker.DONE
        notes, answer = self.answers.pop(0)
        self.place.notes(name).write_text(notes)
        return answer

    def end(self):
        return -9


GOOD = json.dumps({"check": vars(Check("losses", "1", "1", True))}) + "\n"
BAD = json.dumps({"check": vars(Check("bytes", "3", "4", False))}) + "\n"


@pytest.fixture
def steps(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "Worker", Process)
    Process.started, Process.answers = 0, []
    place = place_for("cpu", tmp_path, False)
    place.make_folders()
    return command.Steps(place, time.monotonic() + 1000)


def test_a_step_that_fails_hangs_or_dies_does_not_stop_the_next_and_keeps_what_it_noted(steps):
    Process.answers = [
        (GOOD, worker.DONE),
        (GOOD + BAD, worker.DONE),
        (GOOD + '{"why": "ValueError: no"}\n', worker.BROKEN),
        (GOOD + BAD[:20], None),
        (GOOD, b""),
        ('{"why": "no second card"}\n', worker.SKIPPED),
    ]
    found = [steps.run(name) for name in list(STEPS)[1:7]]
    assert [step.state for step in found] == ["passed", "failed", "failed", "overtime", "failed", "skipped"]
    assert [len(step.checks) for step in found] == [1, 2, 1, 1, 1, 0]
    assert [step.why for step in found[2:]] == [
        "ValueError: no",
        f"ended at its limit of {2 * list(STEPS.values())[4].limit_seconds:.0f} s",
        "its process ended with -9; gpu-check.log says more",
        "no second card",
    ]
    assert Process.started == 3  # a new one after the one that was ended, and the one that died
    steps.deadline = time.monotonic() + 1
    assert steps.run("figures").state == "not reached"


def test_the_table_names_what_was_not_as_expected_and_the_report_says_failed(tmp_path):
    found = [
        Step("one", report.FAILED, 1.0, 9.0, (Check("bytes", "3", "4", False), Check("hidden", "12 %"))),
        Step("two", report.PASSED, 1.0, 9.0, (Check("bytes", "4", "4", True),)),
    ]
    text = str(report.table(found))
    assert "0 of 1 as expected" in text
    assert "bytes: 3, and expected 4" in text
    for steps, is_passed in ((found, False), (found[1:], True)):
        report.write(tmp_path / "r.json", "cuda", {}, "2026-11-30", steps)
        assert json.loads((tmp_path / "r.json").read_text())["is_passed"] is is_passed


# -- what is judged -------------------------------------------------------------


def judged(function, *arguments):
    checks = []
    function(*arguments, checks.append)
    return [check.is_passed for check in checks]


def test_lists_that_are_off_by_one_byte_or_one_call_are_refused():
    run = make_run(ranks=2)
    assert judged(running.judge_ledgers, run) == [True, True]
    first = run.records[0]
    heavier = replace(first.holdings[0], num_bytes=first.holdings[0].num_bytes + 1)
    wrong = replace(first, holdings=(heavier, *first.holdings[1:]), transfers=first.transfers[1:])
    assert judged(running.judge_ledgers, replace(run, records=(wrong, run.records[1]))) == [False, False]


def test_losses_of_gradients_that_were_not_averaged_are_refused():
    run = make_run(ranks=2)
    assert judged(running.judge_losses, run, run) == [True]
    records = [replace(record, losses=tuple(loss - 0.02 for loss in record.losses)) for record in run.records]
    assert judged(running.judge_losses, replace(run, records=tuple(records)), run) == [False]


def test_an_allocator_that_counts_other_bytes_than_the_ledger_is_refused():
    run = make_run(ranks=2)
    counts = {f"{who}, {phase}": 4096 for who in (BY_LEDGER, BY_CUDA) for phase in ("forward", "step")}
    same = replace(run, records=(replace(run.records[0], process=counts), run.records[1]))
    assert judged(judge_allocator, same) == [True, True]
    lost = replace(run.records[0], process=counts | {f"{BY_CUDA}, step": 4608, "cuda reserved": 2 << 20})
    assert judged(judge_allocator, replace(run, records=(lost, run.records[1]))) == [True, False, None]
    assert judged(judge_allocator, run) == []  # on a CPU there is nothing to hold it to
