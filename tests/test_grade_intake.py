"""What arrives is read where it can be, matched by content, and merged so that only answers count."""

import json
import os
import socket
import zipfile
from pathlib import Path

import pytest

import dpcourse as dc
from dpcourse.grade import main
from dpcourse.grade.answers import find_answer, with_helpers, without_magics
from dpcourse.grade.intake import find_submissions
from dpcourse.grade.merge import Release, merge
from dpcourse.grade.reading import Cell, Unreadable, read_notebook
from tests.submissions import LAB, LABS, change, solved, unsolved

TEXT = json.dumps(solved(), indent=1)
SHARD = LAB.question("shard_batch")


def release() -> Release:
    return Release.read(LAB, LABS)


# --- reading ---


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (TEXT.encode("utf-8-sig"), "began with a byte-order mark"),
        (TEXT.encode("utf-16"), "was written in UTF-16"),
        (TEXT.encode("utf-16-le"), "was written in UTF-16"),
        (TEXT.replace("Lab 01", "Läb 01").replace("\\u", "").encode("latin-1"), "read as Latin-1"),
        ((TEXT + "\n}}").encode(), "text after the last brace was left out"),
    ],
)
def test_unusual_files_are_mended_with_a_note(data, note):
    notebook = read_notebook(data)
    assert len(notebook.cells) == len(solved()["cells"])
    assert any(note in text for text in notebook.notes)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (TEXT[:5000].encode(), r"not JSON: .* at line \d+, column \d+"),
        (b"def shard_batch(): pass", "not JSON: Expecting value at line 1, column 1"),
        (TEXT.replace("\n", "\n<<<<<<< HEAD\n", 1).encode(), "conflict markers .* at line 2"),
        (b"[1, 2]", "not a notebook"),
        (b'{"cells": 3}', "it has no list of cells"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"cells": [], "nbformat": ' + b"4" * 10_000 + b"}", "it holds a number of thousands of digits"),
    ],
)
def test_unreadable_files_are_named_with_the_reason(data, why):
    with pytest.raises(Unreadable, match=why):
        read_notebook(data)


def test_ids_missing_null_doubled_or_too_long_are_noted_and_do_not_matter():
    notebook = solved()
    for cell, name in zip(notebook["cells"], (None, "a" * 99, "twice", "twice"), strict=False):
        cell["id"] = name
    read = read_notebook(json.dumps(notebook).encode())
    assert "2 cells without a valid id" in read.notes
    assert "1 cell ids that stand twice" in read.notes
    assert not find_answer(SHARD, read.cells).problem


def test_a_notebook_of_format_4_5_without_any_ids_is_read_with_a_note():
    notebook = solved()
    for cell in notebook["cells"]:
        del cell["id"]
    read = read_notebook(json.dumps(notebook).encode())
    assert read.notes == (f"{len(notebook['cells'])} cells without a valid id",)
    assert not find_answer(SHARD, read.cells).problem


def test_a_notebook_of_format_4_2_with_ids_is_read_with_a_note():
    read = read_notebook(json.dumps({**solved(), "nbformat_minor": 2}).encode())
    num_cells = len(solved()["cells"])
    assert read.notes == (f"{num_cells} cells with an id, which format 4.2 does not have",)
    assert not find_answer(SHARD, read.cells).problem
    early = solved()
    early["nbformat_minor"] = 4
    for cell in early["cells"]:
        del cell["id"]
    assert read_notebook(json.dumps(early).encode()).notes == ()


def test_another_kernel_is_noted():
    notebook = solved()
    notebook["metadata"]["kernelspec"] = {"name": "py39_new", "display_name": "my own"}
    read = read_notebook(json.dumps(notebook).encode())
    assert read.notes == ("asked for kernel 'py39_new'; graded with the grader's own",)


