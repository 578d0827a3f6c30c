"""Threads of one process and processes of their own, each with the same forward passes to do."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dpcourse.checks import check_count
from dpcourse.experiments.base import Experiment, stable_table
from dpcourse.ranks.cluster import num_cores
from dpcourse.ranks.launch import launch
from dpcourse.tables import Table, seconds_text

PASSES = 100
REPEATS = 4  # of which the quickest counts: what else the machine does can only make one longer
_WIDTH, _LAYERS, _SAMPLES = 16, 40, 8  # small layers: most of a pass is Python, and holds its lock


@dataclass(frozen=True)
class Workers:
    """So many workers of one kind: how long they took for their passes, and the CPU time of all together."""

    kind: str
    num_workers: int
    seconds: float
    cpu_seconds: float

    @property
    def cores_busy(self) -> float:
        return self.cpu_seconds / self.seconds


@dataclass(frozen=True, repr=False)
class ThreadsOrProcesses(Experiment):
    """One worker, several threads of one process, and several processes; each worker has as much to do."""

    passes: int
    cores: int
    rows: tuple[Workers, ...]

    def times_as_long(self, row: Workers) -> float:
        """How many times as long as one worker alone, who has a fraction of the work."""
        return row.seconds / self.rows[0].seconds

    @property
    def title(self) -> str:
        return f"{self.passes} forward passes for each worker, one core for each at most"

    def table(self) -> Table:
        columns = ["workers", "kind", "passes in all", "time", "times one worker's", "cores busy"]
        return stable_table(columns, map(self._row, self.rows), 3, self.title)

    def _row(self, row: Workers) -> list[Any]:
        passes = row.num_workers * self.passes
        times = f"{self.times_as_long(row):.2f}"
        return [row.num_workers, row.kind, passes, seconds_text(row.seconds), times, f"{row.cores_busy:.2f}"]

    def words(self) -> str:
        _, threads, processes = self.rows
        few = f" The machine has {self.cores}." if self.cores < threads.num_workers else ""
        return (
            f"{threads.num_workers} threads keep {threads.cores_busy:.1f} cores busy, "
            f"{processes.num_workers} processes {processes.cores_busy:.1f}.{few}"
        )

    def plot(self) -> Any:
        """Draw for each kind of worker the time, and the cores that were busy."""
        from dpcourse.figures import workers_bars

        return workers_bars(self)


def threads_or_processes(num_workers: int = 2, passes: int = PASSES) -> ThreadsOrProcesses:
    """Do forward passes of a model of small layers with one worker, with threads, and with processes.

    Args:
        num_workers: threads, and processes; two at least.
        passes: of each worker.
    """
    check_count("passes", passes)
    check_count("num_workers", num_workers)
    if num_workers < 2:
        raise ValueError(f"num_workers={num_workers}: one worker has nobody to share with; give 2 at least")
    alone = _in_one_process(1, passes, "alone")
    threads = _in_one_process(num_workers, passes, "threads of one process")
    processes = quickest("processes", launch(_work_alone, passes, ranks=num_workers, device="cpu"))
    return ThreadsOrProcesses(passes, num_cores(), (alone, threads, processes))


def quickest(kind: str, by_process: Sequence[Sequence[tuple[float, float]]]) -> Workers:
    """Give the quickest repeat of some processes: the slowest one's time, and the CPU time of all."""
    repeats = [
        (max(wall for wall, _ in own), sum(cpu for _, cpu in own)) for own in zip(*by_process, strict=True)
    ]
    return Workers(kind, len(by_process), *min(repeats))


def _in_one_process(num_workers: int, passes: int, kind: str) -> Workers:
    found = quickest(kind, launch(_work_in_threads, num_workers, passes, ranks=1, device="cpu"))
    return replace(found, num_workers=num_workers)


# -- in each rank


def _work_in_threads(num_workers: int, passes: int) -> list[tuple[float, float]]:
    """Share passes among threads; give each repeat's time on the clock, and the CPU time of all threads."""
    works = [_passes(passes) for _ in range(num_workers)]

    def work_all() -> None:
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return [_timed(work_all) for _ in range(REPEATS)]


def _work_alone(passes: int) -> list[tuple[float, float]]:
    import torch.distributed as dist

    work, found = _passes(passes), []
    for _ in range(REPEATS):
        dist.barrier()
        found.append(_timed(work))
    return found


def _passes(passes: int) -> Callable[[], None]:
    """Make a worker's model, run it once, and give what remains to do."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    layers = [layer for _ in range(_LAYERS) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.Tanh())]
    model, inputs = nn.Sequential(*layers), torch.ones(_SAMPLES, _WIDTH)
    model(inputs)

    def work() -> None:
        torch.set_num_threads(1)  # of each thread anew: torch's own pools would fight for the cores
        for _ in range(passes):
            model(inputs)

    return work


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    start, cpu_start = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu_start
