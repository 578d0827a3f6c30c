"""Predictions: guessed, locked, revealed; a room's guesses together, whatever lies in its folder."""

import json
import os
from pathlib import Path

import pytest

import dpcourse as dc
from dpcourse.figures.room import span_of
from dpcourse.prediction import Prediction
from dpcourse.room import Guess, RoomGuesses, guesses_of, put_guess
from dpcourse.widgets.prediction import PredictionBox

QUESTION = "Bytes held for each parameter"


@pytest.fixture(autouse=True)
def _no_record(monkeypatch, tmp_path):
    monkeypatch.delenv("DPCOURSE_ROOM", raising=False)
    monkeypatch.delenv("DPCOURSE_NAME", raising=False)
    monkeypatch.setenv("DPCOURSE_PROGRESS", str(tmp_path / "mine" / "progress.json"))


# -- guess, lock, reveal ---------------------------------------------------------


def test_a_question_alone_is_a_box_whose_guess_is_locked_once_and_then_revealed():
    box = dc.predict(QUESTION, unit="bytes")
    assert isinstance(box, PredictionBox)
    assert (box.field.description, box.button.description) == ("Your guess (bytes)", "Lock")
    box.field.value = "16"
    box.button.click()
    assert box.guess == 16
    assert box.field.disabled
    assert "Your guess is locked: 16.00 bytes." in box._news.value
    box.field.value = "20"
    box.button.click()
    assert box.guess == 16
    shown = box.reveal(formula=16, measured=20)
    assert shown == Prediction(QUESTION, 16.0, 16, 20, "bytes", 2, 16.0)
    assert "your guess 16.00 bytes; formula 16.00 bytes; measured 20.00 bytes" in shown.plot().alt
    assert "0.80 times" in shown.verdict


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("", "Nothing is written yet: write a number such as 1.5"),
        ("<b>", "&#x27;&lt;b&gt;&#x27; is no number: write a number such as 1.5"),
        ("inf", "guess=inf: write a number that can be drawn"),
        ("nan", "guess=nan: write a number that can be drawn"),
    ],
)
def test_what_is_no_number_is_not_locked_and_the_box_says_so(typed, said):
    box = dc.predict(QUESTION)
    box.field.value = typed
    box.button.click()
    assert box.guess is None
    assert not box.field.disabled
    assert said in box._news.value
    assert 'role="alert"' in box._news.value
    box.field.value = "1,000"
    box.button.click()
    assert box.guess == 1000


def test_a_reveal_without_a_lock_shows_what_there_is():
    assert dc.predict(QUESTION).reveal(measured=20).verdict == "no guess"


def test_the_box_is_shown_with_words_for_a_front_end_without_widgets(monkeypatch):
    from IPython import display

    bundles = []
    monkeypatch.setattr(display, "display", lambda bundle, raw: bundles.append(bundle))
    dc.predict("a <b> question")._ipython_display_()
    assert bundles[0]["text/html"] == "<strong>a &lt;b&gt; question</strong>"
    assert bundles[1]["text/plain"] == "[where a notebook runs: Your guess; Lock]"


def test_a_batch_of_reference_outputs_has_no_box_and_reveals_all_the_same(monkeypatch):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    held = dc.predict(QUESTION)
    assert str(held) == f"{QUESTION}: no guess yet"
    shown = held.reveal(formula=16, measured=20)
    assert shown.measured == 20
    assert shown.verdict == "no guess"


def test_a_reference_output_has_nothing_that_a_clock_had_a_part_in(monkeypatch):
    box = dc.predict(QUESTION)
    assert box.reveal(formula=2, measured=1.7, is_timed=True).measured == 1.7
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    assert dc.predict(QUESTION).reveal(formula=2, measured=1.7, is_timed=True).measured is None


def test_a_guess_that_is_changed_after_the_lock_is_shown_beside_the_first():
    assert "locked first" not in dc.predict(QUESTION, 16, measured=20).verdict
    changed = dc.predict(QUESTION, 20, measured=20)
    assert changed.verdict == "your guess is right; the guess that you locked first was 16.00"
    assert dc.predict("another", 20, measured=20).verdict == "your guess is right"


def test_values_that_are_no_numbers_are_refused():
    with pytest.raises(TypeError, match=r"measured='20': write a number, such as measured=1\.5"):
        dc.predict(QUESTION).reveal(measured="20")
    with pytest.raises(ValueError, match="guess=inf: write a number that can be drawn"):
        dc.predict(QUESTION, float("inf"), measured=1)
    with pytest.raises(ValueError, match=r"guess=1000.*: write a number that can be drawn"):
        dc.predict(QUESTION, 10**400, measured=1)  # more than a float holds
    with pytest.raises(TypeError, match="room=3: give the path of a folder"):
        dc.predict(QUESTION, 1, room=3)


