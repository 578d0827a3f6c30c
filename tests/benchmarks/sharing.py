"""Many learners on one machine: 20 notebooks side by side, and 20 runs in the queue for 4 cards.

Run it with `python -m tests.benchmarks.sharing`; fewer with `--notebooks 8`. Each notebook is a kernel of its
own, run by papermill, with the course's own calls. Times are given as ratios to one notebook alone. It fails
where a result or a ledger is not that of the one alone, where a run takes its cards out of turn, or where a
card is in two hands.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill

from dpcourse.ranks import queueing
from dpcourse.tables import Table, seconds_text
from tests.conftest import wait_until

CELLS = (
    "import json, time\nimport dpcourse as dc",
    "def work():\n"
    "    import torch, torch.distributed as dist\n"
    "    tensor = torch.ones(1000) * dist.get_rank()\n"
    "    dist.all_reduce(tensor)\n"
    "    return tensor[0].item()\n"
    "sums = dc.launch(work, ranks=4, deadline_seconds=500, everything=True)",
    "started = time.time()\n"
    "run = dc.train('ddp', ranks=4, steps=3, deadline_seconds=500)\n"
    "seconds = time.time() - started",
    "print(json.dumps({'sums': sums, 'losses': run.losses, 'run': seconds,\n"
    "    'exact': [run.memory.is_exact(), run.traffic.is_exact()], 'step': run.median_step_seconds,\n"
    "    'others': run.cores_of_others, 'cores': run.records[0].cores.num_cores}))",
)
COLUMNS = ["what", "found", "to reach", "reached"]
NUM_CARDS, WORK_SECONDS = 4, 1.0
QUEUED = """
import sys, time
from dpcourse.ranks import queueing
cards, num_cards, seconds = sys.argv[1].split(","), int(sys.argv[2]), float(sys.argv[3])
place = queueing.Place(queueing.Ticket(0, num_cards, tuple(cards)), queueing._folder(), 600.0)
joined = time.monotonic()
place.wait(lambda doing: None)
taken = time.monotonic()
time.sleep(seconds)
print(place.ticket.number, joined, taken, time.monotonic(), *place.ticket.taken)
place.close()
"""
_LONGEST_SECONDS = 900


# -- cores -------------------------------------------------------------------------------------------------


def run_notebook(folder: Path, number: int) -> dict[str, Any]:
    """Run the notebook in a kernel of its own and give what its last cell says."""
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = folder / f"{number}.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)
    papermill.execute_notebook(
        path,
        path,
        progress_bar=False,
        execution_timeout=_LONGEST_SECONDS,
        shutdown_kernel="immediate",
        extra_arguments=["--log-level=40"],  # the kernel's own warnings
    )
    return json.loads(nbformat.read(path, 4).cells[-1].outputs[0]["text"])


def side_by_side(num_notebooks: int) -> Table:
    """Run one notebook alone, then so many at once, and lay their results beside each other."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(num_notebooks) as pool:
        alone, alone_seconds = timed(lambda: run_notebook(Path(name), 0))
        numbers = range(1, num_notebooks + 1)
        many, many_seconds = timed(lambda: list(pool.map(lambda n: run_notebook(Path(name), n), numbers)))
    are_right = all((one["sums"], one["losses"]) == (alone["sums"], alone["losses"]) for one in many)
    are_exact = all(all(one["exact"]) for one in many)
    steps = [one["step"] / alone["step"] for one in many]
    runs = [one["run"] / alone["run"] for one in many]
    shares = [one["others"] / one["cores"] for one in many]
    rows = [
        ["right results", sum(one["losses"] == alone["losses"] for one in many), "all", are_right],
        ["exact ledgers", sum(all(one["exact"]) for one in many), "all", are_exact],
        ["one alone", seconds_text(alone_seconds), "", None],
        ["all at once", seconds_text(many_seconds), "", None],
        ["the same, in times one after another", many_seconds / (num_notebooks * alone_seconds), "", None],
        ["dc.train, in times of one alone: median", statistics.median(runs), "", None],
        ["the same: slowest", max(runs), "", None],
        ["a step, in times of one alone: median", statistics.median(steps), "", None],
        ["the same: slowest", max(steps), "", None],
        ["cores that others had: median share", statistics.median(shares), "", None],
    ]
    return Table(COLUMNS, rows, f"{num_notebooks} notebooks at once, 4 ranks each")


def timed(function: Any) -> tuple[Any, float]:
    started = time.perf_counter()
    return function(), time.perf_counter() - started


# -- cards -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """When one run joined the queue, had its cards and gave them back."""

    number: int
    joined: float
    taken: float
    ended: float
    cards: tuple[str, ...]

    @classmethod
    def read(cls, line: str) -> "Turn":
        number, joined, taken, ended, *cards = line.split()
        return cls(int(number), float(joined), float(taken), float(ended), tuple(cards))


def in_the_queue(num_runs: int) -> Table:
    """Have so many processes want one or two of 4 pretended cards, while one run still has them all."""
    names = [f"card-{index}" for index in range(NUM_CARDS)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ[queueing.FOLDER_VARIABLE] = f"{folder}/queue"
        with queueing.turn(names, NUM_CARDS):
            started = [start(names, 1 + index % 2) for index in range(num_runs)]
            all_there = wait_until(lambda: num_tickets(Path(folder)) == num_runs + 1, _LONGEST_SECONDS)
            free = time.monotonic()
        turns = [Turn.read(process.communicate(timeout=_LONGEST_SECONDS)[0]) for process in started]
    turns.sort(key=lambda turn: turn.taken)
    numbers = [turn.number for turn in turns]
    waited = [(turn.taken - free) / WORK_SECONDS for turn in turns]
    least = sum(len(turn.cards) for turn in turns) / NUM_CARDS
    rows = [
        ["runs that all waited at once", len(turns), "all", all_there and len(turns) == num_runs],
        ["cards in the order of arrival", numbers == sorted(numbers), "yes", numbers == sorted(numbers)],
        ["cards in two hands at once", num_shared(turns), "none", num_shared(turns) == 0],
        ["wait of the middle one, in times of a run", statistics.median(waited), "", None],
        ["wait of the last one", max(waited), "", None],
        ["the least that all work takes", least, "", None],
    ]
    return Table(COLUMNS, rows, f"{num_runs} runs on 1 or 2 of 4 pretended cards")


def start(names: list[str], num_cards: int) -> subprocess.Popen:
    asked = [",".join(names), str(num_cards), str(WORK_SECONDS)]
    return subprocess.Popen([sys.executable, "-c", QUEUED, *asked], stdout=subprocess.PIPE, text=True)


def num_tickets(folder: Path) -> int:
    return len([path for path in folder.glob("queue/*.ticket") if path.stat().st_size])


def num_shared(turns: list[Turn]) -> int:
    """Count the pairs of runs that had one card at one time."""
    pairs = [(one, other) for index, one in enumerate(turns) for other in turns[index + 1 :]]
    return sum(
        bool(set(one.cards) & set(other.cards)) and one.taken < other.ended and other.taken < one.ended
        for one, other in pairs
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--notebooks", type=int, default=20)
    asked = parser.parse_args()
    tables = []
    for measure in (in_the_queue, side_by_side):
        tables.append(measure(asked.notebooks))
        print(tables[-1], end="\n\n", flush=True)
    return 0 if all(row[-1] is not False for table in tables for row in table.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
