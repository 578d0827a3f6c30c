"""What emulated links do, beside what was asked for, and what is shown on them: the U, overlap, hybrid, ...

Run it with `python -m tests.benchmarks.links`; `--links paced` for the other kind, `--only u` for one part,
`--figures FOLDER` to keep the figures. Each line compares times of one run with one another, since the cores
may have other work; it fails where a rate, an order or a byte is not what it should be.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import dpcourse as dc
from dpcourse import experiments
from dpcourse.experiments.buckets import slow_hosts
from dpcourse.experiments.hybrid import DDP, FULL, HYBRID
from dpcourse.parts.traffic import HEADER_SHARE
from dpcourse.quantities import rate_text, read_rate
from dpcourse.tables import Table, seconds_text

RATES = ("50mbit", "200mbit", "500mbit", "2gbit")
RATE_TOLERANCE, START_SECONDS, BEST_FACTOR = 0.1, 0.5, 2.0
SECONDS_A_TRANSFER = 0.3
HOSTS_AT_ONCE = 8
SLOW = {"hosts": 2, "ranks_per_host": 1, "inter": "50mbit"}
Line = tuple[str, str, str, bool]  # what, asked for or expected, measured, whether it is as it should be


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--links", choices=("kernel", "paced"), help="default: what works here")
    parser.add_argument("--only", choices=tuple(PARTS), action="append")
    parser.add_argument("--figures", type=Path, help="a folder for the figures")
    asked = parser.parse_args()
    kind = asked.links or dc.Cluster(hosts=2, ranks_per_host=1).network.kind
    lines: list[Line] = []
    for name in asked.only or PARTS:
        result, found = PARTS[name](kind)
        lines += found
        if result is not None:
            print(f"{result}\n", flush=True)
            if asked.figures:
                result.plot().save(str(asked.figures / f"{name}_{kind}.png"))
    rows = [
        [what, expected, measured, "yes" if is_right else "NO"]
        for what, expected, measured, is_right in lines
    ]
    load = os.getloadavg()[0]
    caption = f"{kind} links, {os.cpu_count()} cores, a load of {load:.1f}"
    print(Table(["what", "asked for or expected", "measured", "as it should be"], rows, caption))
    return 0 if all(is_right for *_, is_right in lines) else 1


def rates(kind: str) -> tuple[None, list[Line]]:
    return None, [_rate(kind, inter) for inter in RATES]


def _rate(kind: str, inter: str) -> Line:
    rate = read_rate("inter", inter)
    cluster = dc.Cluster(hosts=2, ranks_per_host=1, inter=inter, links=kind)
    seconds, _ = dc.launch(_time_messages, round(rate * SECONDS_A_TRANSFER), 3, cluster=cluster)
    measured = round(rate * SECONDS_A_TRANSFER) / median(seconds)
    is_right = abs(measured / rate - 1) <= RATE_TOLERANCE
    text = f"{rate_text(measured)} ({measured / rate - 1:+.1%})"
    return "rate of one message", rate_text(rate), text, is_right


def _time_messages(num_bytes: int, repeats: int) -> list[float]:
    """Rank 0 sends, and hears from rank 1 when all is there."""
    import torch
    import torch.distributed as dist

    tensor, seconds = torch.zeros(num_bytes, dtype=torch.uint8), []
    for _ in range(repeats + 1):
        dist.barrier()
        begin = time.perf_counter()
        if dist.get_rank() == 0:
            dist.send(tensor, 1)
            dist.recv(tensor[:1], 1)
        else:
            dist.recv(tensor, 0)
            dist.send(tensor[:1], 0)
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


_UP = """
import time, pyroute2
from dpcourse.network.namespaces import make_hosts
from dpcourse.ranks.links import Links
start = time.perf_counter()
make_hosts(Links("kernel", {hosts}, 1, 62.5e6, None))
print(time.perf_counter() - start)
"""


def start(kind: str) -> tuple[None, list[Line]]:
    """Time the making of hosts in fresh processes, the import of pyroute2 aside: a rank has it already."""
    if kind == "paced":
        return None, []
    code = [sys.executable, "-c", _UP.format(hosts=HOSTS_AT_ONCE)]
    times = [
        float(subprocess.run(code, capture_output=True, check=True, timeout=60).stdout) for _ in range(3)
    ]
    asked = f"under {seconds_text(START_SECONDS)}"
    return None, [
        (f"{HOSTS_AT_ONCE} hosts up", asked, seconds_text(median(times)), median(times) < START_SECONDS)
    ]


def u(kind: str) -> tuple[Any, list[Line]]:
    found = experiments.bucket_sweep(slow_hosts(kind), repeats=7)
    best, predicted = found.measured_best.bucket_cap_mb, found.predicted_best.bucket_cap_mb
    factor = max(best / predicted, predicted / best)
    off, fit = [f"{max(map(abs, one.errors())):.0%}" for one in (found, found.all_reduces)]
    bandwidth = found.all_reduces.bandwidth_error
    ends = [found.times[place].median_seconds / found.measured_best.median_seconds for place in (0, -1)]
    return found, [
        (
            "bandwidth of the fit",
            rate_text(found.all_reduces.links.inter.bytes_per_second),
            f"{bandwidth:+.1%}",
            abs(bandwidth) <= RATE_TOLERANCE,
        ),
        ("the fit's largest error, over sizes", "reported", fit, True),
        (
            "smallest and largest buckets, over the best",
            "both above 1",
            f"{ends[0]:.2f} and {ends[1]:.2f}",
            found.has_minimum_inside,
        ),
        (
            "best bucket: the model's, measured",
            f"{predicted:.3g} MiB, within a factor of 2",
            f"{best:.3g} MiB",
            factor <= BEST_FACTOR,
        ),
        (
            "backward with the model's bucket",
            "reported",
            f"{found.lost_by_prediction:+.0%} over the best",
            True,
        ),
        ("the model's largest error, over buckets", "reported", off, True),
    ]


def overlap(kind: str) -> tuple[Any, list[Line]]:
    found = experiments.overlap(dc.Cluster(**SLOW, links=kind), pace_compute="4ms", steps=6)
    by_name = {step.name: step for step in found.steps}
    torch, flat = by_name["torch's DDP"], by_name["flat"]
    lines = [
        (
            f"{step.name}: hidden, over the bound",
            "reported",
            f"{step.hidden_share:.0%}, {found.over_bound(step):+.0%}",
            True,
        )
        for step in found.steps
    ]
    is_right = torch.seconds < flat.seconds and torch.hidden_share > flat.hidden_share
    gain = f"{flat.seconds / torch.seconds:.2f}"
    expected = f"above 1 (model {flat.predicted_seconds / torch.predicted_seconds:.2f})"
    return found, [*lines, ("flat over overlapped", expected, gain, is_right)]


def hybrid(kind: str) -> tuple[Any, list[Line]]:
    found = experiments.hybrid(inter=SLOW["inter"], links=kind, steps=5)
    return found, [line for shape in found.shapes for line in _hybrid_lines(shape)]


def _hybrid_lines(shape: Any) -> Iterator[Line]:
    for name in (DDP, FULL, HYBRID):
        step = shape.step(name)
        sent, expected = step.between_hosts_bytes, step.expected_between_hosts_bytes
        more = sent / expected - 1
        is_right = 0 <= more <= HEADER_SHARE if shape.links.kind == "kernel" else more == 0
        yield (
            f"{shape.name}, {name}: bytes across",
            f"{expected:,.0f}",
            f"{sent:,.0f} ({more:+.2%})",
            is_right,
        )
    expected = f"above 1 (model {shape.predicted_gain:.2f})"
    yield f"{shape.name}: full over hybrid, in time", expected, f"{shape.gain:.2f}", shape.gain > 1


def star(kind: str) -> tuple[Any, list[Line]]:
    found = experiments.star_or_ring(inter=SLOW["inter"], links=kind, repeats=5)
    growth, (first, *_, last) = found.growth, found.of("star")
    formula = {
        name: rows[-1].expected_seconds / rows[0].expected_seconds
        for name in growth
        if (rows := found.of(name))
    }
    hosts = f"{last.num_ranks} hosts over {first.num_ranks}"
    return found, [
        (
            f"{name}: {hosts}, in time",
            f"{formula[name]:.2f}",
            f"{growth[name]:.2f}",
            growth["star"] > growth["ring"],
        )
        for name in growth
    ]


def prefetch(kind: str) -> tuple[Any, list[Line]]:
    cluster = dc.Cluster(**SLOW, links=kind)
    found = experiments.prefetch(cluster, pace_compute="20ms", steps=6)
    predicted = found.off.predicted_seconds / found.on.predicted_seconds
    return found, [
        (
            "no prefetch over prefetch",
            f"above 1 (model {predicted:.2f})",
            f"{found.gain:.2f}",
            found.gain > 1,
        ),
        (
            "hidden without and with",
            "more with",
            f"{found.off.hidden_share:.0%}, {found.on.hidden_share:.0%}",
            found.on.hidden_share > found.off.hidden_share,
        ),
    ]


PARTS = {
    "rates": rates,
    "start": start,
    "u": u,
    "overlap": overlap,
    "hybrid": hybrid,
    "star": star,
    "prefetch": prefetch,
}

if __name__ == "__main__":
    raise SystemExit(main())
