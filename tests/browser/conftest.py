"""One server and one browser for all browser tests; which notebooks and themes, as the command line says."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.browser import chromium
from tests.browser.lab import ROOT, Lab, environment, lab
from tests.browser.page import Notebook

OWN = Path(__file__).parent / "notebooks"
CHOSEN = "DPCOURSE_BROWSER_NOTEBOOKS"  # set by `python -m tests.browser`
# The chapter that is looked at without being asked for; each costs about a minute of every check.
CHAPTERS = ("00_start_here",)
THEMES = ("light", "dark")


def chosen() -> list[Path]:
    """The notebooks that were asked for, else the chapter above and the one with every widget."""
    named = [Path(name) for name in os.environ.get(CHOSEN, "").split(os.pathsep) if name]
    return named or [OWN / "widgets.ipynb", *(ROOT / "notebooks" / f"{name}.ipynb" for name in CHAPTERS)]


def themes() -> list[str]:
    """One theme that was asked for, else both."""
    asked = os.environ.get("DPCOURSE_BROWSER_THEME", "")
    return [asked] if asked else list(THEMES)


@pytest.fixture(scope="session")
def a_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    notebooks = [*OWN.glob("*.ipynb"), *chosen()]
    with lab(tmp_path_factory.mktemp("learner"), notebooks) as running:
        yield running
        running.stop()
        assert running.left() == []  # no kernel, no rank, no server, no browser


@pytest.fixture(scope="session")
def a_browser(a_lab: Lab) -> Iterator:
    with chromium.browser(environment(a_lab.home)) as running:
        yield running


@pytest.fixture
def notebook(a_lab: Lab, a_browser) -> Iterator[Callable[[str], Notebook]]:
    """Opens a notebook of the lab by its path there; its kernel ends with the test."""
    opened: list[Notebook] = []

    def open_notebook(name: str) -> Notebook:
        page = a_browser.new_page(viewport={"width": chromium.WIDTH, "height": chromium.HEIGHT})
        opened.append(Notebook(page, name))
        opened[-1].open(a_lab)
        return opened[-1]

    yield open_notebook
    for one in opened:
        one.close()
