"""Every strategy on 2 and 4 ranks: bytes held and sent, measured beside expected and ideal, in one table.

Run it with `python -m tests.benchmarks.ledgers`; `--write` puts the table into the README. It fails where
what is held or called is not exact to the byte, where the kernel counts more than 0.2 % off what was
expected, or where a loss is not that of one rank alone.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dpcourse as dc
from dpcourse.ledger import STATES, select, sums_by, total
from dpcourse.models import Mlp
from dpcourse.request import make_request
from dpcourse.strategies import options_for, options_text
from dpcourse.tables import Table

TOLERANCE, LOSS_TOLERANCE = 0.002, 1e-4
BF16_LOSS_TOLERANCE = 0.02  # of losses near 2.3: bf16 has 8 bits
MODEL, BATCH_SIZE = Mlp(width=896), 24  # 24 samples divide over 2, 3, 4 and 8 ranks
README = Path(__file__).resolve().parents[2] / "README.md"
BEGIN, END = "<!-- table of tests.benchmarks.ledgers -->\n", "<!-- end of table -->\n"
COLUMNS = [
    "strategy", "ranks", "held a parameter", "expected", "ideal", "sent a parameter-byte", "expected",
    "ideal", "off", "collectives", "exact",
]  # fmt: skip

# Each strategy with what it is asked for; a mesh of 2 x 2 takes 4 ranks.
CASES: list[tuple[str, dict[str, Any]]] = [
    ("dp", {}),
    ("ddp", {}),
    ("ddp", {"gradient_as_bucket_view": True}),
    ("ddp", {"hook": "bf16"}),
    ("zero1", {}),
    ("fsdp1", {"sharding": "FULL_SHARD"}),
    ("fsdp1", {"sharding": "SHARD_GRAD_OP"}),
    ("fsdp1", {"sharding": "NO_SHARD"}),
    ("fsdp1", {"sharding": "HYBRID_SHARD", "mesh": (2, 2)}),
    ("fsdp2", {}),
    ("fsdp2", {"reshard_after_forward": False}),
    ("fsdp2", {"mesh": (2, 2)}),
    ("fsdp2", {"backend": "ring"}),
    ("fsdp2", {"recipe": "fsdp-mixed"}),
    ("ddp-fsdp", {"replicated": ("layers.0",)}),
    ("scratch-naive-ddp", {}),
    ("scratch-flat-ddp", {}),
    ("scratch-ddp", {}),
    ("scratch-zero1", {}),
    ("scratch-zero2", {}),
    ("scratch-fsdp", {}),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--only", nargs="+", help="names of strategies; all where none are named")
    parser.add_argument(
        "--width", type=int, default=MODEL.width, help="of the model: 896 is 1.7 million parameters"
    )
    parser.add_argument("--write", action="store_true", help="put the table into the README")
    asked = parser.parse_args()
    model = replace(MODEL, width=asked.width)
    timed = [_timed(model, *case) for case in cases(asked.ranks, asked.only)]
    runs = [run for run, _ in timed]
    caption = (
        f"{model.layout().num_params:,} parameters, AdamW; of each run the rank that holds or sends most"
    )
    table = Table(COLUMNS, [_row(run, model) for run in runs], caption)
    print(table)
    seconds, once = sum(each for _, each in timed), _seconds_of_each_once(timed)
    print(
        f"{len(runs)} runs in {seconds:.0f} s, those of each strategy as it is first listed in {once:.0f} s"
    )
    if asked.write:
        _write(table, caption)
    wrong = [problem for run in runs for problem in _problems(run, runs[0])]
    print("\n".join(wrong) or "all exact, all within 0.2 %, all losses those of one rank alone")
    return 1 if wrong else 0


def cases(counts: list[int], only: list[str] | None = None) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """List what is run: a strategy, a number of ranks, and what else it is asked for."""
    yield "single", 1, {}
    for strategy, asked in CASES:
        for ranks in counts:
            is_fitting = "mesh" not in asked or ranks == 4
            if is_fitting and (not only or strategy in only):
                yield strategy, ranks, asked


def expected_cells(strategy: str, ranks: int, asked: dict[str, Any]) -> list[str]:
    """Say what the table has of a case without running it: name, ranks, held, sent, collectives."""
    asked = dict(asked)
    recipe, backend = asked.pop("recipe", "fp32"), asked.pop("backend", "gloo")
    request = make_request(strategy, asked, MODEL, ranks=ranks, batch_size=BATCH_SIZE, recipe=recipe)
    memory, traffic = request.expected_memory(), request.placed_on("cpu", backend).expected_traffic()
    step = [item for item in traffic if item.phase != "init"]
    sent = {rank: total(select(step, rank=rank), "sent_bytes") for rank in range(ranks)}
    busiest = max(sent, key=lambda rank: sent[rank])
    return [
        _name(strategy, request.options, recipe, backend),
        str(ranks),
        f"{_most(memory, request.setting.layout.num_params):.3f}",
        f"{sent[busiest] / request.setting.layout.parameter_bytes:.4f}",
        str(len(select(step, rank=busiest))),
    ]


def _timed(model: Mlp, *case: Any) -> tuple[Any, float]:
    start = time.monotonic()
    return _train(model, *case), time.monotonic() - start


def _seconds_of_each_once(timed: list[tuple[Any, float]]) -> float:
    """Add up the runs of each strategy in the first of the manners in which it is run."""
    first: dict[str, str] = {}
    for run, _ in timed:
        first.setdefault(run.strategy, run.title.split(":")[0])
    return sum(each for run, each in timed if run.title.split(":")[0] == first[run.strategy])


def _train(model: Mlp, strategy: str, ranks: int, asked: dict[str, Any]) -> Any:
    if sys.stderr.isatty():
        print(f"{strategy} {asked or ''} on {ranks} ranks".ljust(90), end="\r", file=sys.stderr, flush=True)
    return dc.train(strategy, model=model, ranks=ranks, batch_size=BATCH_SIZE, deadline_seconds=300, **asked)


def _row(run: Any, model: Mlp) -> list[Any]:
    options = options_for(run.strategy, run.options)
    return [
        _name(run.strategy, options, run.recipe, run.backend),
        run.world_size,
        f"{_most(run.memory.measured, run.num_params):.3f}",
        f"{_most(run.memory.expected, run.num_params):.3f}",
        _ideal_held(run, model),
        *(_text(value) for value in (_sent(run), _expected_sent(run), _ideal_sent(run, model))),
        f"{_off(run):+.3%}",
        run.traffic.num_collectives(_busiest(run)),
        "yes" if run.memory.is_exact() and run.traffic.is_exact() else "NO",
    ]


def _name(strategy: str, options: Any, recipe: str, backend: str) -> str:
    """Name a strategy with all that is not the usual."""
    words = [options_text(options)] * bool(options_text(options))
    words += [f"recipe={recipe}"] * (recipe != "fp32") + [f"backend={backend}"] * (backend == "ring")
    return f"{strategy} ({', '.join(words)})" if words else strategy


def _text(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"


def _busiest(run: Any) -> int:
    """The rank that is expected to send most."""
    return max(range(run.world_size), key=run.traffic.expected_sent_bytes)


def _most(holdings: list[Any], num_params: int) -> float:
    """Bytes of model states a parameter on the rank that holds most, while gradients exist."""
    backward = [h for h in select(holdings, phase="backward") if h.owner in STATES]
    return max(sums_by(backward, "rank").values()) / num_params


def _sent(run: Any) -> float | None:
    return run.traffic.sent_per_parameter_byte(_busiest(run))


def _expected_sent(run: Any) -> float:
    return run.traffic.expected_sent_bytes(_busiest(run)) / run.parameter_bytes


def _off(run: Any) -> float:
    """How far the kernel's count is off on the rank where it is furthest off."""
    ranks = [rank for rank in range(run.world_size) if run.traffic.expected_sent_bytes(rank)]
    offs = [run.traffic.sent_bytes(rank) / run.traffic.expected_sent_bytes(rank) - 1 for rank in ranks]
    return max(offs, key=abs, default=0.0)


