"""What counts as written in a notebook and what as shown by it, and copies without outputs."""

import json
from pathlib import Path

import pytest

from dpcourse.notebook_files import cleared, source_hash
from dpcourse.workspace import Workspace

SHOWN = {"output_type": "stream", "name": "stdout", "text": ["the answer is 20\n"]}
CODE = {"id": "a", "cell_type": "code", "source": ["x = 1\n", "x"], "metadata": {}}


def notebook(*cells: dict, **metadata: object) -> bytes:
    text = {"id": "t", "cell_type": "markdown", "source": ["# Title"], "metadata": {}}
    return json.dumps(
        {"cells": [text, *cells], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    ).encode()


FRESH = notebook({**CODE, "outputs": [], "execution_count": None})
RUN = notebook(
    {**CODE, "outputs": [SHOWN], "execution_count": 7, "metadata": {"execution": {"at": "noon"}}},
    language_info={"version": "3.11.9"},
)
JOINED = notebook({**CODE, "source": "x = 1\nx", "outputs": [], "execution_count": None})
EDITED = {
    "source": notebook({**CODE, "source": ["x = 2\n", "x"], "outputs": [], "execution_count": None}),
    "kind": notebook({**CODE, "cell_type": "raw"}),
    "tags": notebook({**CODE, "metadata": {"tags": ["mine"]}, "outputs": [], "execution_count": None}),
    "a cell more": notebook(CODE, CODE),
    "text": FRESH.replace(b"# Title", b"# My title"),
}
NO_NOTEBOOKS = [b"", b"{half", b"[]", b"{}", b"\xff\xfe", b'{"cells": 3}', b'{"cells": [3]}']
NO_NOTEBOOKS += [b'{"cells": [{"source": %s}]}' % source for source in (b"3", b"[3]")]
NO_NOTEBOOKS += [b'{"cells": [{"metadata": 3}]}']


def test_running_and_saving_change_nothing_of_what_is_written():
    assert source_hash(FRESH) == source_hash(RUN) == source_hash(JOINED)


@pytest.mark.parametrize("content", EDITED.values(), ids=EDITED)
def test_every_edit_changes_it(content):
    assert source_hash(content) != source_hash(FRESH)


def test_a_cleared_notebook_has_nothing_of_a_run_and_all_that_is_written():
    content = cleared(RUN)
    assert b"answer" not in content
    assert b"noon" not in content
    assert source_hash(content) == source_hash(RUN)
    assert cleared(content) == content
    assert json.loads(content)["metadata"] == {"language_info": {"version": "3.11.9"}}


@pytest.mark.parametrize("content", NO_NOTEBOOKS)
def test_what_is_no_notebook_stays_as_it_is(content):
    assert cleared(content) == content
    assert source_hash(content) != source_hash(content + b" ")


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "03_ddp.ipynb").write_bytes(RUN)
    space = Workspace(tmp_path)
    space.update()
    return space


def test_a_copy_begins_without_the_answers(space):
    assert b"answer" not in (space.my / "notebooks/03_ddp.ipynb").read_bytes()
    assert space.update() == []


def test_a_copy_that_was_only_run_follows_the_course_and_leaves_nothing_beside_it_when_it_is_reset(space):
    copy = space.my / "notebooks/03_ddp.ipynb"
    copy.write_bytes(RUN)
    assert space.update() == []
    assert copy.read_bytes() == RUN
    (space.root / "notebooks/03_ddp.ipynb").write_bytes(EDITED["source"])
    assert [str(change) for change in space.update()] == ["notebooks/03_ddp.ipynb: updated"]
    copy.write_bytes(EDITED["source"].replace(b'"outputs": []', b'"outputs": [], "more": 1'))
    assert space.reset("03").kept_as == ""


def test_a_copy_that_was_edited_stays(space):
    copy = space.my / "notebooks/03_ddp.ipynb"
    copy.write_bytes(EDITED["source"])
    (space.root / "notebooks/03_ddp.ipynb").write_bytes(EDITED["text"])
    assert [change.what for change in space.update()] == ["kept"]
    assert copy.read_bytes() == EDITED["source"]


def test_new_outputs_of_the_course_are_no_new_version(space):
    (space.root / "notebooks/03_ddp.ipynb").write_bytes(FRESH)
    (space.my / "notebooks/03_ddp.ipynb").write_bytes(EDITED["source"])
    assert space.update() == []
