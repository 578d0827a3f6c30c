"""The meters against what is known: collectives of known size, storages of known bytes."""

import os
import socket
import sys

import pytest
import torch
import torch.distributed as dist

import dpcourse as dc
from dpcourse.ledger import sums_by
from dpcourse.measure import wire
from dpcourse.measure.memory import MemoryMeter, StorageLedger
from dpcourse.measure.traffic import TrafficMeter

KERNEL_COUNTS = pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts bytes for each socket")
MEGABYTE = 250_000  # fp32 numbers


def counted(collective, num_times=1):
    """Run a collective on this rank: what the kernel counted, and what the recorder saw."""
    dist.barrier()
    kernel, recorder = wire.WireCounter(), TrafficMeter()
    for _ in range(num_times):
        collective()
    sent = kernel.sent_since_last()
    recorder.mark("step")
    return sent, [(t.collective, t.unit, t.group, t.payload_bytes) for t in recorder.transfers]


# -- wire and traffic ---------------------------------------------------


@KERNEL_COUNTS
def test_an_all_reduce_of_1_mb_on_4_ranks_sends_1_5_mb_a_rank_and_6_mb_on_all_wires():
    results = dc.launch(lambda: counted(lambda: dist.all_reduce(torch.ones(MEGABYTE))), ranks=4)
    for sent, seen in results:
        assert seen == [("all_reduce", "float32", (0, 1, 2, 3), 1_000_000)]
        assert sent == pytest.approx(1_500_000, rel=0.005)
    assert sum(sent for sent, _ in results) == pytest.approx(6_000_000, rel=0.005)


@KERNEL_COUNTS
def test_a_broadcast_spreads_in_a_tree():
    results = dc.launch(lambda: counted(lambda: dist.broadcast(torch.ones(MEGABYTE), 0)), ranks=4)
    megabytes = [sent / 1e6 for sent, _ in results]
    assert megabytes == pytest.approx([2, 1, 0, 0], abs=0.01)
    assert results[2][1] == [("broadcast", "float32", (0, 1, 2, 3), 1_000_000)]


def test_a_gather_s_payload_is_its_result_and_a_subgroup_is_named():
    def gather():
        group = dist.new_group([0, 1])
        pieces = [torch.empty(10) for _ in range(2)]
        return counted(lambda: dist.all_gather(pieces, torch.ones(10), group=group))[1]

    assert dc.launch(gather, ranks=2)[0] == [("all_gather", "float32", (0, 1), 80)]


def test_a_group_of_one_is_no_traffic():
    assert dc.launch(lambda: counted(lambda: dist.all_reduce(torch.ones(10))), ranks=1)[0][1] == []


def test_more_collectives_than_the_recorder_keeps_are_an_error_and_no_empty_picture():
    def many():
        with pytest.raises(RuntimeError, match=r"step phase made 30 collectives.*kept the last 10"):
            counted(lambda: dist.all_reduce(torch.ones(1)), num_times=30)
        return True

    assert dc.launch(many, ranks=2, env={"TORCH_FR_BUFFER_SIZE": "10"}) == [True, True]


@KERNEL_COUNTS
def test_a_socket_s_count_is_what_was_sent_and_outlives_the_socket():
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        counter = wire.WireCounter()
        sender.sendall(b"x" * 10_000)
        assert counter.sent_since_last() == 10_000
        inode = os.fstat(sender.fileno()).st_ino
        assert wire.read_sockets()[inode].sent_bytes == 10_000
        assert len(receiver.recv(10_000, socket.MSG_WAITALL)) == 10_000
        assert wire.read_sockets()[inode].acked_bytes in range(10_000, 10_003)  # a SYN may count
        sender.close()
        receiver.close()
    assert counter.sent_since_last() == 0  # a sum over the sockets of the moment would be negative


def test_without_a_kernel_that_counts_there_is_no_number(monkeypatch):
    monkeypatch.setattr(wire.sys, "platform", "darwin")
    assert not wire.is_available()
    assert wire.WireCounter().sent_since_last() is None


# -- memory -------------------------------------------------------------


def test_the_ledger_counts_a_storage_once_and_forgets_it_when_it_goes():
    with StorageLedger() as ledger:
        tensor = torch.ones(1000)
        view = tensor[10:20].view(2, 5)
        assert ledger.live_bytes == 4000
        del tensor
        assert ledger.live_bytes == 4000
        del view
        assert ledger.live_bytes == 0
        assert ledger.history({}, []).totals == [0, 4000, 0]


