"""Who is where in a room, and its board: only what was chosen is written, whatever there is can be read."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from dpcourse import room_places
from dpcourse.room import put_guess
from dpcourse.room_files import GUESS, PLACE, Folder, clean, file_of, put
from dpcourse.room_places import hide_my_place, places_in, show_my_place, show_where_chosen, stops
from dpcourse.widgets import room as board
from dpcourse.widgets.room import room_board

QUESTION = "Bytes a parameter on 4 ranks"
CELLS = [cell_id for cell_id, stop in stops().items() if stop.notebook == "03_ddp"]


def stand(folder, learner, cell_id, name="", seconds_ago=0):
    """Write a learner's place, as their kernel does."""
    path = file_of(folder, PLACE, learner)
    put(path, {"kind": PLACE, "at": cell_id, "name": name})
    os.utime(path, (time.time() - seconds_ago,) * 2)


class Shell:
    """What of IPython's shell a place needs: the hooks that run after a cell."""

    def __init__(self):
        self.hooks = []
        self.events = SimpleNamespace(
            register=lambda _, hook: self.hooks.append(hook),
            unregister=lambda _, hook: self.hooks.remove(hook),
        )

    def run(self, cell_id):
        for hook in list(self.hooks):
            hook(SimpleNamespace(info=SimpleNamespace(cell_id=cell_id)))


@pytest.fixture
def shell(monkeypatch):
    found = Shell()
    monkeypatch.setattr(room_places, "_shell", lambda: found)
    yield found
    hide_my_place()


# -- what is written -----------------------------------------------------------------------------


def test_a_place_is_one_file_with_the_last_cell_and_no_more(shell, tmp_path, monkeypatch):
    monkeypatch.setenv("DPCOURSE_NAME", "Ada")
    show_my_place(tmp_path)
    assert list(tmp_path.iterdir()) == []  # nothing was run yet
    shell.run(CELLS[0])
    shell.run(CELLS[5])
    shell.run("0f3a-a-cell-of-the-learner-s-own")
    shell.run(None)
    [file] = tmp_path.iterdir()
    assert json.loads(file.read_text()) == {"kind": PLACE, "at": CELLS[5], "name": "Ada"}
    assert [place.stop for place in places_in(tmp_path).places] == [stops()[CELLS[5]]]
    hide_my_place()
    assert list(tmp_path.iterdir()) == []
    assert shell.hooks == []


@pytest.mark.parametrize(("chosen", "is_shown"), [("on", True), ("1", True), ("off", False), ("", False)])
def test_a_place_is_shown_only_where_it_was_chosen(chosen, is_shown, shell, tmp_path, monkeypatch):
    monkeypatch.setenv("DPCOURSE_ROOM", str(tmp_path))
    monkeypatch.setenv("DPCOURSE_PLACE", chosen)
    show_where_chosen()
    shell.run(CELLS[0])
    assert len(list(tmp_path.iterdir())) == is_shown


