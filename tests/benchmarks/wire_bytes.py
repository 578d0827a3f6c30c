"""Bytes of a DDP step as the kernel counts them, beside 2(N - 1)/N; bytes held, beside the layout's list.

Run it with `python -m tests.benchmarks.wire_bytes`; it fails where a ratio is off by more than 0.2 %, or
where a byte of the model's states is not where it should be.
"""

import argparse
import sys
from typing import Any

import dpcourse as dc
from dpcourse.models import Mlp
from dpcourse.tables import Table

TOLERANCE = 0.002
COLUMNS = [
    "ranks", "sent per parameter-byte", "2(N-1)/N", "off", "held per parameter", "states", "collectives",
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--width", type=int, default=2048, help="2048 gives 8.5 million parameters")
    asked = parser.parse_args()
    model = Mlp(width=asked.width)
    runs = [dc.train("ddp", model=model, ranks=n, deadline_seconds=300) for n in asked.ranks]
    caption = f"DDP, {model.layout().num_params:,} parameters: the rank of each run that is furthest off"
    print(Table(COLUMNS, [_row(run) for run in runs], caption))
    return 0 if all(_is_right(run) for run in runs) else 1


def _row(run: Any) -> list[Any]:
    formula, sent = _formula(run), _worst_sent(run)
    return [
        run.world_size,
        f"{sent:.4f}",
        f"{formula:.4f}",
        f"{sent / formula - 1:+.3%}",
        f"{run.memory.bytes_per_parameter():.4f}",
        "exact" if run.memory.is_exact() else "off",
        "exact" if run.traffic.is_exact() else "off",
    ]


def _formula(run: Any) -> float:
    return 2 * (run.world_size - 1) / run.world_size


def _worst_sent(run: Any) -> float:
    ratios = [run.traffic.sent_per_parameter_byte(rank) for rank in range(run.world_size)]
    if None in ratios:
        sys.exit("this system does not count bytes for each socket; run it on Linux")
    return max(ratios, key=lambda ratio: abs(ratio - _formula(run)))


def _is_right(run: Any) -> bool:
    is_near = abs(_worst_sent(run) / _formula(run) - 1) <= TOLERANCE
    return is_near and run.memory.is_exact() and run.traffic.is_exact()


if __name__ == "__main__":
    sys.exit(main())
