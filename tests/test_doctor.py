"""The doctor's command, page, report and card, and what it says each chapter will use."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import dpcourse as dc
from dpcourse import doctor
from dpcourse.doctor import chapters, command, finding, report
from dpcourse.doctor.finding import Finding, Probe, look
from tests.conftest import processes_below
from tests.doctors import TWO_GPUS, no_gpus_hidden_fixture, only, program_fixture, run_doctor  # noqa: F401

# ---- the whole command ----


def test_the_doctor_makes_a_real_run_and_says_that_the_course_can_run_here(tmp_path):
    written = tmp_path / "doctor.json"
    answer = run_doctor("--report", str(written))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert answer.stderr == ""
    assert "The course can run here." in answer.stdout
    assert f"Written to {written}, to be sent." in " ".join(answer.stdout.split())
    found = {
        item["topic"]: item for part in json.loads(written.read_text())["sections"].values() for item in part
    }
    assert found["2 ranks"]["is_there"] is True
    assert found["a notebook"]["figures"]["server"] > 50e6  # torch is in it
    assert 1e6 < found["a notebook"]["figures"]["rank"] < found["a notebook"]["figures"]["server"]
    assert found["learners"]["figures"]["learners"] >= 1
    if sys.platform == "linux":
        assert found["bytes sent"]["is_there"] is True


def test_where_torch_cannot_be_loaded_the_course_cannot_run_and_the_page_says_why(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libgomp.so.1: cannot open it')")
    answer = run_doctor(PYTHONPATH=str(tmp_path))
    assert answer.returncode == 1, answer.stdout + answer.stderr
    page = " ".join(answer.stdout.split())
    assert "The course cannot run here yet. See above: 2 ranks." in page
    assert "libgomp.so.1: cannot open it" in page
    assert "make env" in page
    assert "Traceback" not in page


def test_a_quick_look_is_a_page_of_80_columns_that_ends_with_the_command_for_the_report():
    answer = run_doctor("--quick")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    lines = answer.stdout.splitlines()
    assert max(map(len, lines)) <= report.WIDTH
    assert lines[-1].strip() == "dpcourse doctor --report doctor.json"
    assert "2 ranks" not in answer.stdout
    assert "the real run was left out" in answer.stdout
    for title in (*command.PROBES, "What each chapter will use here"):
        assert title in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fast"], "unrecognized arguments: --fast"),
        (["--report"], "expected one argument"),
        (["--report", "no/such/folder/x.json"], "there is no folder no/such/folder"),
        (["--report", "."], "name a file"),
        (["--report", ""], "name a file"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_looked_at(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(command, "examine", lambda is_quick: pytest.fail("it looked all the same"))
    assert doctor.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_report_that_may_not_be_written_is_told_first(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    assert doctor.main(["--report", str(tmp_path / "x.json")]) == 2
    assert "you may not write there" in capsys.readouterr().err


def test_help_is_no_error(capsys):
    assert doctor.main(["--help"]) == 0
    assert "--report FILE" in capsys.readouterr().out


def examined(monkeypatch, **replaced) -> report.Report:
    """A quick look with some probes replaced, by topic."""
    sections = {
        title: tuple(
            Probe(probe.topic, replaced.get(probe.topic.replace(" ", "_"), probe.look), 10, probe.is_needed)
            for probe in found
        )
        for title, found in command.PROBES.items()
    }
    monkeypatch.setattr(command, "PROBES", sections)
    return command.examine(is_quick=True)


def test_a_crashed_probe_becomes_a_line_and_the_rest_is_told(monkeypatch):
    def crash():
        raise RuntimeError("the sensor is on fire")

    found = examined(monkeypatch, memory=crash)
    assert "could not be found out: RuntimeError: the sensor is on fire" in str(found)
    assert "Traceback" not in str(found)
    assert "byte counts" in str(found)
    assert found.can_run


def test_a_needed_probe_that_crashes_is_no_success(monkeypatch, capsys):
    def crash():
        raise OSError(5, "Input/output error")

    found = examined(monkeypatch, packages=crash)
    assert not found.can_run
    monkeypatch.setattr(command, "examine", lambda is_quick: found)
    assert doctor.main([]) == 1
    out = capsys.readouterr().out
    assert "The course cannot run here yet. See above: packages." in out
    assert "could not be found out" in out


def test_a_probe_that_never_answers_is_left_behind_at_its_deadline():
    gate = threading.Event()
    seen = []
    probe = Probe("disk", lambda: gate.wait(30) and [], deadline_seconds=0.3)
    found = only(look(probe, lambda topic, seconds: seen.append(topic)))
    gate.set()
    assert found.is_there is None
    assert found.text == "could not be found out: no answer within 0 s"
    assert set(seen) == {"disk"}


def test_a_program_that_never_answers_is_ended(program):
    program("nvidia-smi", "exec sleep 60")
    found = only(look(Probe("GPUs", lambda: finding.ask("nvidia-smi", seconds=0.2) and [])))
    assert found.text.startswith("could not be found out: nvidia-smi gave no answer within")
    assert not [child for child in processes_below(os.getpid()) if "sleep" in child.name()]


class Screen(list):
    def __init__(self, is_terminal: bool) -> None:
        self.isatty = lambda: is_terminal

    def write(self, text: str) -> None:
        self.append(text)

    def flush(self) -> None:
        pass


def test_what_takes_over_two_seconds_shows_on_a_terminal_alone():
    for screen, expected in ((Screen(True), "\r\x1b[K2 ranks ... 7 s\r\x1b[K"), (Screen(False), "")):
        with finding.progress_line(screen) as progress:
            progress("cores", 0.5)
            progress("2 ranks", 7.1)
        assert "".join(screen) == expected


# ---- what chapters will use ----


def rows(**here) -> dict[str, tuple]:
    return {row[0][:2]: row[1:] for row in chapters.table(chapters.Here(**here)).rows}


def test_every_chapter_has_a_row_that_follows_what_is_here():
    poor = rows()
    assert sorted(poor) == [f"{number:02}" for number in range(11)]
    assert poor["03"] == ("CPU", "paced", "recorder", "")
    assert poor["05"][-1] == "DeepSpeed left out"
    rich = rows(
        num_gpus=4, has_kernel_links=True, has_byte_counts=True, has_deepspeed=True, has_compiler=True
    )
    assert rich["01"] == ("4 GPUs", "-", "recorder", "")
    assert rich["02"][-1] == "nn.DataParallel"
    assert rich["04"] == ("CPU", "-", "kernel", "")
    assert rich["08"] == ("CPU", "kernel", "kernel", "2 hosts, emulated")
    assert rich["05"][-1] == "DeepSpeed"
    assert rows(num_gpus=1)["01"][0] == "CPU"


@pytest.mark.parametrize("num_gpus", [0, 128])
@pytest.mark.parametrize("has", [False, True])
def test_the_table_of_chapters_fits_80_columns_whatever_is_here(num_gpus, has):
    table = chapters.table(chapters.Here(num_gpus, has, has, has, has))
    assert max(map(len, str(table).splitlines())) <= report.WIDTH - 2


def test_what_could_not_be_found_out_counts_as_missing():
    unknown = [Finding("kernel links", "could not be found out", None), Finding("torch", "?", None)]
    assert chapters.here(unknown) == chapters.Here()


def test_chapters_have_the_names_of_their_notebooks():
    notebooks = {path.stem for path in (Path(dc.__file__).parents[1] / "notebooks").glob("*.ipynb")}
    assert notebooks <= {chapter.name for chapter in chapters.CHAPTERS}


# ---- the report ----


def test_the_report_is_json_that_says_what_it_holds(monkeypatch):
    found = examined(monkeypatch)
    written = json.loads(found.to_json())
    assert (written["format"], written["version"]) == ("dpcourse doctor report", 1)
    assert "no user name, home folder or host name" in written["holds"]
    assert written["can_run"] is found.can_run
    assert set(written["sections"]) == set(found.sections)
    item = written["sections"]["What is attached"][1]
    assert set(item) == {"topic", "text", "is_there", "advice", "figures", "is_needed"}
    assert list(written["chapters"]) == [chapter.name for chapter in chapters.CHAPTERS]


def test_the_report_names_no_user_no_home_and_no_host(monkeypatch):
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setattr(report.getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(report.socket, "gethostname", lambda: "engine.lab.example")
    problem = f"ada@engine: /home/ada/x.py on engine.lab.example, {os.getcwd()}/y, canada"
    found = examined(monkeypatch, memory=lambda: [Finding("memory", problem, figures={"problem": [problem]})])
    text = found.to_json()
    for private in ("/home/ada", "engine", "ada@", os.getcwd()):
        assert private not in text
    assert "canada" in text  # a word that only contains a name stays


def test_a_user_without_a_name_is_no_obstacle(monkeypatch):
    def nameless():
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr(report.getpass, "getuser", nameless)
    assert json.loads(examined(monkeypatch).to_json())["can_run"]


# ---- the card of notebook 00 ----


def test_the_hardware_card_shows_the_same_as_text_and_as_html(monkeypatch):
    monkeypatch.delenv("DPCOURSE_REFERENCE", raising=False)
    card = doctor.hardware()
    for cell in (cell for row in card.table().texts() for cell in row):
        assert cell in str(card)
        assert cell.replace("'", "&#x27;") in card._repr_html_()
    assert max(map(len, str(card).splitlines())) <= report.WIDTH
    assert "torch" not in str(card)


def test_the_card_says_the_same_everywhere_in_the_reference_configuration(
    program, no_gpus_hidden, monkeypatch
):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    before = repr(doctor.hardware())
    program("nvidia-smi", TWO_GPUS)
    assert repr(doctor.hardware()) == before
    assert "CPU" in before
    assert not any(letter.isdigit() for letter in before)
    assert doctor.hardware()._repr_html_() is None


def test_the_doctor_needs_no_torch():
    code = "import sys, dpcourse.doctor as d; d.hardware(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30).returncode == 0
