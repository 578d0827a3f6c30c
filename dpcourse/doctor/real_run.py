"""A real run in a fresh process: does it work, how long does it take, how many learners fit this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from dpcourse.doctor import packages, probes, trial
from dpcourse.doctor.finding import Finding, last_line
from dpcourse.ranks import cluster, queueing
from dpcourse.tables import bytes_text

DEADLINE_SECONDS = 120.0
QUEUE_SECONDS = 30.0  # for GPUs that other runs have: said as what it is before the deadline
_COUNT_TOLERANCE = 0.01
RANKS_PER_LEARNER = 4  # as many as the notebooks' reference configuration has
# What a rank takes with the largest model of the course: gpt-small under DDP, with every meter, was seen at
# 108 MB (a test holds this to be enough). Training it here would take longer than all the rest.
ROOM_FOR_A_RANK_BYTES = 120_000_000
_USABLE_SHARE = 0.9  # a machine filled to the last byte starts to swap


def real_run() -> list[Finding]:
    """Run two ranks in a fresh process, as a notebook does, and measure."""
    answer = _try_in_fresh_process("" if can_use_gpus() else "cpu")
    if "problem" in answer:
        return [_refused(answer["problem"])]
    return [*_run_findings(answer), *memory_findings(answer, probes.free_memory_bytes())]


def can_use_gpus() -> bool:
    """Two GPUs or more, and a torch that was built for them."""
    return len(cluster.gpus()) >= trial.NUM_RANKS and packages.torch_cuda() is not None


def _try_in_fresh_process(device: str) -> dict[str, Any]:
    home = str(Path(__file__).resolve().parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([home, os.environ.get("PYTHONPATH", "")]),
        queueing.SECONDS_VARIABLE: str(QUEUE_SECONDS),
    }
    command = [sys.executable, "-P", "-m", trial.__name__, str(os.getpid()), device]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        try:
            out, err = child.communicate(timeout=DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            return {"problem": f"no answer within {DEADLINE_SECONDS:.0f} s"}
        finally:
            child.kill()  # its fork server sees the end, and ends all that it has started
    try:
        return json.loads(last_line(out))
    except ValueError:
        return {"problem": f"the process ended with code {child.returncode}: {last_line(err, out)}"}


def _refused(problem: str) -> Finding:
    advice = (
        "Without this run nothing of the course works. Bring the environment up to date (make env); if a GPU "
        "is in the way, set CUDA_VISIBLE_DEVICES to nothing; then run dpcourse doctor again."
    )
    text = f"failed: {_first_and_last_line(problem)}"
    return Finding("2 ranks", text, False, advice, {"problem": problem}, is_needed=True)


def _first_and_last_line(problem: str) -> str:
    """What failed and why; the traceback between them is for the report."""
    lines = [line.strip() for line in problem.splitlines() if line.strip()]
    return lines[0] if len(lines) == 1 else f"{lines[0].rstrip(':')}: {lines[-1]}"


def _run_findings(answer: dict[str, Any]) -> list[Finding]:
    ranks = answer["ranks"]
    payload_bytes, where = ranks[0]["payload_bytes"], "GPUs" if ranks[0]["device"] == "cuda" else "the CPU"
    if not all(rank["is_right"] for rank in ranks):
        return [_refused(f"the all-reduce of {bytes_text(payload_bytes)} on {where} gave a wrong sum")]
    text = (
        f"on {where}: all-reduce of {bytes_text(payload_bytes)}, the sum right on both, start to end in "
        f"{answer['run_seconds']:.2f} s (the fork server was ready after "
        f"{answer['load_seconds']:.1f} s, once a notebook)"
    )
    figures = {"run_seconds": answer["run_seconds"], "load_seconds": answer["load_seconds"]}
    return [Finding("2 ranks", text, figures=figures, is_needed=True), *_bytes_finding(ranks, payload_bytes)]


def _bytes_finding(ranks: list[dict[str, Any]], payload_bytes: int) -> list[Finding]:
    """What each rank sent, against a ring's 2(N-1)/N of the payload."""
    sent = [rank["sent_bytes"] for rank in ranks]
    if None in sent:
        return []
    ratios = [size / payload_bytes for size in sent]
    expected = 2 * (len(ranks) - 1) / len(ranks)
    is_right = all(abs(ratio - expected) <= _COUNT_TOLERANCE * expected for ratio in ratios)
    text = (
        f"each rank sent {' and '.join(f'{ratio:.4f}' for ratio in ratios)} of that, says the kernel; "
        f"2(N-1)/N is {expected:g}"
    )
    advice = "" if is_right else "The kernel's counts do not fit the formula here: trust the recorder's."
    return [
        Finding("bytes sent", text, is_right, advice, {"sent_bytes": sent, "payload_bytes": payload_bytes})
    ]


def memory_findings(answer: dict[str, Any], free_bytes: int) -> list[Finding]:
    """Memory that one learner takes, and how many learners that makes."""
    kernel, server = answer["memory"]["kernel"], answer["memory"]["server"]
    rank_bytes = max(rank["memory"]["private"] for rank in answer["ranks"])
    shared_bytes = max(kernel["files"], server["files"])
    own = {"kernel": kernel["anonymous_share"], "server": server["anonymous_share"]}
    learner_bytes = sum(own.values()) + RANKS_PER_LEARNER * max(rank_bytes, ROOM_FOR_A_RANK_BYTES)
    learners = max(0, int((free_bytes * _USABLE_SHARE - shared_bytes) // learner_bytes))
    memory = Finding(
        "a notebook",
        f"takes {bytes_text(own['kernel'])} for its kernel, {bytes_text(own['server'])} for its fork server, "
        f"{bytes_text(rank_bytes)} for each rank before its model; all share {bytes_text(shared_bytes)} of "
        "libraries (measured here; JupyterLab itself comes on top)",
        figures={**own, "rank": rank_bytes, "shared": shared_bytes},
    )
    return [memory, _learners_finding(learners, learner_bytes)]


def _learners_finding(learners: int, learner_bytes: int) -> Finding:
    figures = {"learners": learners, "learner_bytes": learner_bytes, "ranks": RANKS_PER_LEARNER}
    each = f"{bytes_text(learner_bytes)} each: {RANKS_PER_LEARNER} ranks with the largest model"
    if learners:
        num_cores = cluster.num_cores()
        text = f"{learners:,} fit the free memory ({each}); their runs share {num_cores} cores"
        return Finding("learners", text, figures=figures, is_needed=True)
    advice = (
        f"Free some memory: one learner with {RANKS_PER_LEARNER} ranks needs {bytes_text(learner_bytes)}."
    )
    return Finding("learners", f"none fits the free memory ({each})", False, advice, figures, is_needed=True)