def test_half_characters_are_kept_as_escapes_so_that_the_answer_can_be_written():
    notebook = change(solved(), "shard_batch", source="def shard_batch(b, r, w):\n    return '\ud800'")
    notebook["metadata"] = {"kernelspec": {"name": "\ud800"}, "language_info": {"name": "\udfff"}}
    read = read_notebook(json.dumps(notebook).encode())
    assert r"return '\ud800'" in find_answer(SHARD, read.cells).text
    assert read.problem == r"written in \udfff; this lab is answered in Python"
    repr(read).encode()


def test_format_3_is_read():
    old = {
        "nbformat": 3,
        "metadata": {"name": ""},
        "worksheets": [
            {"cells": [{"cell_type": "code", "input": ["def shard_batch(b, r, w):\n", "    return b"]}]}
        ],
    }
    read = read_notebook(json.dumps(old).encode())
    assert find_answer(SHARD, read.cells).text == "def shard_batch(b, r, w):\n    return b"
    assert read.notes == ("was written in notebook format 3",)


# --- finding the answers ---


def cells_of(notebook: dict) -> tuple[Cell, ...]:
    return read_notebook(json.dumps(notebook).encode()).cells


def test_an_answer_without_metadata_is_found_by_what_it_defines():
    answer = find_answer(SHARD, cells_of(change(solved(), "shard_batch", metadata={})))
    assert "return batch[first:last]" in answer.text
    assert "found by what it defines" in answer.note


def test_an_answer_in_another_cell_counts_when_the_stub_was_left():
    stub = "".join(next(cell for cell in unsolved()["cells"] if cell["id"] == "shard_batch")["source"])
    cells = (Cell("code", stub, "shard_batch"), Cell("code", "def shard_batch(b, r, w):\n    return b[r::w]"))
    assert "b[r::w]" in find_answer(SHARD, cells, stub).text


def test_of_two_cells_of_one_name_the_last_that_answers_counts():
    cells = [Cell("code", f"def shard_batch(b, r, w):\n    return {n}", "shard_batch") for n in (1, 2)]
    assert find_answer(SHARD, [*cells, Cell("code", "x = 1", "shard_batch")]).text == cells[1].source


def test_a_syntax_error_does_not_hide_which_question_is_answered():
    assert "def shard_batch(" in find_answer(SHARD, [Cell("code", "def shard_batch(b, r, w)\n  return")]).text


def test_answers_deleted_or_turned_into_text_are_named():
    as_text = find_answer(SHARD, cells_of(change(solved(), "shard_batch", cell_type="markdown")))
    assert as_text.problem == "its cell was turned into text"
    assert find_answer(SHARD, ()).problem == "its cell is not in the notebook"


def test_helpers_from_other_cells_come_along_and_nothing_else():
    cells = [
        Cell("code", "import os\nos._exit(0)"),
        Cell("code", "import numpy as np\ndef cut(n):\n    return np.arange(n) * FACTOR\nFACTOR = 2"),
    ]
    source = with_helpers("def answer(n):\n    return cut(n)", cells, {"torch"})
    namespace: dict = {}
    exec(source, namespace)
    assert list(namespace["answer"](3)) == [0, 2, 4]
    assert "os" not in source


def test_magic_lines_are_left_out_and_a_modulo_stays():
    assert "pass  # a magic line" in without_magics("%time\nx = 1")
    assert without_magics("x = (5\n% 3)") == "x = (5\n% 3)"


# --- merging ---


def test_a_merged_notebook_has_the_students_answers_and_the_graders_checks():
    notebook = change(solved(), "check_shard_batch", source="lab.check = print")
    notebook = change(notebook, "title", source="# Another title")
    notebook["cells"] = notebook["cells"][::-1]
    merged = merge(release(), cells_of(notebook)).notebook
    ids = [cell["id"] for cell in merged["cells"]]
    by_id = {cell["id"]: "".join(cell["source"]) for cell in merged["cells"]}
    assert ids == [cell["id"] for cell in unsolved()["cells"]]
    assert by_id["check_shard_batch"] == 'lab.check("shard_batch", shard_batch)'
    assert "# Lab 01" in by_id["title"]
    assert "return batch[first:last]" in by_id["shard_batch"]


