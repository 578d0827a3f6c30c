"""A step from 1 to 100,000 ranks as computed; then the same model beside real runs on two hosts of two ranks.

Run it with `python -m tests.benchmarks.scaling`. The second table needs emulated hosts; it fails where a
predicted step is further from the quickest measured one than a fifth, or where another strategy is slowest.
"""

import argparse
from typing import Any

import dpcourse as dc
from dpcourse.models import Mlp
from dpcourse.scaling import latency_walls, scale
from dpcourse.tables import Table, seconds_text
from dpcourse.theory.schedule import step_seconds

TOLERANCE = 0.2
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", {}),
    "fsdp2": ("fsdp2", {}),
    "fsdp2, hybrid": ("fsdp2", {"mesh": (2, 2)}),
}
COLUMNS = ["strategy", "computing", "quickest step", "predicted", "off"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inter", default="100mbit", help="the rate of each host's card")
    parser.add_argument("--intra", default="400mbit", help="the rate of each host's loopback")
    parser.add_argument("--pace", default="10ms", help="a layer's time in forward, on cores however busy")
    parser.add_argument("--steps", type=int, default=4)
    asked = parser.parse_args()
    for computed in (scale(), latency_walls(), scale(is_strong=True).walls()):
        print(f"{computed}\n")
    cluster = dc.Cluster(hosts=2, ranks_per_host=2, inter=asked.inter, intra=asked.intra)
    model = Mlp(features=512, width=512, depth=8)
    how = {"model": model, "cluster": cluster, "steps": asked.steps, "pace_compute": asked.pace}
    runs = {name: dc.train(strategy, **how, **options) for name, (strategy, options) in CASES.items()}
    rows = [_row(name, run) for name, run in runs.items()]
    print(Table(COLUMNS, rows, f"{model.layout().num_params:,} parameters, {cluster.network}"))
    return 0 if _is_right(list(runs.values())) else 1


def _predicted(run: Any) -> float:
    return step_seconds(run.timeline.predicted())


def _measured(run: Any) -> float:
    """The quickest step: what else the machine does only ever slows one down."""
    return min(max(times) for times in zip(*run.step_seconds, strict=True))


def _off(run: Any) -> float:
    return _predicted(run) / _measured(run) - 1


def _row(name: str, run: Any) -> list[Any]:
    measured, predicted = _measured(run), _predicted(run)
    computing = seconds_text(run.timeline.overlap().computation_seconds)
    return [name, computing, seconds_text(measured), seconds_text(predicted), f"{_off(run):+.1%}"]


def _is_right(runs: list[Any]) -> bool:
    is_near = all(abs(_off(run)) <= TOLERANCE for run in runs)
    return is_near and max(runs, key=_predicted) is max(runs, key=_measured)


if __name__ == "__main__":
    raise SystemExit(main())
