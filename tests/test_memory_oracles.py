"""The ledger of storages against counts of another kind: sums made by hand, and the C library's own."""

import gc
import os
import sys
import time
import weakref
from math import ceil

import pytest
import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

import dpcourse as dc
from dpcourse.measure import process
from dpcourse.measure.process import EXPLANATIONS, ProcessMeter, malloc_bytes
from dpcourse.measure.storages import StorageLedger

pytestmark = pytest.mark.long

FLOAT, STEP = 4, 4  # bytes of a number, and of Adam's count of steps for each parameter
needs_mallinfo = pytest.mark.skipif(malloc_bytes() is None, reason="needs glibc's mallinfo2")

# -- sums made by hand --------------------------------------------------

SIZES = ((7, 12), (5, 7), (3, 5))  # (outputs, inputs) of each layer; no size divides by 2 and by 3


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(inputs, outputs) for outputs, inputs in SIZES))


def shapes():
    return [shape for outputs, inputs in SIZES for shape in ((outputs, inputs), (outputs,))]


def numel(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def settled(ledger, expected, seconds=5.0):
    """Read what is live; a thread of gloo's may hold what it carried a little longer than the rank."""
    deadline = time.monotonic() + seconds
    while ledger.live_bytes > expected and time.monotonic() < deadline:
        os.sched_yield()
    return ledger.live_bytes


def held(wrap, optimizer_of, expected):
    """Train three steps, and tell what is live at the ends of the last, the batch and the loss aside."""
    dist.barrier()
    inputs = torch.ones(4, 12)
    with StorageLedger() as ledger:
        module = wrap(layers())
        optimizer = optimizer_of(module)
        for is_last in (False, False, True):
            loss = module(inputs).sum()
            loss.backward()
            after_backward = settled(ledger, expected[0] + FLOAT) - FLOAT if is_last else None
            optimizer.step()
            optimizer.zero_grad()
            del loss
        return [after_backward, settled(ledger, expected[1])]


def held_by_each():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def adam(module):
        return torch.optim.Adam(module.parameters())

    def zero(module):
        return ZeroRedundancyOptimizer(module.parameters(), optimizer_class=torch.optim.Adam)

    def shard(module):
        for layer in module:
            fully_shard(layer, mesh=mesh)
        return fully_shard(module, mesh=mesh)

    def shard_flat(module):
        policy = ModuleWrapPolicy({torch.nn.Linear})
        return FullyShardedDataParallel(module, auto_wrap_policy=policy, device_id=torch.device("cpu"))

    by_hand = {name: count(dist.get_rank(), dist.get_world_size()) for name, count in BY_HAND.items()}
    return {
        "ddp": held(DistributedDataParallel, adam, by_hand["ddp"]),
        "zero1": held(DistributedDataParallel, zero, by_hand["zero1"]),
        "fsdp2": held(shard, adam, by_hand["fsdp2"]),
        "fsdp1": held(shard_flat, adam, by_hand["fsdp1"]),
    }


def whole_bytes():
    return FLOAT * sum(map(numel, shapes()))


def by_hand_ddp(rank, num_ranks):
    """Parameters, two moments, buckets; gradients at the end of backward."""
    kept = (1 + 2 + 1) * whole_bytes() + STEP * len(shapes())
    return [kept + whole_bytes(), kept]


def by_hand_zero1(rank, num_ranks):
    """As DDP, but each parameter's moments lie on one rank: the largest first, to who has least."""
    given = [[0] for _ in range(num_ranks)]
    for size in sorted(map(numel, shapes()), reverse=True):
        min(given, key=sum).append(size)
    kept = 2 * whole_bytes() + sum(2 * FLOAT * size + STEP for size in given[rank][1:])
    return [kept + whole_bytes(), kept]


def by_hand_fsdp2(rank, num_ranks):
    """Each parameter is cut along its first axis; storages are padded to the largest shard, moments not."""
    padded = mine = 0
    for shape in shapes():
        rows = ceil(shape[0] / num_ranks)
        row = FLOAT * numel(shape) // shape[0]
        padded += rows * row
        mine += max(0, min(rows, shape[0] - rank * rows)) * row
    kept = padded + 2 * mine + STEP * len(shapes())
    return [kept + padded, kept]


def by_hand_fsdp1(rank, num_ranks):
    """Each unit is one flat parameter, padded to divide; with it go its gradient and its two moments."""
    shards = [ceil((outputs * inputs + outputs) / num_ranks) * FLOAT for outputs, inputs in SIZES]
    kept = 3 * sum(shards) + STEP * len(shards)
    return [kept + sum(shards), kept]


BY_HAND = {"ddp": by_hand_ddp, "zero1": by_hand_zero1, "fsdp2": by_hand_fsdp2, "fsdp1": by_hand_fsdp1}


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_what_is_live_at_the_ends_of_backward_and_step_is_what_a_hand_adds_up(num_ranks):
    results = dc.launch(held_by_each, ranks=num_ranks, deadline_seconds=100)
    for rank, result in enumerate(results):
        for strategy, by_hand in BY_HAND.items():
            assert (strategy, result[strategy]) == (strategy, by_hand(rank, num_ranks))


# -- the C library's count ----------------------------------------------

WIDTH, DEPTH = 2048, 2
NUM_PARAMS = DEPTH * (WIDTH * WIDTH + WIDTH)
NEAR = 0.02  # bytes a parameter: what libraries and Python add, seen as 0.003 to 0.012


class ForgetsResize(StorageLedger):
    """A wrong ledger: a storage has for ever the size it had when it came."""

    def note(self, storage):
        if storage._cdata not in self._serials:
            super().note(storage)


class CountsViews(StorageLedger):
    """A wrong ledger: a view counts as if it had bytes of its own, as long as it lives."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        num_seen = self._num_seen
        result = super().__torch_dispatch__(func, types, args, kwargs)
        given = {id(leaf) for leaf in tree_leaves((args, kwargs))}
        for tensor in tree_leaves(result):
            is_view = isinstance(tensor, torch.Tensor) and id(tensor) not in given
            if is_view and self._num_seen == num_seen:
                self.live[-id(tensor)] = tensor.nbytes
                weakref.finalize(tensor, self.live.pop, -id(tensor), None)
        return result


LEDGERS = (StorageLedger, ForgetsResize, CountsViews)


def counted_by_both():
    """For each way to train and each ledger: its count and the C library's, in bytes a parameter."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def shard(module):
        for layer in module:
            fully_shard(layer)
        return fully_shard(module)

    found = {}
    for name, wrap, expected in (("ddp", DistributedDataParallel, 20), ("fsdp2", shard, 8)):
        count_both(wrap, StorageLedger, expected)  # what libraries set up at first use is there from now on
        found |= {(name, kind.__name__): count_both(wrap, kind, expected) for kind in LEDGERS}
    return found


def count_both(wrap, ledger_class, expected):
    """Train a step and a half, and count while gradients exist and after the optimizer's step."""
    gc.collect()
    dist.barrier()
    before, pairs = malloc_bytes(), []
    with ledger_class() as ledger:
        module = wrap(torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))))
        optimizer = torch.optim.Adam(module.parameters())
        for _ in range(2):
            ledger.start_step()
            optimizer.zero_grad()
            module(torch.ones(4, WIDTH)).sum().backward()
            settled(ledger, (expected + NEAR) * NUM_PARAMS, seconds=0.5)
            pairs.append(counts_at_rest(ledger, before))
            optimizer.step()
    return pairs


