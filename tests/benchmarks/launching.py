"""How fast a cell gets its ranks, beside what else starts ranks: `python -m tests.benchmarks.launching`."""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

import dpcourse as dc
from dpcourse.ranks import service
from dpcourse.tables import Table
from tests.conftest import Kernel, processes_below

BODY = """
import torch, torch.distributed as dist
def work():
    tensor = torch.ones(1000) * dist.get_rank()
    dist.all_reduce(tensor)
    return tensor[0].item()
"""
TORCHRUN = BODY + "dist.init_process_group('gloo'); assert work() == 6; dist.destroy_process_group()\n"
SPAWN = (
    BODY
    + """
import os, sys, torch.multiprocessing as mp
def rank(number, path, queue):
    dist.init_process_group('gloo', init_method='file://' + path, rank=number, world_size=4)
    queue.put(work())
if __name__ == '__main__':
    context = mp.get_context('spawn')
    queue = context.SimpleQueue()
    mp.spawn(rank, (sys.argv[1], queue), nprocs=4)
    assert [queue.get() for _ in range(4)] == [6.0] * 4
"""
)
FIRST_RUN = """
import time; started = time.perf_counter()
import dpcourse as dc
def work():
    import torch, torch.distributed as dist
    tensor = torch.ones(1000) * dist.get_rank()
    dist.all_reduce(tensor)
    return tensor[0].item()
assert dc.launch(work, ranks=4) == [6.0] * 4
time.perf_counter() - started
"""


def work() -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.ones(1000) * dist.get_rank()
    dist.all_reduce(tensor)
    return tensor[0].item()


def seconds(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=300)


def median(function: Callable[[], object], repeats: int) -> float:
    return statistics.median(seconds(function) for _ in range(repeats))


def imported(module: str) -> float:
    """Seconds that an import takes in a fresh process, measured inside it."""
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    return float(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


def first_run_in_a_kernel() -> float:
    """Seconds from `import dpcourse` to the results, in one cell of a kernel that has just started."""
    kernel = Kernel()
    try:
        return float(kernel.run(FIRST_RUN).text)
    finally:
        kernel.close()


def compare_speed(repeats: int) -> Table:
    with tempfile.TemporaryDirectory() as folder:
        torchrun, spawn = Path(folder, "torchrun.py"), Path(folder, "spawn.py")
        torchrun.write_text(TORCHRUN)
        spawn.write_text(SPAWN)
        torch_import = statistics.median(imported("torch") for _ in range(repeats))
        course_import = statistics.median(imported("dpcourse") for _ in range(repeats))
        first = statistics.median(first_run_in_a_kernel() for _ in range(repeats))
        dc.launch(work, ranks=4, everything=True)
        warm = median(lambda: dc.launch(work, ranks=4), 5 * repeats)
        by_torchrun = median(
            lambda: python(
                "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", str(torchrun)
            ),
            repeats,
        )
        by_spawn = median(lambda: python(str(spawn), f"{folder}/{time.monotonic_ns()}"), repeats)
    rows = [
        ["import torch (yardstick)", torch_import, None, ""],
        ["import dpcourse", course_import, course_import / torch_import, "under 0.3 s"],
        ["first run in a fresh kernel", first, first / torch_import, "within 2 x import torch"],
        ["warm run, 4 ranks", warm, None, "at most 0.5 s"],
        ["torchrun, 4 ranks", by_torchrun, by_torchrun / warm, "at least 20 x a warm run"],
        ["spawn, 4 ranks", by_spawn, by_spawn / warm, "at least 20 x a warm run"],
    ]
    return Table(
        ["what", "seconds (median)", "ratio", "to reach"], rows, "All-reduce on 4 ranks, results back"
    )


def held() -> list[float]:
    """What this process and its fork server hold: processes, threads, files, sockets, memory."""
    me, server = psutil.Process(), psutil.Process(service.current().pid)
    return [
        len(processes_below(me.pid)),
        me.num_threads() + server.num_threads(),
        me.num_fds() + server.num_fds(),
        len(me.net_connections("all")) + len(server.net_connections("all")),
        len([name for name in os.listdir(tempfile.gettempdir()) if name.startswith("dpcourse-")]),
        round((me.memory_info().rss + server.memory_info().rss) / 1e6, 1),
    ]


def many_launches(num_launches: int) -> Table:
    for _ in range(10):
        dc.launch(work, ranks=4)
    before = held()
    for _ in range(num_launches):
        assert dc.launch(work, ranks=4) == [6.0] * 4
    time.sleep(0.5)
    names = ["processes", "threads", "open files", "sockets", "files in the temporary folder", "memory in MB"]
    rows = [[name, old, new] for name, old, new in zip(names, before, held(), strict=True)]
    return Table(["held", "before", "after"], rows, f"{num_launches} launches of 4 ranks in a row")


def twenty_notebooks(num_notebooks: int) -> Table:
    code = "import dpcourse as dc\n" + FIRST_RUN.split("import dpcourse as dc\n")[1].rsplit("\n", 2)[0]
    started = time.perf_counter()
    notebooks = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(num_notebooks)]
    right = sum(notebook.wait(900) == 0 for notebook in notebooks)
    rows = [[num_notebooks, right, time.perf_counter() - started]]
    return Table(["notebooks at once", "right results", "seconds in all"], rows)


def interrupts(repeats: int) -> Table:
    """How long an interrupted cell takes to come back, and what it leaves."""
    kernel = Kernel()
    kernel.run("import dpcourse as dc, time, signal\ndc.launch(lambda: 1)")
    kernel.run("def loop():\n    print('on')\n    while True: pass\n")
    kernel.run("def deaf():\n    signal.signal(2, signal.SIG_IGN); print('on'); time.sleep(300)\n")
    rows = []
    for name in ("loop", "deaf"):
        took = []
        for _ in range(repeats):
            request = kernel.client.execute(f"dc.launch({name}, ranks=4)")
            while kernel.client.get_iopub_msg(timeout=60)["msg_type"] != "stream":
                pass
            kernel.manager.interrupt_kernel()
            took.append(seconds(lambda request=request: kernel.collect(request)))
        rows.append([f"ranks in `{name}`", max(took), "under 3 s"])
    kernel.close()
    return Table(["interrupted", "seconds at most", "to reach"], rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--notebooks", type=int, default=20)
    options = parser.parse_args()
    print(compare_speed(options.repeats), end="\n\n", flush=True)
    print(interrupts(options.repeats), end="\n\n", flush=True)
    print(many_launches(options.launches), end="\n\n", flush=True)
    print(twenty_notebooks(options.notebooks))
