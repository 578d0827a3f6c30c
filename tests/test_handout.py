"""What a participant gets: whole, the same every time, without outputs, and never with a solution."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dpcourse import cli, handout
from dpcourse.handout.contents import release_files
from dpcourse.handout.solutions import leaks, solutions
from dpcourse.handout.write import read, write
from dpcourse.labs import LAB_NAMES, load
from dpcourse.labs.question import CodeQuestion
from dpcourse.notebook_files import cleared
from dpcourse.workspace import WorkspaceError, course_files, course_root
from tests.wrong_answers import wrong_answers

ROOT = course_root()
SOURCE = ROOT / "labs" / "source"


def test_the_course_is_written_the_same_twice_as_a_zip_and_as_a_folder(tmp_path, capsys):
    for name in ("one.zip", "two.zip", "folder"):
        assert cli.main(["release", str(tmp_path / name)]) == 0
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    assert read(tmp_path / "one.zip") == read(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "one.zip", "two.zip"]
    said = capsys.readouterr().out
    assert "labs/01_equivalence.ipynb\n" in said
    assert "notebooks/00_start_here.ipynb\n" in said
    assert f"notebooks without outputs; none of {len(solutions(SOURCE))} solutions is in it" in said


def test_a_participant_gets_every_notebook_and_lab_and_what_runs_them_and_no_more():
    files = release_files(ROOT)
    assert {name for name in files if name.endswith(".ipynb")} == set(course_files(ROOT))
    assert {"requirements.lock", "README.md", "Makefile", "tools/make_env.py", "dpcourse/cli.py"} <= set(
        files
    )
    assert {"environment.yml", "notebooks/cheat_sheet.md", "notebooks/glossary.md"} <= set(files)
    beside = {path for path in (ROOT / "dpcourse").rglob("*") if path.suffix in (".json", ".slurm")}
    assert {path.relative_to(ROOT).as_posix() for path in beside} <= set(files)  # no lesson lacks its data
    assert not [name for name in files if "source" in name or name.startswith("tests") or "pycache" in name]
    readme = files["README.md"].decode()
    assert "make lab" in readme
    assert "PIP_NO_INDEX=1 PIP_FIND_LINKS=/path/to/wheelhouse make lab" in readme
    assert "`DPCOURSE_PLACE=on`" in readme
    assert "- `00_start_here`: 00 Start here" in readme
    assert "- `01_equivalence`: " in readme.split("## Labs")[1]


def test_no_notebook_shows_an_output():
    for name in course_files(ROOT):
        cells = json.loads(release_files(ROOT)[name])["cells"]
        assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


def test_what_is_unpacked_is_a_course(tmp_path):
    write(release_files(ROOT), tmp_path / "course.zip")
    shutil.unpack_archive(tmp_path / "course.zip", tmp_path)
    here = tmp_path / "dpcourse"
    command = [sys.executable, "-m", "dpcourse.cli", "lab", "--copies-only"]
    environ = {name: value for name, value in os.environ.items() if name != "DPCOURSE_HOME"}
    found = subprocess.run(
        command,
        cwd=here,
        env={**environ, "PYTHONPATH": str(here)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "notebooks/00_start_here.ipynb: new" in found.stdout, found.stderr
    assert (here / "my" / "notebooks" / "00_start_here.ipynb").is_file()
    with zipfile.ZipFile(tmp_path / "course.zip") as archive:
        assert archive.getinfo("dpcourse/tools/find_python.sh").external_attr >> 16 == 0o755


# -- solutions ---------------------------------------------------------------------------------------------


def test_every_answer_cell_of_the_labs_has_a_solution_to_search_for():
    answers = {
        f"{path.stem}, {cell['id']}"
        for path in SOURCE.glob("*.ipynb")
        for cell in json.loads(path.read_text())["cells"]
        if cell["metadata"].get("nbgrader", {}).get("solution")
    }
    found = {name.rpartition(", ")[0] for name in solutions(SOURCE)}
    assert found <= answers
    assert answers - found == {"06_fsdp, why_reduce_scatter"}  # one letter, which stands in every file


def cell_of(text: str, kind: str) -> bytes:
    lines = text.splitlines(keepends=True)
    cell = {"cell_type": "code", "source": ["pass"], "outputs": [], "metadata": {}}
    cell |= {"source": {"source": lines}, "metadata": {"metadata": {"old": text}}}.get(kind, {})
    cell |= {"outputs": [{"output_type": "stream", "text": lines}]} if kind == "output" else {}
    return json.dumps({"cells": [cell]}).encode()


@pytest.mark.parametrize("kind", ["source", "output", "metadata"])
@pytest.mark.parametrize("name", solutions(SOURCE))
def test_a_solution_is_found_wherever_it_stands_in_a_notebook(name, kind):
    wanted = solutions(SOURCE)
    text = "\n\n    # as in the source\n".join(f"    {line}" for line in wanted[name].splitlines())
    assert leaks({"labs/01.ipynb": cell_of(text, kind)}, wanted) == [
        f"labs/01.ipynb has the solution of {name}"
    ]


def test_a_solution_is_found_in_other_files_and_in_a_notebook_that_cannot_be_read():
    wanted = solutions(SOURCE)
    text = next(iter(wanted.values())).encode()
    assert (
        len(leaks({"notes.py": b"def f():\n" + text, "half.ipynb": b"{" + text, "b": b"\xff"}, wanted)) == 2
    )


def test_no_file_may_hold_a_solution_the_labs_package_included():
    wanted = solutions(SOURCE)
    text = wanted["03_ddp, average_gradients, 1"].encode()
    assert len(leaks({"dpcourse/labs/ddp/mistakes.py": text, "tools/any.txt": text}, wanted)) == 2


@pytest.mark.parametrize("lab", LAB_NAMES)
def test_a_wrong_answer_in_code_stands_in_the_tests_alone(lab):
    code = [question for question in load(lab).questions if isinstance(question, CodeQuestion)]
    for question in code:
        assert [mistake.name for mistake in question.mistakes if mistake.source] == [], question.name
        assert len(wrong_answers(question)) > 3, question.name
    assert not [name for name in release_files(ROOT) if "wrong_answers" in name]


def test_a_release_with_a_solution_is_removed_again_and_named(tmp_path, monkeypatch, capsys):
    content = (SOURCE / "01_equivalence.ipynb").read_bytes()
    files = {**release_files(ROOT), "labs/01_equivalence.ipynb": content}
    monkeypatch.setattr("dpcourse.handout.command.release_files", lambda root: files)
    for name in ("out.zip", "out"):
        assert handout.main([str(tmp_path / name)]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert "labs/01_equivalence.ipynb has the solution of 01_equivalence, shard_batch, 1" in said.err
    assert list(tmp_path.iterdir()) == []


# -- what cannot be written ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["there.zip", "there", "link"])
def test_nothing_is_overwritten(tmp_path, name, capsys):
    (tmp_path / "there.zip").write_text("mine")
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    assert cli.main(["release", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert said == f"dpcourse release: {tmp_path / name} is there already; name another, or move it away\n"
    assert (tmp_path / "there.zip").read_text() == "mine"


def test_a_folder_that_is_not_there_is_one_line(tmp_path, capsys):
    assert cli.main(["release", str(tmp_path / "nowhere" / "out.zip")]) == 2
    assert "nowhere is no folder that can be written; make it first" in capsys.readouterr().err


def test_what_is_no_whole_clone_is_refused(tmp_path):
    (tmp_path / "notebooks").mkdir()
    with pytest.raises(
        WorkspaceError, match=r"made from a clone of the course, and .* has no pyproject.toml"
    ):
        release_files(tmp_path)


def test_what_lies_beside_a_release_stays(tmp_path):
    (tmp_path / "out.part").mkdir()
    (tmp_path / "out.part" / "thesis").write_text("mine")
    (tmp_path / "out.zip.part").write_text("mine")
    for name in ("out", "out.zip"):
        write({"a": b"1"}, tmp_path / name)
    assert (tmp_path / "out.part" / "thesis").read_text() == (tmp_path / "out.zip.part").read_text() == "mine"


@pytest.mark.parametrize(("name", "is_refused"), [("UP.ZIP", False), ("out.tar.gz", True), ("out.7z", True)])
def test_an_archive_is_a_zip_file_or_refused(name, is_refused, tmp_path):
    if is_refused:
        with pytest.raises(ValueError, match="a release is a zip file or a folder"):
            write({"a": b"1"}, tmp_path / name)
    else:
        write({"a": b"1"}, tmp_path / name)
        assert zipfile.is_zipfile(tmp_path / name)


def test_what_somebody_left_lying_about_is_no_part_of_a_release(tmp_path):
    root = tmp_path / "course"
    write(release_files(ROOT), root)
    before = set(release_files(root))
    outside = tmp_path / "secret"
    outside.write_text("secret")
    (root / "tools" / "link").symlink_to(outside)
    (root / "dpcourse" / ".ipynb_checkpoints").mkdir()
    (root / "dpcourse" / ".ipynb_checkpoints" / "cli.py").write_text("old")
    assert set(release_files(root)) == before
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True)
    (root / "tools" / "notes.txt").write_text("mine")
    (root / "dpcourse" / "answers_tmp.py").write_text("answers = 1")
    assert set(release_files(root)) == before


def test_a_notebook_s_metadata_tells_nothing_of_the_machine(tmp_path):
    notebook = {
        "cells": [{"cell_type": "code", "source": "1", "metadata": {"papermill": {}, "tags": ["check"]}}],
        "metadata": {"papermill": {"input_path": "/home/me/secret.ipynb"}, "widgets": {}, "kernelspec": {}},
    }
    made = json.loads(cleared(json.dumps(notebook).encode()))
    assert made["metadata"] == {"kernelspec": {}}
    assert made["cells"][0]["metadata"] == {"tags": ["check"]}


@pytest.mark.parametrize("name", ["out", "out.zip"])
@pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_release_that_stops_half_way_leaves_nothing(tmp_path, monkeypatch, name, problem):
    def stop(*_: object) -> None:
        raise problem

    monkeypatch.setattr(Path, "write_bytes", stop)
    monkeypatch.setattr(zipfile.ZipFile, "writestr", stop)
    expected = 2 if isinstance(problem, OSError) else 130
    assert cli.main(["release", str(tmp_path / name)]) == expected
    assert list(tmp_path.iterdir()) == []


def test_json_names_every_file_with_its_hash_and_is_alone_on_stdout(tmp_path, capsys):
    assert cli.main(["release", str(tmp_path / "out.zip"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["sha256"]) == set(read(tmp_path / "out.zip"))
    assert document["num_solutions_searched_for"] == len(solutions(SOURCE))