@pytest.mark.parametrize(
    ("chosen", "room", "said"),
    [("on", "nowhere", "there is no room at"), ("On,please", "", 'set it to "on", or to nothing')],
)
def test_a_choice_that_comes_to_nothing_is_said_and_stops_no_import(
    chosen, room, said, shell, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("DPCOURSE_ROOM", str(tmp_path / room))
    monkeypatch.setenv("DPCOURSE_PLACE", chosen)
    show_where_chosen()
    assert said in capsys.readouterr().out
    assert shell.hooks == []


def test_outside_of_notebooks_the_choice_is_passed_over(tmp_path, monkeypatch):
    monkeypatch.setenv("DPCOURSE_ROOM", str(tmp_path))
    monkeypatch.setenv("DPCOURSE_PLACE", "on")
    code = "import IPython, dpcourse; print('imported')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("imported\n", "")


def test_no_place_is_shown_in_the_reference_configuration(shell, tmp_path, monkeypatch):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    monkeypatch.setenv("DPCOURSE_ROOM", str(tmp_path))
    monkeypatch.setenv("DPCOURSE_PLACE", "on")
    show_where_chosen()
    assert shell.hooks == []


def test_a_room_that_is_not_there_and_a_place_outside_of_notebooks_are_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("DPCOURSE_ROOM", raising=False)
    with pytest.raises(ValueError, match="there is no room at None: give the folder"):
        show_my_place()
    with pytest.raises(ValueError, match=r"there is no room at .*nowhere: give the folder"):
        show_my_place(tmp_path / "nowhere")
    with pytest.raises(RuntimeError, match="this is no notebook: call it in one"):
        show_my_place(tmp_path)


def test_a_place_that_cannot_be_written_is_said_once_and_no_longer_tried(
    shell, tmp_path, monkeypatch, capsys
):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    show_my_place(tmp_path)
    monkeypatch.setattr("tempfile.mkstemp", full)
    shell.run(CELLS[0])
    shell.run(CELLS[1])
    assert capsys.readouterr().out == "Where you are did not reach the room (No space left on device).\n"


# -- what is read --------------------------------------------------------------------------------


def test_the_course_s_cells_are_found_by_their_ids_with_their_headings():
    notebooks = Counter(stop.notebook for stop in stops().values())
    assert {"00_start_here", "10_in_production", "lab 10_in_production"} <= set(notebooks)
    assert stops()[CELLS[0]].where == "03_ddp 1/10: opening"
    assert all(stop.section < stop.num_sections for stop in stops().values())


def test_forty_people_two_of_one_name_some_quiet_some_nameless(tmp_path):
    for number in range(38):
        stand(tmp_path, f"learner {number}", CELLS[number % 3], seconds_ago=1000 * (number < 5))
    stand(tmp_path, "one", CELLS[9], "Ada")
    stand(tmp_path, "two", CELLS[9], "Ada")
    found = places_in(tmp_path)
    assert len(found.places) == 40
    assert found.words() == "40 people show where they are; 5 ran nothing for 10 minutes."
    names = {row[0]: row[1:] for row in found.table().rows}
    assert names[stops()[CELLS[9]].where] == [2, "Ada (2 of this name)"]
    assert sum(row[1] for row in found.table().rows) == 40
    figure = found.plot()
    assert f"2 at {stops()[CELLS[9]].where}" in figure.alt
    ax = figure.draw().axes[0]
    assert sum(len(line.get_xdata()) == 1 for line in ax.lines) == 40  # a dot for each
    assert figure.png().startswith(b"\x89PNG")


def test_hundreds_are_bars_as_high_as_they_are_many(tmp_path):
    for number in range(120):
        stand(tmp_path, str(number), CELLS[0 if number < 80 else 30], seconds_ago=900 * (number % 4 == 0))
    ax = places_in(tmp_path).plot().draw().axes[0]
    heights = [bar.get_height() for bar in ax.patches]
    at_work, quiet = sorted(heights[:2], reverse=True)
    assert at_work / quiet == pytest.approx(3)
    assert sum(heights[:2]) / sum(heights[2:]) == pytest.approx(2)
    assert [text.get_text() for text in ax.texts if text.get_fontweight() == "bold"] == ["03_ddp", "80", "40"]


def test_hostile_files_are_skipped_and_named_and_names_are_no_markup(tmp_path):
    folder = tmp_path / "room"
    folder.mkdir()
    stand(folder, "one", CELLS[0], "<b>Eve</b> $x$\u202e\n" + "y" * 300)
    texts = {"list": "[]", "half": "{", "at": json.dumps({"kind": PLACE, "at": 3}), "kind": '{"kind": []}'}
    for name, text in texts.items():
        (folder / f"{name}.json").write_text(text)
    os.mkfifo(folder / "pipe.json")
    (folder / "link.json").symlink_to(file_of(folder, PLACE, "one"))
    stand(folder, "two", "no-cell-of-the-course")
    found = places_in(folder)
    assert [place.name for place in found.places] == [clean("<b>Eve</b> $x$" + "y" * 300)]
    assert len(found.skipped) == len(texts) + 2 + 1
    assert "half.json (no JSON)" in found.skipped
    assert found.skipped[-1] == "1 at cells that this course does not have"
    assert "<b>Eve" not in found.to_html()
    assert "&lt;b&gt;Eve&lt;/b&gt; x" in found.to_html()


def test_a_file_that_has_not_changed_is_not_opened_again_and_one_that_has_is(tmp_path, monkeypatch):
    room = Folder(tmp_path)
    stand(tmp_path, "one", CELLS[0])
    (tmp_path / "half.json").write_text("{")
    assert len(room.papers(PLACE)) == 1
    assert len(room.skipped) == 1
    with monkeypatch.context() as patched:
        patched.setattr("dpcourse.room_files._read", lambda _: pytest.fail("it was opened again"))
        (tmp_path / "half.json").unlink()  # one that could not be read is tried again
        assert len(room.papers(PLACE)) == 1
    assert room.skipped == ()
    stand(tmp_path, "one", CELLS[4])
    assert [paper.plain["at"] for paper in room.papers(PLACE)] == [CELLS[4]]


def test_an_empty_room_says_how_to_show_a_place(tmp_path):
    assert str(places_in(tmp_path)) == (
        "Nobody shows where they are: set DPCOURSE_PLACE=on, or run show_my_place(), to do so."
    )


# -- the board -----------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch):
    """The pictures that a board draws in the place of its first one."""
    from IPython import display

    pictures = []
    monkeypatch.setattr(display, "update_display", lambda picture, display_id: pictures.append(picture))
    return pictures


def test_a_board_takes_the_newest_question_and_another_when_it_is_chosen(tmp_path, drawn):
    put_guess(tmp_path, QUESTION, 16, "one")
    os.utime(file_of(tmp_path, QUESTION, "one"), (1, 1))
    put_guess(tmp_path, "Later", 2, "one")
    panel = room_board(tmp_path)
    assert panel.picture.guesses.question == "Later"
    assert panel.picture.guesses.answer is None
    offered = [label for label, _ in panel.controls["question"].field.options]
    assert offered == [board._NEWEST, QUESTION, "Later"]
    panel.controls["question"].field.value = QUESTION
    assert drawn[-1].guesses.question == QUESTION
    put_guess(tmp_path, "Latest", 3, "two")
    panel.look()
    assert drawn[-1].guesses.question == QUESTION  # what was chosen stays, whatever comes
    panel.controls["question"].field.value = ""
    assert drawn[-1].guesses.question == "Latest"


def test_a_question_may_be_called_as_the_board_calls_the_newest(tmp_path, drawn):
    put_guess(tmp_path, "the newest", 16, "one")
    panel = room_board(tmp_path)
    put_guess(tmp_path, QUESTION, 17, "two")
    panel.look()
    assert drawn[-1].guesses.question == QUESTION
    panel.controls["question"].field.value = "the newest"
    assert drawn[-1].guesses.question == "the newest"
    assert not panel._is_offering


@pytest.mark.parametrize("question", ["\ud800", "\u202egnorw", "\a", "\x1b[31m"])
def test_a_question_that_does_not_show_as_it_is_is_none(question, tmp_path, drawn):
    put_guess(tmp_path, question, 16, "one")
    panel = room_board(tmp_path)
    assert panel.picture.guesses is None
    assert "its subject is no plain text" in str(panel.picture)


def test_a_complaint_goes_when_what_it_was_about_is_over(tmp_path, drawn):
    folder = tmp_path / "room"
    folder.mkdir()
    panel = room_board(folder)
    folder.rename(tmp_path / "away")
    panel.look()
    assert "there is no room at" in panel.words
    (tmp_path / "away").rename(folder)
    panel.look()
    assert "there is no room" not in panel.words


def test_the_answer_is_given_or_what_the_instructor_s_own_run_came_to(tmp_path, monkeypatch, drawn):
    put_guess(tmp_path, QUESTION, 16, "one")
    panel = room_board(tmp_path, answers={"another": 1})
    panel.controls["is_answered"].field.value = True
    assert "No answer to 'Bytes a parameter on 4 ranks' is known here: reveal it" in str(drawn[-1])
    record = {"predictions": {QUESTION: {"formula": 16, "measured": 20}}}
    monkeypatch.setattr("dpcourse.learner.record_file", lambda: tmp_path / "progress.json")
    monkeypatch.setattr("dpcourse.learner.read_record", lambda _: record)
    panel.look()
    assert drawn[-1].guesses.answer == 20
    record["predictions"][QUESTION]["measured"] = None
    panel.look()
    assert drawn[-1].guesses.answer == 16
    assert room_board(tmp_path, answers={QUESTION: 18}).answers == {QUESTION: 18}


def test_a_board_draws_again_only_what_has_changed(tmp_path, drawn):
    panel = room_board(tmp_path)
    panel.look()
    assert drawn == []
    stand(tmp_path, "one", CELLS[0])
    panel.look()
    assert [len(each.places.places) for each in drawn] == [1]
    panel.look()
    assert len(drawn) == 1
    assert drawn[0].to_html().count("<img") == 1


def test_a_folder_that_has_gone_is_said_and_the_board_goes_on(tmp_path, drawn):
    folder = tmp_path / "room"
    folder.mkdir()
    panel = room_board(folder)
    folder.rmdir()
    panel.look()
    assert "there is no room at" in panel.words
    folder.mkdir()
    stand(folder, "one", CELLS[0])
    panel.look()
    assert len(drawn[-1].places.places) == 1


def test_a_board_looks_by_itself_until_another_one_is_live(tmp_path, drawn, monkeypatch):
    monkeypatch.setattr(board, "_BEAT_SECONDS", 0.01)

    async def until(is_so):
        async with asyncio.timeout(20):
            while not is_so():
                await asyncio.sleep(0.01)

    async def watch():
        first = room_board(tmp_path)
        stand(tmp_path, "one", CELLS[0])
        await until(lambda: len(drawn) == 1)
        first.controls["is_live"].field.value = False
        second = room_board(tmp_path)
        looked = []
        monkeypatch.setattr(first, "look", lambda: looked.append("the first"))
        monkeypatch.setattr(second, "look", lambda: looked.append("the second"))
        first.controls["is_live"].field.value = True
        await until(lambda: len(looked) > 3)
        assert set(looked) == {"the second"}
        second.widget.close()
        looked.clear()
        second.beat()
        assert looked == []  # it was closed

    asyncio.run(watch())


def test_a_board_of_no_room_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("DPCOURSE_ROOM", raising=False)
    with pytest.raises(ValueError, match="no room is named: give the folder, or set DPCOURSE_ROOM"):
        room_board()
    with pytest.raises(ValueError, match=r"there is no room at .*nowhere"):
        room_board(tmp_path / "nowhere")
    with pytest.raises(TypeError, match="room=3: give the path of a folder"):
        room_board(3)


def test_a_guess_is_no_place_and_a_place_no_guess(tmp_path):
    put_guess(tmp_path, QUESTION, 16, "one")
    stand(tmp_path, "one", CELLS[0])
    room = Folder(tmp_path)
    assert (len(room.papers(GUESS)), len(room.papers(PLACE)), room.skipped) == (1, 1, ())
