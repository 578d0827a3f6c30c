"""A learner's copies: made once, never overwritten, never in the way of an update."""

import json
import os
from pathlib import Path

import pytest

from dpcourse.workspace import Workspace, WorkspaceError, course_root


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    for name in ("notebooks/00_start", "notebooks/03_ddp", "labs/03_ddp"):
        path = tmp_path / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"course {name}")
    (tmp_path / "labs" / "source").mkdir()
    (tmp_path / "labs" / "source" / "03_ddp.ipynb").write_text("solution")
    return Workspace(tmp_path)


def lines(changes) -> list[str]:
    return [str(change) for change in changes]


def test_the_first_update_copies_notebooks_and_student_labs_but_no_solution(space):
    assert lines(space.update()) == [
        "labs/03_ddp.ipynb: new",
        "notebooks/00_start.ipynb: new",
        "notebooks/03_ddp.ipynb: new",
    ]
    assert (space.my / "labs/03_ddp.ipynb").read_text() == "course labs/03_ddp"
    assert not (space.my / "labs" / "source").exists()
    assert space.update() == []


def test_an_edited_copy_is_never_overwritten_and_a_line_says_so(space):
    space.update()
    (space.my / "notebooks/03_ddp.ipynb").write_text("my work")
    assert space.update() == []
    (space.root / "notebooks/03_ddp.ipynb").write_text("second edition")
    assert lines(space.update()) == [
        "notebooks/03_ddp.ipynb: the course has a newer version; yours is edited and stays. "
        "`dpcourse reset notebooks/03_ddp` brings the new one and keeps yours beside it."
    ]
    assert (space.my / "notebooks/03_ddp.ipynb").read_text() == "my work"


def test_an_untouched_copy_follows_the_course_and_new_files_arrive(space):
    space.update()
    (space.root / "notebooks/03_ddp.ipynb").write_text("second edition")
    (space.root / "notebooks/04_ring.ipynb").write_text("new chapter")
    assert lines(space.update()) == ["notebooks/03_ddp.ipynb: updated", "notebooks/04_ring.ipynb: new"]
    assert (space.my / "notebooks/03_ddp.ipynb").read_text() == "second edition"


def test_a_copy_that_its_owner_removed_stays_away_until_reset(space):
    space.update()
    (space.my / "notebooks/00_start.ipynb").unlink()
    assert space.update() == []
    assert not (space.my / "notebooks/00_start.ipynb").exists()
    assert str(space.reset("00")) == "notebooks/00_start.ipynb: as the course has it again"
    assert (space.my / "notebooks/00_start.ipynb").exists()


@pytest.mark.parametrize("state", [None, "{half", "[]"])
def test_with_its_memory_lost_every_copy_that_differs_counts_as_edited(space, state):
    space.update()
    (space.my / "notebooks/03_ddp.ipynb").write_text("my work")
    memory = space.my / ".dpcourse.json"
    memory.unlink() if state is None else memory.write_text(state)
    assert [change.what for change in space.update()] == ["kept"]
    assert (space.my / "notebooks/03_ddp.ipynb").read_text() == "my work"


def test_reset_keeps_every_version_of_the_learner(space):
    space.update()
    for number, kept_as in ((1, "03_ddp.mine.ipynb"), (2, "03_ddp.mine-2.ipynb")):
        (space.my / "notebooks/03_ddp.ipynb").write_text(f"attempt {number}")
        change = space.reset("03")
        assert str(change).endswith(f"as the course has it again; your version is notebooks/{kept_as}")
        assert (space.my / "notebooks" / kept_as).read_text() == f"attempt {number}"
    assert (space.my / "notebooks/03_ddp.ipynb").read_text() == "course notebooks/03_ddp"
    assert space.update() == []


def test_reset_of_an_untouched_copy_leaves_nothing_beside_it(space):
    space.update()
    (space.root / "notebooks/03_ddp.ipynb").write_text("second edition")
    assert space.reset("03").kept_as == ""
    assert sorted(path.name for path in (space.my / "notebooks").iterdir()) == [
        "00_start.ipynb",
        "03_ddp.ipynb",
    ]


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("03", "notebooks/03_ddp.ipynb"),
        ("03_ddp", "notebooks/03_ddp.ipynb"),
        ("03_ddp.ipynb", "notebooks/03_ddp.ipynb"),
        ("labs/03", "labs/03_ddp.ipynb"),
        ("my/labs/03_ddp.ipynb", "labs/03_ddp.ipynb"),
        ("notebooks/03", "notebooks/03_ddp.ipynb"),
    ],
)
def test_a_bare_number_means_the_notebook_and_a_folder_means_the_lab(space, wanted, name):
    assert space.find(wanted) == name


@pytest.mark.parametrize("wanted", ["99", "labs/00", "0", "", "../../etc/passwd"])
def test_an_unknown_name_gets_the_list_of_what_there_is(space, wanted):
    with pytest.raises(WorkspaceError, match="which has: labs/03_ddp, notebooks/00_start, notebooks/03_ddp"):
        space.find(wanted)


def test_an_interrupted_copy_leaves_no_half_notebook(space, monkeypatch):
    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        space.update()
    assert not [path for path in space.my.rglob("*") if path.is_file()]


def test_the_course_is_found_from_the_package_or_from_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("DPCOURSE_HOME", raising=False)
    assert (course_root() / "pyproject.toml").is_file()
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setenv("DPCOURSE_HOME", str(tmp_path))
    assert course_root() == tmp_path.resolve()
    monkeypatch.setenv("DPCOURSE_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(WorkspaceError, match="has no notebooks folder: set DPCOURSE_HOME"):
        course_root()


def test_a_file_called_my_is_refused(tmp_path):
    (tmp_path / "my").write_text("")
    with pytest.raises(WorkspaceError, match="is a file: move it away"):
        Workspace(tmp_path)


def test_the_memory_holds_no_path_of_the_machine(space):
    space.update()
    memory = (space.my / ".dpcourse.json").read_text()
    assert os.fspath(space.root) not in memory
    assert set(json.loads(memory)) == {
        "labs/03_ddp.ipynb",
        "notebooks/00_start.ipynb",
        "notebooks/03_ddp.ipynb",
    }