def test_a_wild_guess_leaves_the_answers_to_be_seen():
    ax = dc.predict(QUESTION, 1e9, formula=16, measured=20).plot().draw().axes[0]
    widths = [bar.get_width() for bar in ax.patches]
    assert widths == [80, 16, 20]
    assert "1,000,000,000.00 (cut)" in ax.texts[0].get_text()
    honest = dc.predict(QUESTION, 30, formula=16, measured=20).plot().draw().axes[0]
    assert [bar.get_width() for bar in honest.patches] == [30, 16, 20]


def test_where_all_are_zero_the_axis_is_one_like_any_other():
    assert dc.predict(QUESTION, formula=0, measured=0).plot().draw().axes[0].get_xlim() == (0, 1)


# -- a room ----------------------------------------------------------------------


def test_guesses_of_a_room_come_together_with_names_only_where_chosen(tmp_path, monkeypatch):
    folder = tmp_path / "room"
    folder.mkdir()
    assert put_guess(folder, QUESTION, 18, "one") == ""
    monkeypatch.setenv("DPCOURSE_NAME", "Ada")
    assert put_guess(folder, QUESTION, 19, "two") == ""
    assert put_guess(folder, "another question", 5, "two") == ""
    monkeypatch.delenv("DPCOURSE_NAME")
    found = dc.predict(QUESTION, 16, measured=20, room=folder)
    assert sorted(guess.value for guess in found.room.guesses) == [16, 18, 19]
    assert found.room.words() == "3 guesses in the room, median 18.00. Nearest: Ada."
    assert found.room.words() in str(found)
    assert "median 18.00, the answer 20.00" in found.to_html()
    assert "another" not in str(found)


def test_a_learner_s_first_guess_stays_in_the_room(tmp_path, monkeypatch):
    monkeypatch.setenv("DPCOURSE_ROOM", str(tmp_path))
    dc.predict(QUESTION, 16, measured=20)
    found = dc.predict(QUESTION, 20, measured=20)
    assert [guess.value for guess in found.room.guesses] == [16]


def test_who_guessed_at_home_brings_that_guess_and_no_better_one(tmp_path, monkeypatch):
    monkeypatch.setenv("DPCOURSE_PROGRESS", str(tmp_path / "progress.json"))
    dc.predict(QUESTION, 16, measured=20)
    (tmp_path / "room").mkdir()
    monkeypatch.setenv("DPCOURSE_ROOM", str(tmp_path / "room"))
    found = dc.predict(QUESTION, 20, measured=20)
    assert [guess.value for guess in found.room.guesses] == [16]


def test_a_room_that_one_may_write_to_and_not_read_takes_the_guess_and_shows_ones_own(tmp_path, monkeypatch):
    def closed(path):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("dpcourse.room_files.os.scandir", closed)
        found = dc.predict(QUESTION, 16, measured=20, room=tmp_path)
    assert found.room is None
    assert "Permission denied" in str(found)
    assert [json.loads(file.read_text())["guess"] for file in tmp_path.glob("*.json")] == [16]


def test_below_a_closed_folder_there_is_no_room_and_no_error(monkeypatch):
    def closed(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", closed)
    assert "is not there" in put_guess(Path("/closed/room"), QUESTION, 16, "one")


@pytest.mark.parametrize("value", [1e-310, 5e-324, -1e-300])
def test_a_guess_nearer_to_0_than_an_axis_can_show_is_none(value, tmp_path):
    with pytest.raises(ValueError, match="a number that can be drawn"):
        dc.predict(QUESTION, value, formula=1)
    put_guess(tmp_path, QUESTION, value, "one")
    put_guess(tmp_path, QUESTION, 20, "two")
    assert [guess.value for guess in guesses_of(QUESTION, tmp_path).guesses] == [20]


@pytest.mark.parametrize("answer", [float("inf"), float("nan")])
def test_an_answer_that_is_no_number_to_draw_is_refused(answer, tmp_path):
    with pytest.raises(ValueError, match="give a number that can be drawn beside the guesses"):
        guesses_of(QUESTION, tmp_path, answer=answer)


def test_a_guess_is_in_the_room_when_it_is_locked_and_seen_when_it_is_revealed(tmp_path):
    box = dc.predict(QUESTION, room=tmp_path)
    box.field.value = "3"
    assert not guesses_of(QUESTION, tmp_path).guesses
    box.button.click()
    assert [guess.value for guess in guesses_of(QUESTION, tmp_path).guesses] == [3]
    assert box.reveal(measured=20).room.answer == 20


@pytest.mark.parametrize(
    "name", ["../../escape", "/etc/passwd", "a\0b", "x" * 999, "<script>", "\u202eevil", "$\\frac$"]
)
def test_a_name_is_never_a_path_nor_a_formula_nor_markup(name, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ, "DPCOURSE_NAME": name})
    folder = tmp_path / "room"
    folder.mkdir()
    question = f"question/../{name if name.isprintable() else 'plain'}"
    assert put_guess(folder, question, 1, f"../{name}") == ""
    [file] = folder.iterdir()
    assert file.name.replace("-", "").removesuffix(".json").isalnum()
    assert [each.name for each in tmp_path.iterdir()] == ["room"]
    room = guesses_of(question, folder, answer=1)
    [guess] = room.guesses
    assert len(guess.name) <= 40
    assert guess.name.isprintable()
    assert "$" not in guess.name
    assert "<script>" not in room.to_html()


