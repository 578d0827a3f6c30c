"""A run that is interrupted from the toolbar: its ranks end, the cell says so in words, and runs again."""

import psutil
import pytest

from tests.browser.lab import ROOT
from tests.conftest import processes_below, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]


def ranks_of(kernel: int) -> list[psutil.Process]:
    return [rank for server in psutil.Process(kernel).children() for rank in processes_below(server.pid)]


def test_the_toolbar_ends_a_run_and_the_cell_can_run_again(notebook):
    one = notebook("notebooks/interrupt.ipynb")
    one.start_cell(0)
    one.wait_for_text(0, "kernel ")
    kernel = int(one.code_cell(0).locator(".jp-Cell-outputArea").inner_text().split("kernel ")[1])
    one.start_cell(1)
    one.wait_for_text(1, "started")
    assert len(ranks_of(kernel)) >= 2
    one.interrupt()
    one.wait_for_text(1, "interrupted: its 2 ranks were ended; run the cell again", seconds=30)
    one.shoot_window(ROOT / "build" / "screens", "interrupted")
    assert "Traceback" not in one.code_cell(1).inner_text()
    assert wait_until(lambda: not ranks_of(kernel), 10)
    one.start_cell(2)
    one.wait_for_text(2, "[0, 1]")
    assert one.complaints == []
