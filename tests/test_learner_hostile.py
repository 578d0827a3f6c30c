"""A learner's file that somebody edited, or that is none: it stops no run, and nothing waits for it."""

import json
import os

import pytest

import dpcourse as dc
from dpcourse import learner


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.delenv("DPCOURSE_REFERENCE", raising=False)
    monkeypatch.setenv(learner.VARIABLE, str(tmp_path / learner.NAME))
    return tmp_path / learner.NAME


def use() -> None:
    dc.predict("a question", 1, measured=1)
    learner.keep_check("01_equivalence", "shard_batch", "right", 40, 40)


@pytest.mark.parametrize(
    ("part", "row", "says"),
    [
        ("predictions", {"guess": "abc"}, "a guess of another kind"),
        ("predictions", {"guess": True}, "a guess of another kind"),
        ("predictions", {"guess": 2, "changed_to": 5}, "a changed_to of another kind"),
        ("checks", {"num_tries": "many"}, "a num_tries of another kind"),
        ("checks", {"status": ["right"]}, "a status of another kind"),
        ("checks", {"status": "wrong", "points": "NaN"}, "a points of another kind"),
    ],
)
def test_a_field_of_another_kind_is_kept_aside_and_said(part, row, says, file, capsys):
    rows = {"a question": row, "01_equivalence/shard_batch": row}
    record = {"kind": learner.KIND, "format": 1, "learner": "a", "predictions": {}, "checks": {}}
    file.write_text(json.dumps(record | {part: rows}))
    use()
    assert f"one of its {part} has {says}" in capsys.readouterr().out
    assert file.with_name("progress.mine.json").is_file()
    assert json.loads(file.read_text())["predictions"]["a question"]["guess"] == 1


def test_a_newer_version_s_fields_are_not_judged(file, capsys):
    rows = {"a question": {"guess": "in words"}}
    newer = {"kind": learner.KIND, "format": 2, "learner": "a", "predictions": rows, "checks": []}
    file.write_text(json.dumps(newer))
    use()
    assert "written by a newer dpcourse" in capsys.readouterr().out
    assert json.loads(file.read_text()) == newer


def test_a_pipe_is_not_waited_for(file, capsys):
    os.mkfifo(file)
    use()
    assert "it is no regular file" in capsys.readouterr().out
    assert file.is_file()


def test_a_huge_file_is_not_read(file, capsys):
    with file.open("wb") as opened:
        opened.truncate(learner._MOST_BYTES + 1)
    use()
    assert "it is over 10,000,000 bytes" in capsys.readouterr().out
    assert file.stat().st_size < 10_000
