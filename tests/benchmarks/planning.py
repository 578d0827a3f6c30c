"""Runs that people measured beside what is planned, with the distance; and how long a plan takes.

python -m tests.benchmarks.planning
"""

import time

import dpcourse as dc
from dpcourse.tables import Table, bytes_text, seconds_text

GIB = 2**30
QWEN = {256: 139.2e9, 512: 148.0e9, 1024: 162.0e9}
FULL_SHARD = {2: 19.02e9, 4: 12.06e9}


def peak_of(label: str, model, **asked) -> int:
    plan = dc.plan(model, **asked)
    return next(row.peak_bytes for row in plan.rows if row.label == label)


def line(what: str, planned: float, measured: float, remark: str = "") -> list:
    return [what, bytes_text(planned), bytes_text(measured), f"{planned / measured - 1:+.1%}", remark]


def measured_runs() -> Table:
    llama = {"gpus": 1, "recipe": "pure-bf16", "micro_batch": 2}
    rows = [
        line(
            f"Llama-3.2-3B, pure bf16, one card, 2 x {length} tokens",
            peak_of("single", "llama-3.2-3b", sequence_length=length, **llama),
            25.5 * GIB,
            remark,
        )
        for length, remark in (
            (200, "4,096 read as the longest allowed"),
            (4096, "logits alone are over what was measured"),
        )
    ]
    for length, measured in QWEN.items():
        asked = {"gpus": 2, "recipe": "mixed-adam", "sequence_length": length, "checkpointing": "none"}
        planned = 2 * peak_of("deepspeed (stage=3)", "qwen-7b", **asked)
        rows.append(line(f"Qwen-7B, ZeRO-3, both of two cards, {length} tokens", planned, measured))
    for ranks, measured in FULL_SHARD.items():
        asked = {"gpus": ranks, "recipe": "pure-bf16", "sequence_length": 512}
        planned = peak_of("fsdp2", "llama-3.2-3b", **asked)
        rows.append(line(f"about 3B, FSDP2, {ranks} cards", planned, measured, "which 3B is not known"))
    for stage, measured in ((2, 72.2e9), (3, 12.5e9)):
        asked = {"gpus": 8, "recipe": "mixed-adam", "trainable": 0.91e9}
        planned = peak_of(f"deepspeed (stage={stage})", 34.3e9, **asked)
        rows.append(line(f"34.3B, 0.91B trained, ZeRO-{stage}, 8 cards", planned, measured))
    for micro_batch, remark in ((16, "fits"), (32, "just does not")):
        asked = {"gpus": 8, "recipe": "autocast", "sequence_length": 1024, "micro_batch": micro_batch}
        planned = peak_of("ddp", "gpt2", **asked)
        rows.append(
            line(f"GPT-2, DDP, micro-batch {micro_batch}, against a card of 40 GB", planned, 40e9, remark)
        )
    columns = ["run", "planned, margin included", "measured", "distance", "remark"]
    return Table(columns, rows, "runs that people measured")


def times() -> Table:
    rows = []
    for model, gpus in (("llama-2-7b", 8), ("llama-2-70b", 64), ("llama-2-70b", 1024), ("gpt2", 8)):
        start = time.perf_counter()
        plan = dc.plan(model, gpus=gpus)
        rows.append([model, gpus, len(plan.rows), seconds_text(time.perf_counter() - start)])
    return Table(["model", "cards", "rows", "took"], rows, "how long a plan takes")


if __name__ == "__main__":
    print(measured_runs(), times(), sep="\n\n")
