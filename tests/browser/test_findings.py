"""What the browser tests must catch is planted here, and caught."""

import subprocess
import sys

import pytest

from tests.browser import chromium, exercise, findings
from tests.browser.__main__ import main as browser_test
from tests.browser.lab import Lab, environment

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def planted(a_lab, a_browser):
    from tests.browser.page import Notebook

    one = Notebook(a_browser.new_page(), "notebooks/planted.ipynb")
    one.open(a_lab)
    one.run_all()
    yield one
    one.close()


def test_a_cell_with_an_error_is_caught_and_so_is_one_that_it_kept_from_running(planted):
    assert findings.in_cells(planted) == [
        "cell 1 on stderr: a warning\n",
        "cell 6: ZeroDivisionError: division by zero",
        "cell 7 did not run",
    ]


def test_a_control_without_a_name_is_caught_and_a_slider_that_stands_alone(planted):
    found = findings.for_screen_readers(planted)
    assert [text.split(" (")[0] for text in sorted(found)] == ["aria-input-field-name", "label"]


def test_what_the_console_shows_as_an_error_is_caught(planted):
    assert planted.complaints == ["planted on the console"]


def test_a_control_that_does_not_follow_the_hand_is_caught(planted):
    with pytest.raises(AssertionError, match="a number stays at 3 whatever key is pressed"):
        exercise.every_control(planted)


def test_an_error_of_a_callback_is_caught(planted):
    before = planted.kernel_errors()
    exercise.press(planted, planted.page.get_by_role("button", name="Fail"))
    planted.settle()
    assert planted.kernel_errors() == [*before, "ValueError: a callback"]


def test_a_process_that_stays_is_caught(tmp_path):
    marked = environment(tmp_path)
    command = [sys.executable, "-c", "import time; time.sleep(100)"]
    process = subprocess.Popen(command, env=marked, start_new_session=True)
    try:
        assert len(Lab(tmp_path, process, "").left(seconds=0.2)) == 1
    finally:
        process.kill()
        process.wait()
    assert Lab(tmp_path, process, "").left() == []


def test_a_browser_that_is_missing_is_one_line_with_what_to_install(monkeypatch, capsys):
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    with pytest.raises(chromium.Missing, match="CHROMIUM=no-such-browser is no program: install it"):
        chromium.check()
    monkeypatch.delenv("CHROMIUM")
    monkeypatch.setenv("PATH", "")
    assert browser_test([]) == 2
    assert capsys.readouterr().err.startswith("The browser tests need Chromium, and no program is called")


def test_a_notebook_that_is_not_there_is_one_line(capsys):
    with pytest.raises(SystemExit, match="2"):
        browser_test(["notebooks/99.ipynb"])
    assert "notebooks/99.ipynb: there is no such notebook" in capsys.readouterr().err
