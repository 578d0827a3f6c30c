"""The ledger beside CUDA's allocator, with a stand-in for the allocator: what each is asked, and when."""

import torch

from dpcourse.measure import allocator
from dpcourse.measure.allocator import AllocatorMeter
from dpcourse.measure.process import EXPLANATIONS
from dpcourse.measure.storages import StorageLedger


class Allocator:
    """Counts what it is told of, on top of what was there before."""

    def __init__(self):
        self.num_bytes = 1000

    def __call__(self):
        return self.num_bytes


def test_both_count_what_was_made_since_and_a_tensor_that_one_of_them_misses_is_seen():
    asked_for = Allocator()
    with StorageLedger() as ledger:
        meter = AllocatorMeter(ledger, asked_for, device="cpu")
        kept = torch.ones(100)
        view = kept[:50].detach()  # one storage, counted once
        asked_for.num_bytes += kept.nbytes
        meter.mark("forward")
        gone = torch.ones(7)
        del gone
        meter.mark("backward")
        asked_for.num_bytes += 512
        meter.mark("step")
    assert view.nbytes == 200
    by_ledger, by_cuda = (
        [meter.counts[f"{who}, {phase}"] for phase in ("forward", "backward", "step")]
        for who in (allocator.BY_LEDGER, allocator.BY_CUDA)
    )
    assert by_ledger == [400, 400, 400]
    assert by_cuda == [400, 400, 912]
    assert set(meter.counts) <= set(EXPLANATIONS)


def test_what_lies_on_another_device_is_not_counted_with_it():
    with StorageLedger() as ledger:
        held = torch.ones(10)
        assert (ledger.bytes_on("cpu"), ledger.bytes_on("cuda")) == (held.nbytes, 0)


def test_cuda_is_counted_at_rest_and_without_cublas_own_workspace(monkeypatch):
    said = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("at rest"))
    monkeypatch.setattr(
        torch._C, "_cuda_clearCublasWorkspaces", lambda: said.append("no workspace"), raising=False
    )
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: said.append("count") or {allocator._ASKED_FOR: 7})
    assert allocator.requested_bytes() == 7
    assert said == ["at rest", "no workspace", "count"]


def test_an_allocator_that_does_not_count_what_is_asked_for_is_left_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name, is_counting in (("native", True), ("cudaMallocAsync", False)):
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda name=name: name)
        assert allocator.is_counting() is is_counting