def counts_at_rest(ledger, before, seconds=0.5):
    """Both counts, in bytes a parameter; between two readings a thread of gloo's may let go of a tensor."""
    deadline = time.monotonic() + seconds
    while True:
        pair = (ledger.live_bytes / NUM_PARAMS, (malloc_bytes() - before) / NUM_PARAMS)
        if not disagree([pair]) or time.monotonic() > deadline:
            return pair
        os.sched_yield()


def disagree(pairs):
    return any(abs(ours - theirs) > NEAR for ours, theirs in pairs)


@needs_mallinfo
def test_the_ledger_and_the_c_library_agree_and_wrong_ledgers_do_not():
    for result in dc.launch(counted_by_both, ranks=2, everything=True, deadline_seconds=100):
        for strategy in ("ddp", "fsdp2"):
            assert not disagree(result[strategy, "StorageLedger"])
        assert result["ddp", "StorageLedger"][1][0] == pytest.approx(
            20, abs=1e-3
        )  # 16 would lack the buckets
        assert result["fsdp2", "StorageLedger"][1][0] == pytest.approx(8, abs=1e-3)
        assert disagree(result["fsdp2", "ForgetsResize"])
        assert disagree(result["fsdp2", "CountsViews"])
        assert disagree(result["ddp", "CountsViews"])


# -- the process's counts -----------------------------------------------


def _counts_around_a_block():
    """What a fresh process says around writing to 40 MB: one that freed much would use it again."""
    torch.ones(1)  # the pages of the library's own code are there from here on
    meter = ProcessMeter()
    before = meter.read()
    block = torch.ones(10_000_000)
    return before, meter.read(), block.nbytes


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_that_is_written_to_is_resident_and_in_use():
    before, after, num_bytes = dc.launch(_counts_around_a_block, ranks=1)[0]
    assert after["resident"] - before["resident"] == pytest.approx(num_bytes, rel=0.1)
    assert after["most resident"] >= after["resident"]
    if malloc_bytes() is not None:
        assert after["in use by malloc, more than before"] == pytest.approx(num_bytes, rel=0.02)
        assert after["in use by malloc"] > before["in use by malloc"]
    assert set(after) <= set(EXPLANATIONS)


def test_where_the_system_has_no_such_counts_there_are_fewer_and_no_wrong_ones(monkeypatch, tmp_path):
    monkeypatch.setattr(process.sys, "platform", "darwin")
    monkeypatch.setattr(process, "_STATUS", tmp_path / "none")
    assert list(ProcessMeter().read()) == ["resident"]


def test_a_gpu_s_counts_stand_beside_the_process_s_and_each_count_is_explained(monkeypatch):
    counts = {
        "memory_allocated": 3,
        "max_memory_allocated": 5,
        "memory_reserved": 8,
        "mem_get_info": (30, 100),
    }
    for name, count in {"is_available": True, "is_initialized": True, **counts}.items():
        monkeypatch.setattr(torch.cuda, name, lambda count=count: count)
    found = ProcessMeter().read()
    on_gpu = {name: count for name, count in found.items() if "cuda" in name or "device" in name}
    assert on_gpu == {"cuda allocated": 3, "cuda most allocated": 5, "cuda reserved": 8, "device used": 70}
    assert set(found) <= set(EXPLANATIONS)
