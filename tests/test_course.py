"""The course on small notebooks that go well, fail, stop early, hang, die and leave processes behind."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import psutil
import pytest

from dpcourse import course_index
from dpcourse.course import Outcome, chosen, parameter_names, parsed_value
from dpcourse.workspace import WorkspaceError

pytestmark = pytest.mark.long

BESIDE = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'], "
)
NOTEBOOKS = {
    "00_good": [
        "ranks = 4",
        "import os; print('ranks are', ranks, os.getcwd())",
        "#check\nassert ranks == 2",
    ],
    "01_raises": ["ranks = 4", "1 / 0", "#check\nassert True"],
    "02_exits": ["ranks = 4", "import sys; sys.exit(0)", "#check\nassert True"],
    "03_dies": ["ranks = 4", "import os; os._exit(1)", "#check\nassert True"],
    "04_cell_hangs": ["ranks = 4", "while True: pass"],
    "05_too_long": ["ranks = 4", *["import time; time.sleep(3)"] * 4],
    "06_leaves_a_process": ["ranks = 4", BESIDE + "start_new_session=True); print(p.pid)"],
}


def notebook_of(cells: list[str]) -> nbformat.NotebookNode:
    made = [nbformat.v4.new_markdown_cell("# A <title>")]
    for source in cells:
        tags = ["check"] if source.startswith("#check") else []
        made.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags}))
    made[1].metadata.tags = ["parameters"]
    return nbformat.v4.new_notebook(
        cells=made, metadata={"kernelspec": {"name": "python3", "display_name": "P"}}
    )


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "dpcourse.cli", "course", *arguments]
    environ = {**os.environ, "DPCOURSE_HOME": str(home), "IPYTHONDIR": str(home / "ipython")}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=110)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("course")
    (home / "notebooks").mkdir()
    for name, cells in NOTEBOOKS.items():
        nbformat.write(notebook_of(cells), home / "notebooks" / f"{name}.ipynb")
    return home


@pytest.fixture(scope="module")
def result(home) -> subprocess.CompletedProcess:
    return run(home, "-p", "ranks", "2", "--cell-limit", "4", "--limit", "9")


@pytest.fixture
def line(result) -> Callable[[str], str]:
    return lambda name: next(text for text in result.stdout.splitlines() if text.startswith(name))


def test_a_good_notebook_passes_with_the_parameters_it_was_given(home, line):
    assert "1 of 1 checks passed" in line("00_good")
    assert "FAILED" not in line("00_good")
    executed = nbformat.read(home / "build/course/00_good.ipynb", as_version=4)
    assert "ranks are 2" in json.dumps(executed)
    assert not list((home / "notebooks").glob("*.html"))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("01_raises", "FAILED: In [3]: ZeroDivisionError: division by zero"),
        ("02_exits", "FAILED: cells not run: 1, although none failed: does one call exit()?"),
        ("03_dies", "FAILED: the kernel died"),
        ("04_cell_hangs", "FAILED: stopped: a cell took more than 4 s"),
        ("05_too_long", "FAILED: stopped: the notebook as a whole took more than 9 s"),
    ],
)
def test_what_went_wrong_is_named_and_its_checks_do_not_count(line, name, problem):
    assert line(name).endswith(problem)
    assert " 0 of " in line(name)


def test_one_failed_notebook_fails_the_command_and_the_others_still_run(result):
    assert result.returncode == 1
    assert "2 of 7 notebooks passed" in result.stdout
    assert "Traceback" not in result.stderr


def test_no_process_is_left_even_in_a_session_of_its_own(home, line):
    assert "FAILED" not in line("06_leaves_a_process")
    executed = nbformat.read(home / "build/course/06_leaves_a_process.ipynb", as_version=4)
    pid = int(executed.cells[-1].outputs[0].text)
    assert not psutil.pid_exists(pid)


class Rows(HTMLParser):
    """The text of each table row, and where its links lead."""

    def __init__(self):
        super().__init__()
        self.rows: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append("")
        if tag == "a":
            self.links.append(dict(attrs)["href"])

    def handle_data(self, data):
        if self.rows:
            self.rows[-1] += f" {data.strip()}"


def test_the_index_has_a_row_for_each_notebook_and_links_to_pages_that_exist(home, result):
    rows = Rows()
    rows.feed((home / "build/course/index.html").read_text())
    assert len(rows.rows) == 1 + len(NOTEBOOKS)
    assert "A <title>" in rows.rows[1]
    assert "passed" in rows.rows[1]
    assert "ZeroDivisionError" in rows.rows[2]
    assert len(rows.links) >= 6
    assert all((home / "build/course" / link).is_file() for link in rows.links)


def test_the_index_shows_code_of_a_notebook_as_text():
    page = course_index.page([Outcome("00_x", "<b>x</b>", 1.0, 0, 0, "<script>alert(1)</script>", '"><a>')])
    assert "<script>" not in page
    assert "<b>x" not in page
    assert '"><a>' not in page


def test_a_notebook_without_all_its_checks_passed_is_not_good():
    assert Outcome("a", "a", 1.0, 2, 2).is_good
    assert not Outcome("a", "a", 1.0, 2, 1).is_good
    assert not Outcome("a", "a", 1.0, 0, 0, "the kernel died").is_good


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["99"], "no notebook 99 is in"),
        (["-p", "rnaks", "2"], "no notebook has a parameter rnaks: ranks"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(home, arguments, said):
    found = run(home, *arguments)
    assert found.returncode == 2
    assert said in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_notebooks_are_chosen_by_the_start_of_their_names(home):
    assert [path.stem for path in chosen(home, ["00", "06"])] == ["00_good", "06_leaves_a_process"]
    with pytest.raises(WorkspaceError, match="no notebook to run"):
        chosen(home / "notebooks", [])


def test_values_are_read_as_python_where_they_are_python():
    assert [parsed_value(text) for text in ("2", "True", "cpu")] == [2, True, "cpu"]


def test_parameter_names_are_those_that_the_tagged_cell_assigns():
    assert parameter_names(notebook_of(["ranks = 4\ndevice: str = 'cpu'", "other = 1"])) == {
        "ranks",
        "device",
    }
