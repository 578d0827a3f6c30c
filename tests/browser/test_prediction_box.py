"""A guess in the browser: locked by the keyboard, not to be changed, then one figure with the answer."""

import pytest

from tests.browser import findings
from tests.browser.lab import ROOT
from tests.browser.page import Notebook

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]
SCREENS = ROOT / "build" / "screens"


@pytest.fixture
def asked(notebook) -> Notebook:
    one = notebook("notebooks/prediction.ipynb")
    one.start_cell(0)
    one.wait_for_text(0, "Held by DDP per parameter")
    one.page.get_by_label("Your guess (bytes)").wait_for()
    return one


def lock(one: Notebook, typed: str) -> None:
    """Type a guess, go on to the button and press it, all by the keyboard."""
    one.page.get_by_label("Your guess (bytes)").focus()
    for key in ("Control+A", *typed, "Tab", "Space"):
        one.page.keyboard.press(key)


def test_a_guess_is_locked_by_the_keyboard_and_revealed_in_one_figure(asked):
    field, button = (
        asked.page.get_by_label("Your guess (bytes)"),
        asked.page.get_by_role("button", name="Lock"),
    )
    lock(asked, "many")
    asked.wait_for_text(0, "'many' is no number: write a number such as 1.5, then lock it")
    assert field.is_enabled()
    lock(asked, "16.5")
    asked.wait_for_text(0, "Your guess is locked: 16.5 bytes.")
    asked.shoot_window(SCREENS, "locked")
    assert field.is_disabled()
    assert button.is_disabled()
    field.focus()
    asked.page.keyboard.press("9")  # a key that JupyterLab itself makes nothing of
    button.click(force=True)
    asked.settle()
    assert field.input_value() == "16.5"

    asked.start_cell(1)
    asked.wait_for_text(1, "your guess is 0.80 times what was measured")
    pictures = asked.code_cell(1).locator("img")
    assert pictures.count() == 1
    words = "Three bars. your guess 16.5 bytes; formula 16.0 bytes; measured 20.5 bytes"
    assert pictures.get_attribute("alt") == words
    asked.shoot_window(SCREENS, "revealed")
    asked.start_cell(2)
    asked.wait_for_text(2, "16.5 [('Held by DDP per parameter',)]")
    assert findings.for_screen_readers(asked) == []
    assert asked.complaints == []


def test_what_is_revealed_without_a_guess_takes_none_afterwards(asked):
    asked.start_cell(1)
    asked.wait_for_text(1, "no guess")
    asked.settle()
    assert asked.page.get_by_label("Your guess (bytes)").is_disabled()
    assert asked.page.get_by_role("button", name="Lock").is_disabled()
    asked.start_cell(2)
    asked.wait_for_text(2, "None ")
