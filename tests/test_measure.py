"""The meters against what is known: collectives of known size, storages of known bytes."""

import os
import random
import socket
import sys
import threading

import pytest
import torch
import torch.distributed as dist

import dpcourse as dc
from dpcourse.ledger import OWNERS, sums_by
from dpcourse.measure import wire
from dpcourse.measure.history import Change, History
from dpcourse.measure.memory import MemoryMeter, StorageLedger
from dpcourse.measure.traffic import TrafficMeter
from dpcourse.ranks import witness
from dpcourse.scratch import announce
from tests.conftest import wait_until

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


def test_a_buffer_that_says_what_it_is_for_has_that_owner_at_the_peak_though_no_phase_ends_with_it():
    with StorageLedger() as ledger:
        meter = MemoryMeter(ledger, list, rank=0)
        meter.start_step()
        buffer = torch.ones(1000)
        announce.name(buffer, "buckets", "gradients on their way")
        del buffer
        meter.mark("backward")
    announce.name(torch.ones(3), "buckets", "after the ledger is closed")  # nobody hears it
    assert sums_by(meter.finish(), "phase", "owner", "unit") == {
        ("peak", "buckets", "gradients on their way"): 4000
    }


def test_what_is_left_of_the_step_before_has_its_owner_until_it_goes_and_not_what_once_filled_it():
    with StorageLedger() as ledger:
        gradients = [torch.ones(1000)]
        announce.name(gradients[0], "buckets", "reduce buffer")
        meter = MemoryMeter(ledger, lambda: [("gradients", "layer", tensor) for tensor in gradients], rank=0)
        meter.start_step()
        gradients.clear()
        meter.mark("forward")
    assert [moment.num_bytes for moment in meter.moments()] == [{"gradients": 4000}, {}]


def test_asking_a_rank_where_it_stands_keeps_nothing_of_it_alive(monkeypatch):
    """A frame holds its call's tensors, and the rest of an answer takes its time."""
    done, stacks = threading.Event(), []
    monkeypatch.setattr(witness, "calls", lambda: done.wait(0.003))

    def ask():
        while not done.is_set():
            stacks.append(witness.stands()["stack"])

    def call():
        return float((torch.ones(1000) + 1).sum())

    asking = threading.Thread(target=ask)
    asking.start()
    with StorageLedger() as ledger:
        kept = [ledger.live_bytes for _ in range(300) if call()]
    done.set()
    asking.join()
    assert set(kept) == {0}
    assert stacks
    assert all(stacks)


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


def test_what_is_meta_or_fake_holds_nothing():
    from torch._subclasses import FakeTensorMode

    with StorageLedger() as ledger:
        meta = torch.empty(1000, device="meta") + 1
        with FakeTensorMode():
            fake = torch.ones(1000) + 1
        assert ledger.live_bytes == 0
    assert meta.shape == fake.shape


def test_most_gathered_is_reported_though_the_fullest_moment_is_another():
    with StorageLedger() as ledger:
        whole = torch.empty(100)
        storage = whole.untyped_storage()
        storage.resize_(0)
        meter = MemoryMeter(ledger, lambda: [("gathered", "layer", whole)], rank=1)
        meter.start_step()
        storage.resize_(400)
        storage.resize_(0)
        meter.mark("forward")
        big = torch.ones(300)
        meter.mark("backward")
        del big
        meter.mark("step")
        holdings, moments = meter.finish(), meter.moments()
    assert sums_by(holdings, "phase", "owner") == {
        ("backward", "other"): 1200,
        ("peak", "other"): 1200,
        ("peak of gathered", "gathered"): 400,
    }
    assert [(m.phase, dict(m.num_bytes)) for m in moments] == [
        ("forward", {}),
        ("forward", {"gathered": 400}),
        ("forward", {}),
        ("backward", {"other": 1200}),
        ("step", {}),
    ]
    assert {moment.rank for moment in moments} == {1}


@pytest.mark.parametrize(("held_seconds", "reported"), [(0.05, 0), (None, 400)])
def test_a_phase_ends_once_gloo_s_thread_has_dropped_its_buffers_or_reports_them(held_seconds, reported):
    with StorageLedger() as ledger:
        held = [torch.ones(100)]
        ledger.purposes[ledger.serials_of(held[0])[0]] = ("buckets", "gloo's copy")
        meter = MemoryMeter(ledger, list, rank=0)
        meter.start_step()
        if held_seconds is not None:
            threading.Timer(held_seconds, held.clear).start()
        meter.mark("backward")
    assert sum(holding.num_bytes for holding in meter.holdings) == reported


