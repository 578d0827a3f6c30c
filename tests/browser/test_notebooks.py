"""Each notebook that was asked for: run to its end, every control used, seen in both themes."""

from pathlib import Path

import pytest

from tests.browser import exercise, findings
from tests.browser.conftest import chosen, themes
from tests.browser.lab import ROOT, place

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
SCREENS = ROOT / "build" / "screens"


@pytest.mark.parametrize("path", chosen(), ids=lambda path: path.stem)
def test_it_runs_and_all_its_controls_can_be_used_by_hand(notebook, path: Path):
    one = notebook(place(path))
    for old in SCREENS.glob(f"{path.stem}-*.png"):
        old.unlink()
    one.theme(themes()[0])
    one.run_all()
    assert findings.in_cells(one) == []
    errors = one.kernel_errors()
    for theme in themes():
        one.theme(theme)
        one.shoot(SCREENS, theme)
        assert findings.for_screen_readers(one) == []
    if sum(exercise.every_control(one).values()):
        one.shoot(SCREENS, f"{themes()[-1]}-used")
        assert findings.for_screen_readers(one) == []
    assert findings.in_cells(one) == []
    assert one.kernel_errors() == errors
    assert one.complaints == []
