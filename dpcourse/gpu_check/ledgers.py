"""Steps about bytes: the strategy table, CUDA's allocator, ranks that share a card, refusals."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import dpcourse as dc
from dpcourse.gpu_check.place import Place
from dpcourse.gpu_check.report import Check
from dpcourse.gpu_check.running import Note, judge, judge_ledgers, judge_losses, on_cpu, train
from dpcourse.measure.process import BY_CUDA, BY_LEDGER
from dpcourse.ranks import cluster
from dpcourse.run import Run

# Its step grows with the gradient: Adam's does not, and would hide one that was summed in place of averaged.
_OPTIMIZER = "momentum"
_TABLE: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ddp", {}),
    ("fsdp2", {}),
    ("fsdp1", {}),
    ("ddp", {"gradient_as_bucket_view": True}),
    ("zero1", {}),
    ("fsdp1", {"sharding": "SHARD_GRAD_OP"}),
    ("fsdp2", {"reshard_after_forward": False}),
    ("fsdp2", {"mesh": (2, 2)}),
    ("scratch-ddp", {}),
    ("scratch-fsdp", {}),
    ("dp", {}),
)
_QUICK = 2
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def strategies(place: Place, note: Note) -> None:
    """Every strategy beside its expected lists, and its losses beside those of CPU ranks."""
    plain = on_cpu("single", optimizer=_OPTIMIZER)
    for strategy, options in _TABLE[: _QUICK if place.is_quick else None]:
        ranks = 4 if "mesh" in options else place.ranks
        if place.num_gpus > 1 and ranks > place.ranks:
            continue  # NCCL wants a card for each
        run = train(place, strategy, optimizer=_OPTIMIZER, ranks=ranks, **options)
        judge_ledgers(run, note)
        judge_losses(run, plain, note)


def allocator(place: Place, note: Note) -> None:
    """The ledger beside CUDA's caching allocator, rank by rank and phase by phase, to the byte."""
    names = ("ddp",) if place.is_quick else ("ddp", "fsdp1", "fsdp2")
    for strategy in names:
        run = train(place, strategy, model="gpt-small")
        judge_ledgers(run, note)
        judge_allocator(run, note)


def judge_allocator(run: Run, note: Note) -> None:
    """Hold the ledger to what CUDA's allocator counted; note what else the card holds."""
    for record in run.records:
        for phase in ("forward", "backward", "step"):
            by_ledger, by_cuda = (record.process.get(f"{who}, {phase}") for who in (BY_LEDGER, BY_CUDA))
            if by_cuda is not None:
                what = f"{run.title}: rank {record.rank}, bytes by the allocator, {phase}"
                judge(what, by_cuda, by_ledger, note)
        for name in ("cuda allocated", "cuda reserved", "device used"):
            if name in record.process:
                note(Check(f"{run.title}: rank {record.rank}, {name}", f"{record.process[name]} bytes"))


def shared(place: Place, note: Note) -> None:
    """Ranks that share one card through host memory: gloo's numbers, lists and bytes on the wire."""
    with _hiding(cluster.gpus()[0].uuid if place.device == "cuda" else None):
        _share(place, note)


def _share(place: Place, note: Note) -> None:
    ranks = 2 if place.is_quick else 4
    for strategy in ("fsdp2",) if place.is_quick else ("ddp", "fsdp1", "fsdp2"):
        run = train(place, strategy, optimizer=_OPTIMIZER, ranks=ranks, backend="staged")
        beside = on_cpu(strategy, optimizer=_OPTIMIZER, ranks=ranks)
        judge_ledgers(run, note)
        judge_losses(run, beside, note)
        judge(f"{run.title}: bytes on the wire", run.traffic.sent_bytes(), beside.traffic.sent_bytes(), note)
        label = "sharing one card" if place.device == "cuda" else ""
        judge(f"{run.title}: how it is labelled", run.cards_text, label, note)


def refusals(place: Place, note: Note) -> None:
    """What is not there is said before anything starts."""
    too_many = place.num_gpus + 1
    for visible, ranks in ((None, too_many), ("", 1), ("-1", 1)):
        with _hiding(visible):
            said = _refusal(ranks)
        what = f"{ranks} ranks on GPUs, CUDA_VISIBLE_DEVICES={visible!r}"
        note(Check(what, said, "a refusal", "GPUs are visible" in said))


def _refusal(ranks: int) -> str:
    try:
        dc.Cluster(ranks=ranks, device="cuda")
    except ValueError as error:
        return str(error)
    return "no refusal"


@contextlib.contextmanager
def _hiding(visible: str | None) -> Iterator[None]:
    """Let these cards alone be seen for a while; None changes nothing."""
    before = os.environ.get(_VISIBLE)
    if visible is not None:
        os.environ[_VISIBLE] = visible
    try:
        yield
    finally:
        os.environ.pop(_VISIBLE, None)
        if before is not None:
            os.environ[_VISIBLE] = before
