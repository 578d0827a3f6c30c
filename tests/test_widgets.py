"""Widgets without a browser: they follow their controls, draw a first state, and end in a batch run."""

import pytest

from dpcourse.figures.canvas import Figure
from dpcourse.widgets import split_explorer
from dpcourse.widgets.split import cut


@pytest.fixture
def shown(monkeypatch):
    from IPython import display

    things = []
    monkeypatch.setattr(display, "display", things.append)
    return things


def test_the_first_state_is_a_picture_and_the_controls_draw_the_next(shown):
    panel = split_explorer(ranks=4, last=2)
    assert [type(thing) for thing in shown] == [Figure]
    assert "8 + 8 + 8 + 2" in shown[0].title
    panel.children[0].number.value = 3
    assert "8 + 8 + 2 samples" in shown[-1].title
    panel.children[1].number.value = 8
    assert "8 + 8 + 8 samples: a mean of means is 0 % off" in shown[-1].title


def test_slider_and_number_move_together_and_stay_in_range(shown):
    row = split_explorer().children[0]
    number, slider = row.children
    slider.value = 7
    assert number.value == 7
    number.value = 99
    assert slider.value == 16


def test_the_number_has_a_name_and_the_slider_is_passed_over(shown):
    number, slider = split_explorer().children[1].children
    assert number.description == "Samples on the last rank"
    assert slider.tabbable is False


def test_the_reference_configuration_shows_words(monkeypatch):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    assert isinstance(split_explorer(), Figure)


def test_even_shares_need_no_weights():
    assert "1.00, 1.00, 1.00" in cut(3, 8).alt
    assert "0 % off" in cut(3, 8).title