def seen_on_a_rank():
    """What the ledger sees of a DTensor, of a functional collective, and of a ring's all-reduce."""
    from torch.distributed._functional_collectives import all_reduce as functional_all_reduce
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from dpcourse.scratch import ring

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with StorageLedger() as ledger:
        before = ledger.live_bytes
        sharded = distribute_tensor(torch.ones(8, 25), mesh, [Shard(0)])
        added = sharded + 1
        dtensors = ledger.live_bytes - before
        assert added.shape == (8, 25)
        del sharded, added
        before = ledger.live_bytes
        reduced = functional_all_reduce(torch.ones(25), "sum", mesh).wait()
        wait_until(lambda: ledger.live_bytes - before == 100, seconds=5)  # gloo's thread lets go of the input
        functional = ledger.live_bytes - before
        assert len(reduced) == 25
        ledger.start_step()
        bucket = torch.ones(1000)
        ring.all_reduce(bucket)
        meter = MemoryMeter(ledger, list, dist.get_rank())
        meter.start_step()
        meter.mark("forward")
        buckets = [h.num_bytes for h in meter.holdings if (h.owner, h.unit) == ("buckets", "bucket 0")]
    return dtensors, functional, buckets


def test_of_a_dtensor_the_shard_counts_and_what_a_ring_reduces_is_a_bucket():
    for dtensors, functional, buckets in dc.launch(seen_on_a_rank, ranks=2):
        assert dtensors == 2 * 4 * 25 * 4  # two tensors, half of 8 rows each
        assert functional == 100
        assert buckets == [4000]


def held_by_fsdp2():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from dpcourse.strategies.fsdp_tensors import fsdp2_tensors

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    inputs = torch.ones(4, 64)
    with StorageLedger() as ledger:
        module = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
        for layer in module:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)

        def owned():
            yield from fsdp2_tensors(module)
            for parameter in module.parameters():
                if parameter.grad is not None:
                    yield "gradients", "all", parameter.grad

        meter = MemoryMeter(ledger, owned, dist.get_rank())
        module(inputs).sum().backward()
        module.zero_grad()
        meter.start_step()
        with meter.keep_for_backward():
            loss = module(inputs).sum()
            meter.mark("forward")
            loss.backward()
        meter.mark("backward")
    return sums_by(meter.finish(), "phase", "owner", "unit"), set(ledger.purposes.values())


def test_units_that_are_gathered_and_the_buffers_of_fsdp_have_owners():
    sums, purposes = dc.launch(held_by_fsdp2, ranks=2)[0]
    unit = (64 * 64 + 64) * 4
    assert sums["peak of gathered", "gathered", "most at once"] == unit
    for unit_name in ("0", "1", "2"):
        assert sums["backward", "parameters", unit_name] == unit / 2
    between = {owner for phase, owner, _ in sums if phase in ("forward", "backward")}
    assert not between & {"gathered", "buckets"}
    at_peak = {key[1:]: num_bytes for key, num_bytes in sums.items() if key[0] == "peak"}
    assert {("buckets", unit) for unit in ("gather buffer", "reduce buffer", "gloo's copy")} < purposes
    assert at_peak["other", "without an owner"] < 0.05 * sum(at_peak.values())


# -- a step's changes ---------------------------------------------------


def random_history(num_changes=5000):
    """Storages of three owners that come and go, each owner with one moment that is far above all others."""
    draw, owners = random.Random(0), {serial: OWNERS[serial % 3] for serial in range(60)}
    changes = [Change(place / 1000, draw.randrange(60), draw.randrange(100)) for place in range(num_changes)]
    for serial, place in ((0, 1234), (1, 2345), (2, 3456)):
        changes[place : place + 2] = [Change(place / 1000, serial, 10_000), Change(place / 1000, serial, 0)]
    return History(
        0.0, {1: 50}, tuple(changes), owners, (("forward", 1500), ("backward", 4000), ("step", 5000))
    )


def losses_of(history, moments):
    """What a thinned list has lost of its history."""
    maxima = {owner: max(column) for owner, column in history.columns.items()}
    found = {owner: max(moment.num_bytes.get(owner, 0) for moment in moments) for owner in maxima}
    lost = [owner for owner in maxima if found[owner] < maxima[owner]]
    is_fullest_there = max(moment.total_bytes for moment in moments) == max(history.totals)
    return lost + ([] if is_fullest_there else ["the fullest moment"])


def test_moments_are_thinned_and_no_maximum_is_lost():
    history = random_history()
    moments = list(history.moments(rank=0))
    assert 200 < len(moments) <= 300
    assert losses_of(history, moments) == []
    assert [moment.seconds for moment in moments] == sorted(moment.seconds for moment in moments)
    assert list(dict.fromkeys(moment.phase for moment in moments)) == ["forward", "backward", "step"]
    every = list(history.moments(rank=0, at_most=10_000))
    assert len(every) == 5001
    assert "parameters" in losses_of(history, every[::17])  # every seventeenth alone would not do
    assert every[1500].phase == "forward"
    assert every[1501].phase == "backward"


def test_what_is_live_after_some_changes_is_what_they_left():
    history = History(0.0, {1: 50}, (Change(0.1, 2, 30), Change(0.2, 1, 0)), {}, (("forward", 2),))
    assert history.live_at(1) == {1: 50, 2: 30}
    assert history.totals == [50, 80, 30]
    assert history.fullest == 1
