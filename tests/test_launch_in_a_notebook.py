"""Launching from the cells of a real Jupyter kernel: cells' functions, cells' lines, interrupts, memory."""

import psutil
import pytest

from tests.conftest import Kernel, processes_below, wait_until

pytestmark = pytest.mark.long

IMPORTS = "import dpcourse as dc, os, time, signal, torch, torch.distributed as dist"


@pytest.fixture(scope="module", autouse=True)
def _imports(kernel: Kernel):
    assert kernel.run(IMPORTS).error == ""


def ranks_below(kernel: Kernel) -> list[psutil.Process]:
    """Processes that stand below the fork server of the kernel."""
    return [
        process
        for server in psutil.Process(kernel.pid).children()
        for process in processes_below(server.pid)
        if process.status() != psutil.STATUS_ZOMBIE
    ]


def test_the_fork_server_is_started_by_the_import_alone(kernel):
    servers = [
        p for p in psutil.Process(kernel.pid).children() if "dpcourse.ranks.server" in " ".join(p.cmdline())
    ]
    assert len(servers) == 1


def test_what_cells_define_runs_on_ranks_and_their_own_code_does_not(kernel, tmp_path):
    assert kernel.run(f"open('{tmp_path}/ran', 'a').write('x'); offset = 10").error == ""
    kernel.run(
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Point:\n"
        "    x: int\n"
        "def moved(point):\n"
        "    return Point(point.x + offset + dist.get_rank())\n"
    )
    assert kernel.run("dc.launch(moved, Point(1), ranks=4)").text == str(
        [f"Point(x={11 + rank})" for rank in range(4)]
    ).replace("'", "")
    assert kernel.run("dc.launch(lambda: offset * dist.get_world_size())").text == "[20, 20]"
    assert kernel.run("isinstance(dc.launch(moved, Point(1))[0], Point)").text == "True"
    assert (tmp_path / "ran").read_text() == "x"


def test_an_error_shows_the_rank_and_the_cells_lines_and_not_the_launcher(kernel):
    kernel.run("def step():\n    if dist.get_rank() == 1:\n        raise ValueError('bad batch')\n")
    number = kernel.run("len(In) - 1").text
    error = kernel.run("dc.launch(step)").error
    assert error.startswith("RankError: rank 1 of 2 raised ValueError: bad batch")
    assert f"Cell In[{int(number) - 1}], line 3, in step" in error
    assert "raise ValueError('bad batch')" in error
    assert "session.py" not in error
    assert kernel.run("dc.launch(lambda: 1)").text == "[1, 1]"


def test_what_ranks_print_stands_in_the_cell(kernel):
    cell = kernel.run("dc.launch(lambda: print('here'))")
    assert sorted(cell.streams["stdout"].splitlines()) == ["[rank 0] here", "[rank 1] here"]


LOOP = "def work():\n    print('started')\n    while True:\n        pass\n"
COLLECTIVE = "def work():\n    print('started')\n    dist.barrier() if dist.get_rank() else time.sleep(300)\n"
DEAF = (
    "def work():\n"
    "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "    print('started')\n"
    "    time.sleep(300)\n"
)
LOADER = (
    "from torch.utils.data import DataLoader, TensorDataset\n"
    "def work():\n"
    "    data = TensorDataset(torch.ones(100, 2))\n"
    "    for _ in DataLoader(data, num_workers=2, persistent_workers=True):\n"
    "        print('started')\n"
    "        time.sleep(300)\n"
)


@pytest.mark.parametrize(
    "definition", [LOOP, COLLECTIVE, DEAF, LOADER], ids=["loop", "collective", "deaf", "loader"]
)
def test_an_interrupt_ends_the_cell_and_every_process_of_the_run(kernel, definition):
    assert kernel.run(definition).error == ""
    request = kernel.client.execute("dc.launch(work, deadline_seconds=200)")
    num_started = 0
    while num_started < 2:
        message = kernel.client.get_iopub_msg(timeout=40)
        if message["msg_type"] == "stream":
            num_started += message["content"]["text"].count("started")
    assert len(ranks_below(kernel)) >= 3
    kernel.manager.interrupt_kernel()
    said = kernel.collect(request).error
    assert said == "interrupted: its 2 ranks were ended; run the cell again when you like"
    assert wait_until(lambda: not ranks_below(kernel), 5)
    assert kernel.run("dc.launch(lambda: dist.get_rank())").text == "[0, 1]"


def test_failed_runs_keep_no_memory(kernel):
    kernel.run(
        "def fail(big):\n    held = torch.ones(25_000_000)\n    raise ValueError('with 100 MB held')\n"
    )
    attempt = "dc.launch(fail, torch.ones(12_500_000))"
    for _ in range(3):
        assert "100 MB" in kernel.run(attempt).error
    before = psutil.Process(kernel.pid).memory_info().rss
    for _ in range(10):
        kernel.run(attempt)
    kernel.run("import gc; gc.collect()")
    assert psutil.Process(kernel.pid).memory_info().rss - before < 40_000_000  # one argument kept is 50 MB
    assert ranks_below(kernel) == []


def test_a_long_run_shows_a_line_that_goes_when_it_ends(kernel):
    request = kernel.client.execute("dc.launch(lambda: time.sleep(3.2))")
    lines = []
    while not (lines and lines[-1] == ""):
        message = kernel.client.get_iopub_msg(timeout=40)
        if message["msg_type"] in ("display_data", "update_display_data"):
            lines.append(message["content"]["data"]["text/plain"])
    assert lines[0].startswith("2 ranks running: ")
    kernel.collect(request)


def test_several_runs_show_a_bar_in_the_cell_and_nothing_on_stderr(kernel):
    asked = "from dpcourse.ranks import progress\nprogress._QUIET_SECONDS = -1\n"
    request = kernel.client.execute(f"{asked}for _ in progress.with_progress([1, 2, 3]): pass")
    shown, kinds = [], []
    while "idle" not in kinds:
        message = kernel.client.get_iopub_msg(timeout=40)
        if message["parent_header"].get("msg_id") == request:
            kinds.append(message["content"].get("execution_state", message["msg_type"]))
            shown += [message["content"]["data"]] if "display_data" in kinds[-1] else []
    assert [data["text/plain"] for data in shown] == ["run 1 of 3", "run 2 of 3", "run 3 of 3", ""]
    assert '<progress value="2" max="3">' in shown[2]["text/html"]
    assert shown[3]["text/html"] == ""
    assert "stream" not in kinds
    kernel.run("progress._QUIET_SECONDS = 2.0")


def test_a_short_run_shows_no_such_line(kernel):
    request = kernel.client.execute("dc.launch(lambda: 1)")
    kinds = []
    while "idle" not in kinds:
        message = kernel.client.get_iopub_msg(timeout=40)
        if message["parent_header"].get("msg_id") == request:
            kinds.append(message["content"].get("execution_state", message["msg_type"]))
    assert "display_data" not in kinds
