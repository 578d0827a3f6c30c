"""A notebook's own run is limited, and whatever breaks it is named: tiny notebooks on real kernels."""

import json
import re

import nbformat.v4 as v4
import pytest

from dpcourse.grade.execute import Executed, execute
from dpcourse.grade.limits import Limits
from tests.submissions import LOOP


def notebook(**cells: str) -> dict:
    """A notebook with a code cell for each text, named as given."""
    found = [v4.new_code_cell(source, id=name) for name, source in cells.items()]
    kernel = {"name": "python3", "display_name": "Python", "language": "python"}
    return v4.new_notebook(cells=found, metadata={"kernelspec": kernel})


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run cells in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(limits: Limits, **cells: str) -> Executed:
        return execute(notebook(**cells), limits, {})

    return run


def test_many_cells_within_their_own_limit_are_stopped_at_that_of_the_whole_run(run):
    cells = {f"cell_{number}": "import time\ntime.sleep(1)" for number in range(100)}
    done = run(Limits(run_seconds=5, cell_seconds=50), **cells)
    assert re.fullmatch(r"stopped in cell \S+: the limit of 5 s for the whole run was passed", done.problem)
    assert len(done.cells_not_run) > 90


def test_a_cell_that_swallows_interrupts_is_stopped_at_its_limit(run):
    done = run(Limits(cell_seconds=5), first="1", endless=LOOP, last="2")
    assert done.problem == "stopped in cell endless: the limit of 5 s for a cell was passed"
    assert "last" in done.cells_not_run
    assert "first" not in done.cells_not_run


def test_a_killed_kernel_is_named_with_its_cell(run):
    done = run(Limits(), first="import os\nos.kill(os.getpid(), 9)", last="2")
    assert done.problem == "the kernel died in cell first"


def test_an_error_in_a_cell_leaves_the_others_running(run):
    done = run(Limits(), first="1 / 0", last="print('here')")
    assert (done.problem, done.cells_not_run) == ("", ())
    assert "here" in json.dumps(done.notebook)


def test_a_run_whose_files_are_taken_away_keeps_what_it_showed(run):
    source = "import os, shutil\nfor name in os.listdir():\n    shutil.rmtree(name)"
    done = run(Limits(), first=source, last="print('here')")
    assert (done.problem, done.cells_not_run) == ("", ())
    assert "here" in json.dumps(done.notebook)


def test_a_run_that_papermill_cannot_begin_broke_off(run, monkeypatch):
    monkeypatch.setattr("dpcourse.grade.execute.papermill.execute_notebook", lambda *a, **k: 1 / 0)
    done = run(Limits(), first="1")
    assert (done.problem, done.cells_not_run) == (
        "the run broke off: ZeroDivisionError: division by zero",
        ("first",),
    )


def test_what_a_cell_shows_beyond_its_share_is_left_out_with_a_note(run):
    done = run(
        Limits(output_bytes=1000), first="for _ in range(100):\n    print('x' * 1000)", last="print('y')"
    )
    text = json.dumps(done.notebook)
    assert "[output beyond 1000 bytes was left out]" in text
    assert len(text) < 5000
    assert done.problem == ""