def _ideal(run: Any, model: Mlp) -> Any:
    options = dict(run.options)
    return dc.expect(
        run.strategy,
        model=model,
        ranks=run.world_size,
        batch_size=run.batch_size,
        recipe=run.recipe,
        **options,
    )


def _ideal_held(run: Any, model: Mlp) -> str | None:
    memory = select(_ideal(run, model).ideal_memory, phase="backward")
    return f"{total(memory) / run.num_params:.3f}" if memory else None


def _ideal_sent(run: Any, model: Mlp) -> float | None:
    expected = _ideal(run, model)
    return total(expected.ideal_traffic, "sent_bytes") / run.parameter_bytes if expected.ideal else None


def _problems(run: Any, alone: Any) -> Iterator[str]:
    if not run.memory.is_exact():
        yield f"{run.title}: memory is not what was expected\n{run.memory}"
    if not run.traffic.is_exact():
        yield f"{run.title}: collectives are not those expected\n{run.traffic}"
    if abs(_off(run)) > TOLERANCE:
        yield f"{run.title}: the kernel's count is {_off(run):+.3%} off"
    off = max(abs(a - b) for a, b in zip(run.mean_losses, alone.mean_losses, strict=True))
    if off > (LOSS_TOLERANCE if _is_fp32(run) else BF16_LOSS_TOLERANCE):
        yield f"{run.title}: a loss is {off:.2g} off that of one rank alone"


def _is_fp32(run: Any) -> bool:
    return run.recipe == "fp32" and run.options.get("hook") != "bf16"


def _write(table: Table, caption: str) -> None:
    """Put the table between the two marks of the README."""
    text = README.read_text()
    before, rest = text.split(BEGIN)
    README.write_text(f"{before}{BEGIN}\n{_markdown(table)}\n\n{caption}.\n\n{END}{rest.split(END)[1]}")


def _markdown(table: Table) -> str:
    rows = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join(f"| {' | '.join('-' if cell is None else str(cell) for cell in row)} |" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
