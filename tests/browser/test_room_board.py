"""The room's board in JupyterLab: drawn again by itself when somebody guesses or goes on, in both themes."""

import pytest

from dpcourse.room import put_guess
from tests.browser import findings
from tests.browser.conftest import THEMES
from tests.browser.lab import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]
SCREENS = ROOT / "build" / "screens"
QUESTION = "How many?"


def test_a_board_follows_its_room_without_a_click(notebook, a_lab):
    one, folder = notebook("notebooks/room.ipynb"), a_lab.my / "room"
    one.start_cell(0)
    one.settle()
    one.start_cell(1)
    one.wait_for_text(1, "1 person shows where they are.")  # the cell's id came through JupyterLab
    for number, guess in enumerate((3, 3, 4, 7)):
        put_guess(folder, QUESTION, guess, str(number))
    one.wait_for_text(1, "4 guesses in the room, median 3.50.", seconds=20)
    assert "answer" not in one.code_cell(1).locator("img").nth(1).get_attribute("alt")
    one.page.get_by_label("Show the answer").check()
    one.page.locator("img[alt*='the answer 4.00']").wait_for()
    (folder / "odd.json").write_text("{")
    one.wait_for_text(1, "Skipped: odd.json", seconds=20)
    for theme in THEMES:
        one.theme(theme)
        one.shoot_window(SCREENS, f"room_{theme}")
    assert findings.for_screen_readers(one) == []
    one.start_cell(2)
    one.wait_for_text(1, "Nobody shows where they are", seconds=20)
    assert one.code_cell(1).locator("img").count() == 1
    assert one.complaints == []
    # JupyterLab asks for the widgets of a kernel that has not loaded ipywidgets yet.
    assert [error for error in one.kernel_errors() if "No such comm" not in error] == []