def test_ranks_get_the_answer_after_the_released_imports_only():
    source = merge(release(), cells_of(solved())).source("shard_batch", "shard_batch")
    assert source.preamble == "import torch\nimport torch.distributed as dist\nimport dpcourse as dc"
    assert source.load() is not None


# --- finding the submissions ---


def write(path: Path, notebook: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def students(*paths: Path) -> dict[str, str]:
    return {item.student: item.problem for item in find_submissions(paths, LAB)}


def test_files_folders_and_zips_are_submissions_and_checkpoints_are_not(tmp_path):
    write(tmp_path / "ann.ipynb", solved())
    write(tmp_path / "ben" / "deep" / "lab.ipynb", solved())
    write(tmp_path / "ben" / ".ipynb_checkpoints" / "lab-checkpoint.ipynb", unsolved())
    write(tmp_path / ".ipynb_checkpoints" / "ann-checkpoint.ipynb", solved())
    with zipfile.ZipFile(tmp_path / "cid.zip", "w") as archive:
        archive.writestr("../../lab.ipynb", TEXT)
        archive.writestr("__MACOSX/lab.ipynb", "junk")
    write(tmp_path / "dora.ipynb.txt", solved())
    (tmp_path / "roster.txt").write_text("ann, ben")
    assert students(tmp_path) == {"ann": "", "ben": "", "cid": "", "dora": ""}


def test_two_submissions_of_one_name_are_numbered(tmp_path):
    first, second = (
        write(tmp_path / "a" / "ann.ipynb", solved()),
        write(tmp_path / "b" / "ann.ipynb", solved()),
    )
    third = write(tmp_path / "c" / "ann (2).ipynb", solved())
    assert list(students(first, second)) == ["ann", "ann (2)"]
    assert list(students(third, first, second)) == ["ann (2)", "ann", "ann (3)"]


def test_names_that_are_not_utf_8_are_shown_by_their_bytes_and_stay_apart(tmp_path):
    for name in (b"bad\xff\xfe.ipynb", b"bad\xff.ipynb", b"new\nline\x1b[2J.ipynb"):
        with open(os.fsencode(tmp_path) + b"/" + name, "wb") as file:
            file.write(TEXT.encode())
    folder = os.fsencode(tmp_path) + b"/dir\xe9"
    os.mkdir(folder)
    with open(folder + b"/lab\xe9.ipynb", "wb") as file:
        file.write(b"no notebook")
    found = find_submissions([tmp_path], LAB)
    names = [item.student for item in found]
    assert sorted(names) == [r"bad\xff", r"bad\xff\xfe", r"dir\xe9", r"new\nline\x1b[2J"]
    assert [item.problem.split(": ")[:2] for item in found if item.problem] == [
        ["unreadable", r"lab\xe9.ipynb"]
    ]
    repr(found).encode()


def test_the_candidate_with_most_answers_counts_and_a_tie_of_different_ones_does_not(tmp_path):
    write(tmp_path / "ann" / "scratch.ipynb", change(solved(), "shard_batch", source="x = 1", metadata={}))
    write(tmp_path / "ann" / "lab (1).ipynb", solved())
    write(tmp_path / "ben" / "one.ipynb", solved())
    write(tmp_path / "ben" / "two.ipynb", unsolved())
    write(tmp_path / "cid" / "one.ipynb", solved())
    write(tmp_path / "cid" / "copy.ipynb", solved())
    write(tmp_path / "dan" / "other.ipynb", {"cells": [], "nbformat": 4})
    (tmp_path / "eve").mkdir()
    found = students(tmp_path)
    assert found["ann"] == found["cid"] == ""
    assert found["ben"] == "not matched: one.ipynb and two.ipynb have equally many answers"
    assert found["dan"] == "not matched: no answer cell of 01_equivalence in other.ipynb"
    assert found["eve"] == "not matched: no notebook in it"


def test_links_are_not_followed(tmp_path):
    secret = write(tmp_path / "secret.ipynb", solved())
    (tmp_path / "in").mkdir()
    os.symlink(secret, tmp_path / "in" / "ann.ipynb")
    write(tmp_path / "in" / "ben" / "lab.ipynb", unsolved())
    os.symlink(secret, tmp_path / "in" / "ben" / "better.ipynb")
    found = find_submissions([tmp_path / "in"], LAB)
    assert "a link, which is not followed" in found[0].problem
    assert found[1].path == "lab.ipynb"


def test_zips_that_cannot_be_opened_are_named_and_the_others_are_read(tmp_path):
    write(tmp_path / "zoe.ipynb", solved())
    for name in ("cut", "damaged"):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("lab.ipynb", TEXT)
    data = (tmp_path / "cut.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(data[1000:])
    (tmp_path / "damaged.zip").write_bytes(data[:60] + bytes(100) + data[160:])
    found = students(tmp_path)
    assert "unreadable: lab.ipynb: cannot be unpacked (" in found["cut"]
    assert "unreadable: lab.ipynb: cannot be unpacked (" in found["damaged"]
    assert found["zoe"] == ""


def test_files_larger_than_a_notebook_can_be_are_refused_unread(tmp_path):
    with (tmp_path / "ann.ipynb").open("wb") as file:
        file.truncate(50_000_001)
    with zipfile.ZipFile(tmp_path / "ben.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("lab.ipynb", bytes(50_000_001))
    found = students(tmp_path)
    assert found["ann"] == "unreadable: ann.ipynb: larger than 50 MB"
    assert found["ben"] == "unreadable: lab.ipynb: larger than 50 MB"


def zip_with_damage(path: Path, method: int) -> None:
    """A zip file whose directory can be read and whose first member's data cannot; the second is whole."""
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("lab.ipynb", TEXT)
        archive.writestr("whole.ipynb", json.dumps(unsolved()), zipfile.ZIP_STORED)
        first = archive.infolist()[0]
    data = bytearray(path.read_bytes())
    start = first.header_offset + 30 + len(first.filename)
    data[start : start + first.compress_size] = b"\xff" * first.compress_size
    path.write_bytes(data)


def zip_with_header(path: Path, field: int, value: int) -> None:
    """A zip file with two bytes of its member's two headers replaced: 6 for the flags, 8 for the method."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("lab.ipynb", TEXT)
    data = bytearray(path.read_bytes())
    for place in (field, data.rindex(b"PK\x01\x02") + field + 2):
        data[place : place + 2] = value.to_bytes(2, "little")
    path.write_bytes(data)


@pytest.mark.parametrize(
    "method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_STORED]
)
def test_damaged_data_in_a_zip_are_unreadable_and_the_other_members_count(tmp_path, method):
    zip_with_damage(tmp_path / "ann.zip", method)
    found = find_submissions([tmp_path], LAB)[0]
    assert (found.path, found.problem) == ("whole.ipynb", "")


@pytest.mark.parametrize(("field", "value", "why"), [(6, 1, "encrypted"), (8, 97, "compression method")])
def test_an_encrypted_or_oddly_packed_zip_is_unreadable_for_that_student(tmp_path, field, value, why):
    zip_with_header(tmp_path / "ann.zip", field, value)
    write(tmp_path / "ben.ipynb", solved())
    found = students(tmp_path)
    assert found["ann"].startswith("unreadable: lab.ipynb: cannot be unpacked (")
    assert why in found["ann"]
    assert found["ben"] == ""


@pytest.mark.timeout(30)
def test_pipes_and_sockets_are_named_and_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "ann.ipynb")
    os.mkfifo(tmp_path / "roster.txt")
    write(tmp_path / "ben" / "lab.ipynb", solved())
    os.mkfifo(tmp_path / "ben" / "other.ipynb")
    monkeypatch.chdir(tmp_path)  # the path of a socket may have 108 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("cid.ipynb")
        found = students(tmp_path)
    assert found.keys() == {"ann", "ben", "cid"}
    assert found["ann"] == "unreadable: ann.ipynb: not a file, but a pipe, a socket or a device"
    assert "not a file" in found["cid"]
    assert found["ben"] == ""
    assert "not a file" in students(tmp_path / "ann.ipynb")["ann"]


def test_whatever_is_raised_while_a_file_is_read_is_one_submissions_problem(tmp_path, monkeypatch):
    write(tmp_path / "ann" / "lab.ipynb", solved())
    write(tmp_path / "ann" / "other.ipynb", {"odd": 1})
    (tmp_path / "ben.ipynb").write_text('{"odd": 1}', encoding="utf-8")

    def read(data: bytes):
        return 1 / 0 if b"odd" in data else read_notebook(data)

    monkeypatch.setattr("dpcourse.grade.intake.read_notebook", read)
    found = students(tmp_path)
    assert found == {"ann": "", "ben": "unreadable: ben.ipynb: ZeroDivisionError: division by zero"}


def test_a_zip_file_unpacks_to_a_bounded_size(tmp_path, monkeypatch):
    monkeypatch.setattr("dpcourse.grade.intake._MAX_BYTES", 2 * len(TEXT))
    with zipfile.ZipFile(tmp_path / "ann.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("lab.ipynb", TEXT)
        for number in range(3):
            archive.writestr(f"{number}.ipynb", " " * (2 * len(TEXT)))
    found = find_submissions([tmp_path], LAB)[0]
    assert (found.path, found.problem) == ("lab.ipynb", "")


@pytest.mark.parametrize("out", [".", "graded", "ann/graded"])
def test_results_inside_the_submissions_are_refused_at_the_start(tmp_path, capsys, out):
    write(tmp_path / "ann" / "lab.ipynb", solved())
    before = sorted(tmp_path.rglob("*"))
    assert main(["01", str(tmp_path), "--out", str(tmp_path / out), "--isolation", "none"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert f"is inside {tmp_path}" in message
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", ["01", "1", "01_equivalence", "01_equ"])
def test_a_number_or_the_beginning_of_its_name_finds_a_lab(name):
    assert dc.lab(name).spec is LAB


@pytest.mark.parametrize("name", ["", "0", "11", "1_equivalence", "equivalence"])
def test_an_unknown_lab_is_answered_with_those_there_are(name, tmp_path, capsys):
    with pytest.raises(ValueError, match=f"there is no lab '{name}'; there are: 01_equivalence"):
        dc.lab(name)
    options = [str(tmp_path), "--out", str(tmp_path / "out"), "--isolation", "none"]
    assert main([name, *options]) == 2
    assert "there are: 01_equivalence" in capsys.readouterr().err


def test_a_beginning_that_two_labs_share_finds_neither(monkeypatch):
    monkeypatch.setattr("dpcourse.labs.LAB_NAMES", ("01_equivalence", "01_equal", "10_more"))
    with pytest.raises(ValueError, match="there is no lab '01_equ'; there are: 01_equivalence, 01_equal"):
        dc.lab("01_equ")


def test_a_broken_zip_and_an_empty_request_are_named(tmp_path):
    (tmp_path / "ann.zip").write_bytes(b"PK\x03\x04 and no more")
    assert "unreadable" in students(tmp_path)["ann"]
    (tmp_path / "in").mkdir()
    with pytest.raises(ValueError, match=r"no submissions in .*: no notebook, zip file or folder there"):
        students(tmp_path / "in")
    with pytest.raises(ValueError, match=r"there is no .*nowhere"):
        students(tmp_path / "nowhere")


def test_another_language_is_named(tmp_path):
    notebook = solved()
    notebook["metadata"] = {"kernelspec": {"name": "ir", "language": "R"}}
    write(tmp_path / "ann.ipynb", notebook)
    assert students(tmp_path)["ann"] == "written in R; this lab is answered in Python"
