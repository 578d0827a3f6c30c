"""Dry runs of 7B and 70B parameters on 8 to 4096 ranks: time, memory of the process, equality to the list.

Run it with `python -m tests.benchmarks.dryrun`; it fails where a list is not met to the byte, or where 70B on
4096 ranks takes more than 60 s or 8 GB.
"""

import argparse
import sys
import time
from typing import Any

import dpcourse as dc
from dpcourse.ledger import select, total
from dpcourse.tables import Table, bytes_text, seconds_text

MOST_SECONDS, MOST_BYTES = 60.0, 8_000_000_000
COLUMNS = ["strategy", "model", "ranks", "time", "process", "held in a step", "at the peak", "calls", "exact"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512, 4096])
    parser.add_argument("--models", nargs="+", default=["gpt-7b", "gpt-70b"])
    parser.add_argument("--strategies", nargs="+", default=["fsdp1", "fsdp2"])
    asked = parser.parse_args()
    dc.dry_run("fsdp2", ranks=8)  # the server of processes starts once
    cases = [(s, m, n) for m in asked.models for n in asked.ranks for s in asked.strategies]
    measured = [measure(*case) for case in cases]
    print(Table(COLUMNS, [row for row, _ in measured], "dry runs, checkpoints, fsdp-mixed"))
    problems = [problem for _, problem in measured if problem]
    print("\n".join(problems) or "all exact, within time and memory")
    return 1 if problems else 0


def measure(strategy: str, model: str, ranks: int) -> tuple[list[Any], str]:
    start = time.monotonic()
    run = dc.dry_run(strategy, model, ranks=ranks, checkpointing=True, recipe="fsdp-mixed")
    seconds, process = time.monotonic() - start, run.records[0].process["most resident"]
    is_exact = run.memory.is_exact() and run.traffic.is_exact()
    row = [
        strategy,
        model,
        ranks,
        seconds_text(seconds),
        bytes_text(process),
        bytes_text(total(select(run.memory.measured, phase="backward"))),
        bytes_text(total(select(run.memory.measured, phase="peak"))),
        run.traffic.num_collectives(),
        "yes" if is_exact else "NO",
    ]
    print(*row, flush=True, file=sys.stderr)
    is_within = seconds <= MOST_SECONDS and process <= MOST_BYTES
    return row, "" if is_exact and is_within else f"{run.title}: {row}"


if __name__ == "__main__":
    sys.exit(main())