def test_the_ledger_sees_what_backward_makes_and_a_storage_that_is_resized():
    with StorageLedger() as ledger:
        weight = torch.ones(100, requires_grad=True)
        (weight * weight).sum().backward()
        assert ledger.live_bytes == 800
        weight.grad.untyped_storage().resize_(0)
        assert ledger.live_bytes == 400
        weight.grad.untyped_storage().resize_(1600)
        assert ledger.live_bytes == 2000
    assert torch.UntypedStorage.resize_.__qualname__ != "StorageLedger.__enter__.<locals>.watched"


def test_an_address_that_is_used_again_is_another_storage():
    with StorageLedger() as ledger:
        for size in (100, 200, 300):
            held = torch.ones(size)
            assert ledger.live_bytes == 4 * size
            del held
        assert ledger.live == {}


def test_the_meter_names_owners_the_peak_and_what_nobody_owns():
    with StorageLedger() as ledger:
        weight, stray = torch.ones(100), torch.ones(7)
        meter = MemoryMeter(ledger, lambda: [("parameters", "layer", weight)], rank=2)
        meter.start_step()
        big = torch.ones(1000)
        meter.mark("forward")
        del big
        meter.mark("step")
        holdings = meter.finish()
    assert {holding.rank for holding in holdings} == {2}
    assert sums_by(holdings, "phase", "owner") == {
        ("forward", "parameters"): 400,
        ("forward", "other"): 4028,
        ("step", "parameters"): 400,
        ("step", "other"): 28,
        ("peak", "parameters"): 400,
        ("peak", "other"): 4028,
    }
    assert len(stray) == 7


def test_what_autograd_keeps_is_activations_until_backward_frees_it():
    with StorageLedger() as ledger:
        inputs, weight = torch.ones(50), torch.ones(50, requires_grad=True)
        owned = [("parameters", "layer", weight), ("other", "batch", inputs)]
        meter = MemoryMeter(ledger, lambda: owned, rank=0)
        meter.start_step()
        with meter.keep_for_backward():
            loss = (inputs * weight).exp().sum()  # keeps exp's result; its argument goes at once
            meter.mark("forward")
            loss.backward()
        meter.mark("backward")
        sums = sums_by(meter.finish(), "phase", "owner")
    assert sums["forward", "activations"] == 200
    assert ("backward", "activations") not in sums


def test_the_ledger_agrees_with_the_allocator_on_a_step_of_ddp():
    """glibc's own count is an oracle that knows nothing of tensors; it sees what C++ allocates too."""
    if not sys.platform.startswith("linux") or not hasattr(_libc(), "mallinfo2"):
        pytest.skip("needs glibc's mallinfo2")
    ledger_bytes, allocator_bytes, num_params = dc.launch(_held_by_ddp, ranks=2, everything=True)[0]
    assert ledger_bytes / num_params == pytest.approx(20, abs=0.01)
    assert allocator_bytes / num_params == pytest.approx(20, abs=0.2)  # without the buckets it would be 16


def _held_by_ddp():
    from torch.nn.parallel import DistributedDataParallel

    def step():
        wrapped(torch.ones(4, 1024)).sum().backward()
        optimizer.step()

    torch.mm(torch.ones(1024, 1024), torch.ones(1024, 4))  # the library's own buffers, once
    torch.mm(torch.ones(1024, 4), torch.ones(4, 1024))
    before = _allocated()
    with StorageLedger() as ledger:
        module = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(3)))
        wrapped = DistributedDataParallel(module)
        optimizer = torch.optim.Adam(module.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            step()
        num_params = sum(parameter.numel() for parameter in module.parameters())
        return ledger.live_bytes, _allocated() - before, num_params


def _libc():
    import ctypes

    return ctypes.CDLL(None)


def _allocated():
    import ctypes

    class Info(ctypes.Structure):
        _fields_ = [(f"field{i}", ctypes.c_size_t) for i in range(10)]

    mallinfo2 = _libc().mallinfo2
    mallinfo2.restype = Info
    info = mallinfo2()
    return info.field4 + info.field7  # bytes in mapped blocks and in the heaps' blocks that are in use
