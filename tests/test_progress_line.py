"""The line of a long run in a terminal: alone it stands there, beside a progress bar it gives way."""

import io
from contextlib import redirect_stderr

import pytest
from tqdm import tqdm

from dpcourse.ranks import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def said(num_ranks: int, terminal: io.StringIO) -> str:
    """What a run that has been quiet long enough says there."""
    with redirect_stderr(terminal):
        line = progress.Progress(num_ranks)
        line.tick()
        shown = terminal.getvalue()
        line.close()
    return shown


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(progress, "_QUIET_SECONDS", -1.0)
    monkeypatch.delenv("DPCOURSE_REFERENCE", raising=False)


def test_a_run_says_that_it_runs_and_takes_the_line_away():
    terminal = Terminal()
    assert said(2, terminal) == "\r\033[K2 ranks running: 0 s"
    assert terminal.getvalue().endswith("\r\033[K")


def test_beside_a_bar_it_says_nothing_and_after_it_again():
    with tqdm(total=3, file=io.StringIO()):
        assert said(2, Terminal()) == ""
    assert "2 ranks running" in said(2, Terminal())


def test_a_bar_that_is_not_shown_is_none():
    with tqdm(total=3, disable=True):
        assert "1 rank running" in said(1, Terminal())


def test_nothing_is_said_into_a_file_or_in_the_reference_configuration(monkeypatch):
    assert said(2, io.StringIO()) == ""
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    assert said(2, Terminal()) == ""