def hostile(folder):
    """Files that are no guess, or none that could be drawn: how each is made, and what is said of it."""
    good = {"kind": "dpcourse guess", "question": QUESTION, "guess": 1.5, "name": ""}
    texts = {
        "empty": "", "broken": "{", "list": "[]", "deep": "[" * 4000, "other": '{"kind": "else"}',
        "long": json.dumps({**good, "name": "x" * 9000}), "nan": json.dumps({**good, "guess": float("nan")}),
        "infinite": json.dumps({**good, "guess": float("inf")}), "text": json.dumps({**good, "guess": "1.5"}),
        "huge": json.dumps({**good, "guess": 0}).replace("0,", "9" * 3000 + ","),
        "true": json.dumps({**good, "guess": True}), "none": json.dumps({**good, "question": 3}),
    }  # fmt: skip
    for name, text in texts.items():
        (folder / f"{name}.json").write_text(text)
    (folder / "bytes.json").write_bytes(b"\xff\xfe\x00")
    (folder / "folder.json").mkdir()
    os.mkfifo(folder / "pipe.json")
    (folder / "link.json").symlink_to(folder.parent / "secret.json")
    (folder.parent / "secret.json").write_text(json.dumps(good))
    (folder / "odd name \n.json").write_text("{")
    (folder / ".part").write_text("{")
    (folder / "name.json").write_text(json.dumps({**good, "name": ["a", "list"]}))
    return len(texts) + 5


@pytest.mark.timeout(20)
def test_hostile_files_are_skipped_and_named_and_good_ones_counted(tmp_path):
    folder = tmp_path / "room"
    folder.mkdir()
    num_bad = hostile(folder)
    put_guess(folder, QUESTION, 2.5, "one")
    room = guesses_of(QUESTION, folder, answer=2)
    assert sorted(guess.value for guess in room.guesses) == [1.5, 2.5]
    assert len(room.skipped) == num_bad
    assert all(".json (" in each and each.isprintable() for each in room.skipped)
    assert "and 12 more" in room.words()
    assert room.plot().png().startswith(b"\x89PNG")


def test_a_room_that_is_not_there_is_said_and_the_guess_is_kept(tmp_path):
    found = dc.predict(QUESTION, 16, measured=20, room=tmp_path / "nowhere")
    assert found.notes == (
        f"the room's folder {tmp_path / 'nowhere'} is not there: ask who gave you its path",
    )
    assert found.notes[0] in str(found)
    assert found.room is None
    with pytest.raises(ValueError, match="there is no room at"):
        guesses_of(QUESTION, tmp_path / "nowhere")


def test_a_file_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    assert put_guess(tmp_path, QUESTION, 1, "one").startswith(
        "your guess did not reach the room (No space left"
    )


def test_nothing_goes_to_a_room_in_the_reference_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    dc.predict(QUESTION, 16, measured=20, room=tmp_path)
    assert not list(tmp_path.iterdir())


def room_of(values, answer=20.0):
    return RoomGuesses(QUESTION, tuple(map(Guess, values)), answer)


def test_hundreds_of_guesses_are_counted_in_bars_and_few_are_dots():
    many = room_of([16.0] * 200 + [20.0] * 100 + [1e99, -1e99, 4e6])
    ax = many.plot().draw().axes[0]
    assert sum(bar.get_height() for bar in ax.patches) == 300
    assert {text.get_text() for text in ax.texts} == {"\u2190 1 lower", "2 higher \u2192"}
    assert "3 far out are counted at the ends" in many.plot().alt
    few = room_of([16.0, 16.0, 20.0]).plot().draw().axes[0]
    dots = [
        (x, len(line.get_xdata()))
        for line in few.lines
        if line.get_marker() == "o"
        for x in {*line.get_xdata()}
    ]
    assert dots == [(16.0, 2), (20.0, 1)]


@pytest.mark.parametrize("values", [[3.0], [0.0], [0.0, 0.0], [-5.0, 5.0], [1e-9, 1e9], [1.0, 1e99], [-1e99]])
@pytest.mark.parametrize("answer", [None, 0.0, 3.0, 1e9])
def test_every_room_has_an_axis_with_its_middle_and_answer_on_it(values, answer):
    low, high, _ = span_of(sorted(values), answer)
    assert low < high
    assert answer is None or low < answer < high
    assert room_of(values, answer).plot().png().startswith(b"\x89PNG")
