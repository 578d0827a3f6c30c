"""How fast a cell gets its ranks, beside what else starts ranks, and how fast it gets rid of them.

Run it with `python -m tests.benchmarks.launching`; it fails where a target is missed, after all tables.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import dpcourse as dc
from dpcourse.ranks import service
from dpcourse.tables import Table
from tests.conftest import Kernel, processes_below, wait_until
from tests.test_launch_in_a_notebook import COLLECTIVE, DEAF, IMPORTS, LOADER, LOOP

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
GROWTH_MB = 10  # the allocator keeps a little; one launch that is kept would be seen 200 times
TARGET = ["to reach", "reached"]  # the last columns of each table; "reached" is None where nothing is asked


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
    first_ratio = first / torch_import
    slower = {"torchrun, 4 ranks": by_torchrun, "spawn, 4 ranks": by_spawn}
    rows = [
        ["import torch (yardstick)", torch_import, None, "", None],
        ["import dpcourse", course_import, course_import / torch_import, "under 0.3 s", course_import < 0.3],
        ["first run in a fresh kernel", first, first_ratio, "within 2 x import torch", first_ratio <= 2],
        ["warm run, 4 ranks", warm, None, "at most 0.5 s", warm <= 0.5],
    ]
    for name, slow in slower.items():
        rows.append([name, slow, slow / warm, "at least 20 x a warm run", slow >= 20 * warm])
    return Table(["what", "seconds (median)", "ratio", *TARGET], rows, "All-reduce on 4 ranks, results back")


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
    wait_until(lambda: held()[:-1] == before[:-1], 5)  # what ended the ranks may be just ending
    names = ["processes", "threads", "open files", "sockets", "files in the temporary folder"]
    *counts, memory = zip(before, held(), strict=True)
    rows = [[name, *pair, "no more", pair[1] <= pair[0]] for name, pair in zip(names, counts, strict=True)]
    rows.append(["memory in MB", *memory, f"at most {GROWTH_MB} more", memory[1] - memory[0] <= GROWTH_MB])
    return Table(["held", "before", "after", *TARGET], rows, f"{num_launches} launches of 4 ranks in a row")


def twenty_notebooks(num_notebooks: int) -> Table:
    code = "import dpcourse as dc\n" + FIRST_RUN.split("import dpcourse as dc\n")[1].rsplit("\n", 2)[0]
    started = time.perf_counter()
    notebooks = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(num_notebooks)]
    right = sum(notebook.wait(900) == 0 for notebook in notebooks)
    took = time.perf_counter() - started
    rows = [[num_notebooks, right, took, "all right", right == num_notebooks]]
    return Table(["notebooks at once", "right results", "seconds in all", *TARGET], rows)


def interrupts(repeats: int) -> Table:
    """How long an interrupted cell takes to come back, whatever its ranks are in."""
    kernel = Kernel()
    kernel.run(IMPORTS)
    kernel.run("dc.launch(lambda: 1)")
    rows = []
    for name, cell in {"loop": LOOP, "collective": COLLECTIVE, "deaf": DEAF, "loader": LOADER}.items():
        kernel.run(cell)
        most = max(interrupted(kernel) for _ in range(repeats))
        rows.append([name, most, "under 3 s", most < 3])
    kernel.close()
    return Table(["interrupted", "seconds at most", *TARGET], rows, "4 ranks, until the cell is back")


def interrupted(kernel: Kernel) -> float:
    """Seconds from the interrupt to the end of the cell; the interrupt comes when all ranks are at work."""
    request = kernel.client.execute("dc.launch(work, ranks=4, deadline_seconds=200)")
    num_started = 0
    while num_started < 4:
        message = kernel.client.get_iopub_msg(timeout=60)
        if message["msg_type"] == "stream":
            num_started += message["content"]["text"].count("started")
    kernel.manager.interrupt_kernel()
    return seconds(lambda: kernel.collect(request))


def fail(how: str) -> None:
    """Rank 2 fails, the others wait for it."""
    import torch.distributed as dist

    if dist.get_rank() == 2:
        if how == "raise":
            raise ValueError("bad batch")
        if how == "exit":
            sys.exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def see_it_fail(how: str) -> None:
    with pytest.raises(dc.RankError, match="rank 2 of 4"):
        dc.launch(fail, how, ranks=4)


def failures(repeats: int) -> Table:
    """How long a run takes in which one rank fails, its start included."""
    dc.launch(work, ranks=4)  # so that none of them waits for the first import of torch
    rows = []
    for how in ("raise", "exit", "kill"):
        most = max(seconds(lambda how=how: see_it_fail(how)) for _ in range(repeats))
        rows.append([how, most, "within 5 s", most <= 5])
    return Table(["rank 2 of 4 fails by", "seconds at most", *TARGET], rows, "Until the error is there")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--launches", type=int, default=200)
    parser.add_argument("--notebooks", type=int, default=20)
    asked = parser.parse_args()
    is_reached = True
    for measure, times in (
        (compare_speed, asked.repeats),
        (interrupts, asked.repeats),
        (failures, asked.repeats),
        (many_launches, asked.launches),
        (twenty_notebooks, asked.notebooks),
    ):
        table = measure(times)
        print(table, end="\n\n", flush=True)
        is_reached &= all(row[-1] is not False for row in table.rows)
    return 0 if is_reached else 1


if __name__ == "__main__":
    sys.exit(main())
