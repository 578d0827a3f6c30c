"""The ring under PyTorch's own systems: the same parameters as on gloo, and the bytes of the formulas."""

import gc
import sys
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import dpcourse as dc
from dpcourse.measure.wire import WireCounter
from dpcourse.network.in_order import THREAD_NAME
from dpcourse.network.ring import RingProcessGroup
from dpcourse.scratch import hooks, ring
from dpcourse.scratch.announce import listen
from tests.conftest import wait_until

pytestmark = pytest.mark.long

RANKS, STEPS, LEARNING_RATE = 4, 3, 0.1
# gloo and the ring add four gradients in another order: each of the three additions may be off by half a
# unit in the last place, 6e-8 of gradients that are below 1 here, times rate and momentum over three steps.
ROUNDING = 1e-6


# -- systems, each on both backends -----------------------------------------


def build():
    """3.2 MB of parameters whose rows divide by 4, so that nothing is padded."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 512), nn.Tanh(), nn.Linear(512, 4))


def ddp(module):
    return DistributedDataParallel(module)


def ddp_with_hook(module):
    wrapped = DistributedDataParallel(module)
    wrapped.register_comm_hook(None, hooks.ring_hook)
    return wrapped


def sum_hook(state, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A wrong hook: it does not divide."""
    bucket.buffer().mul_(dist.get_world_size(state))
    return hooks.ring_hook(state, bucket)


def ddp_that_sums(module):
    wrapped = DistributedDataParallel(module)
    wrapped.register_comm_hook(None, sum_hook)
    return wrapped


def fsdp1(module):
    def is_linear(module, recurse, nonwrapped_numel):
        return recurse or isinstance(module, nn.Linear)

    return FullyShardedDataParallel(module, auto_wrap_policy=is_linear, device_id=torch.device("cpu"))


def fsdp2(module, mesh=None):
    mesh = mesh or init_device_mesh("cpu", (RANKS,))
    for layer in module:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def fsdp2_with_ring(module):
    hooks.use_ring(fsdp2(module))
    return module


def fsdp2_in_two_dimensions(module):
    return fsdp2(module, init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def whole_parameters(wrapped):
    if isinstance(wrapped, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(wrapped):
            return torch.cat([parameter.detach().flatten() for parameter in wrapped.parameters()])
    parameters = [parameter.detach() for parameter in wrapped.parameters()]
    return torch.cat([(p.full_tensor() if isinstance(p, DTensor) else p).flatten() for p in parameters])


def train(wrap):
    """In a rank: all parameters after some steps, and bytes sent in the last step per parameter-byte."""
    module = build()
    num_bytes = sum(parameter.nbytes for parameter in module.parameters())
    wrapped = (ddp if wrap == "zero1" else wrap)(module)
    choice = {"lr": LEARNING_RATE, "momentum": 0.9}
    if wrap == "zero1":
        optimizer = ZeroRedundancyOptimizer(module.parameters(), torch.optim.SGD, **choice)
    else:
        optimizer = torch.optim.SGD(wrapped.parameters(), **choice)
    for step in range(STEPS):
        inputs = torch.randn(8, 256, generator=torch.Generator().manual_seed(step * RANKS + dist.get_rank()))
        dist.barrier()
        counter = WireCounter()
        wrapped(inputs).square().mean().backward()
        optimizer.step()
        sent = counter.sent_since_last()
        optimizer.zero_grad()
    return whole_parameters(wrapped), (sent or 0) / num_bytes


SYSTEMS = {
    "ddp": ddp,
    "zero1": "zero1",
    "fsdp1": fsdp1,
    "fsdp2": fsdp2,
    "fsdp2 in two dimensions": fsdp2_in_two_dimensions,
}
PLUGGED = {"ddp with hook": ddp_with_hook, "fsdp2 with ring": fsdp2_with_ring, "ddp that sums": ddp_that_sums}


def train_all(systems):
    assert {dist.get_backend(group) for group in dist.distributed_c10d._world.pg_map} == {dist.get_backend()}
    return {name: train(wrap) for name, wrap in systems.items()}


@pytest.fixture(scope="module")
def on_gloo():
    return dc.launch(train_all, SYSTEMS | PLUGGED, ranks=RANKS, everything=True, deadline_seconds=100)


@pytest.fixture(scope="module")
def on_ring():
    return dc.launch(train_all, SYSTEMS, ranks=RANKS, backend="ring", everything=True, deadline_seconds=100)


def distance(results, name, base):
    return max((parameters - base).abs().max().item() for parameters, _ in (found[name] for found in results))


def test_every_system_gives_the_same_parameters_on_the_ring_as_ddp_on_gloo(on_gloo, on_ring):
    base, moved = on_gloo[0]["ddp"][0], 1000 * ROUNDING
    start = torch.cat([parameter.detach().flatten() for parameter in build().parameters()])
    assert (base - start).abs().max().item() > moved  # three steps are seen
    for name in SYSTEMS:
        assert distance(on_gloo, name, base) < ROUNDING, name
        assert distance(on_ring, name, base) < ROUNDING, name
    for name in ("ddp with hook", "fsdp2 with ring"):
        assert distance(on_gloo, name, base) < ROUNDING, name
    assert distance(on_gloo, "ddp that sums", base) > moved  # the comparison sees a missing average


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts bytes for each socket")
def test_sharding_moves_three_on_the_ring_where_gloo_moves_four(on_gloo, on_ring):
    part = (RANKS - 1) / RANKS
    assert [found["fsdp2"][1] for found in on_gloo] == pytest.approx([4 * part] * RANKS, rel=0.002)
    assert [found["fsdp1"][1] for found in on_gloo] == pytest.approx([4 * part] * RANKS, rel=0.002)
    for results, names in ((on_ring, ("fsdp1", "fsdp2")), (on_gloo, ("fsdp2 with ring",))):
        for name in names:
            assert [found[name][1] for found in results] == pytest.approx([3 * part] * RANKS, rel=0.002), name
    for results, name in ((on_ring, "ddp"), (on_gloo, "ddp"), (on_gloo, "ddp with hook")):
        assert [found[name][1] for found in results] == pytest.approx([2 * part] * RANKS, rel=0.002), name
    # Two groups of two shard and reduce-scatter (1 or 2 halves), then two ranks all-reduce their half.
    name = "fsdp2 in two dimensions"
    assert [found[name][1] for found in on_ring] == pytest.approx([3 / 2 + 1 / 2] * RANKS, rel=0.002)
    assert [found[name][1] for found in on_gloo] == pytest.approx([4 / 2 + 1 / 2] * RANKS, rel=0.002)


# -- torch's calls ------------------------------------------------------------


def calls():
    """In a rank: what torch.distributed's functions give on the ring."""
    rank, n = dist.get_rank(), dist.get_world_size()
    own, total = torch.tensor([rank, 1.0]), n * (n - 1) / 2
    summed, averaged, later = own.clone(), own.clone(), own.clone()
    dist.all_reduce(summed)
    dist.all_reduce(averaged, op=dist.ReduceOp.AVG)
    future = dist.all_reduce(later, async_op=True).get_future()
    assert summed.tolist() == future.wait()[0].tolist() == later.tolist() == [total, n]
    assert averaged.tolist() == [total / n, 1]
    whole, rows, piece = torch.empty(2 * n), [torch.empty(2) for _ in range(n)], torch.empty(2)
    dist.all_gather_into_tensor(whole, own)
    dist.all_gather(rows, own)
    assert whole.view(n, 2).tolist() == torch.stack(rows).tolist() == [[k, 1] for k in range(n)]
    dist.reduce_scatter_tensor(piece, whole, op=dist.ReduceOp.AVG)
    assert piece.tolist() == own.tolist()
    dist.reduce_scatter(piece, rows)
    assert piece.tolist() == [n * rank, n]
    sent = own.clone()
    dist.broadcast(sent, src=n - 1)
    assert sent.tolist() == [n - 1, 1]
    reduced = own.clone()
    dist.reduce(reduced, dst=n - 1)
    assert reduced.tolist() == ([total, n] if rank == n - 1 else own.tolist())
    dist.gather(own, rows if rank == 0 else None)
    dist.scatter(piece, rows if rank == 0 else None)
    assert piece.tolist() == own.tolist()
    objects, said = [None] * n, [rank, "main"] if rank == 0 else [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    dist.broadcast_object_list(said, src=0)
    assert (objects, said) == ([{"rank": k} for k in range(n)], [0, "main"])
    dist.barrier()
    name = dist.get_backend()
    dist.destroy_process_group()
    return name


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_torch_s_collectives_run_on_the_ring(ranks):
    assert dc.launch(calls, ranks=ranks, backend="ring") == ["ring"] * ranks


def test_the_names_of_older_torch_versions_are_there():
    for old, new in {
        "_allgather_base": "all_gather_single",
        "_reduce_scatter_base": "reduce_scatter_single",
        "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
        "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    }.items():
        assert getattr(RingProcessGroup, old) is getattr(RingProcessGroup, new)


def groups_and_tensors():
    rank = dist.get_rank()
    assert type(dist.group.WORLD) is RingProcessGroup
    group = dist.new_group([2, 0])
    own = torch.full((3,), float(rank))
    if rank != 1:
        dist.all_reduce(own, group=group)
        assert dist.get_backend(group) == "ring"
    mesh = init_device_mesh("cpu", (3,))
    sharded = distribute_tensor(torch.arange(7.0), mesh, [Shard(0)])
    assert sharded.full_tensor().tolist() == list(range(7))
    assert sharded.sum().full_tensor().item() == 21
    return own.tolist()


def test_groups_and_sharded_tensors_run_on_the_ring():
    assert dc.launch(groups_and_tensors, ranks=3, backend="ring") == [[2] * 3, [1] * 3, [2] * 3]


def reduced_and_exchanged():
    """In a rank: every reduction, and all-to-alls of equal and of unequal rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found = []
    for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
        own = torch.tensor([rank + 1.0, -rank, 2.0, 3.0, 0.5])
        dist.all_reduce(own, op=op)
        piece = torch.empty(2)
        dist.reduce_scatter_tensor(piece, torch.arange(2.0 * size) * (rank + 1), op=op)
        main = torch.full((2,), rank + 2.0)
        dist.reduce(main, 1, op=op)
        found += [own, piece, main if rank == 1 else None]
    rows = torch.arange(size * 2.0) + 100 * rank
    exchanged = torch.empty(size * 2)
    dist.all_to_all_single(exchanged, rows)
    here, there = [other + rank for other in range(size)], [rank + other for other in range(size)]
    unequal = torch.empty(sum(here))
    dist.all_to_all_single(unequal, torch.arange(float(sum(there))), here, there)
    return [None if tensor is None else tensor.tolist() for tensor in (*found, exchanged, unequal)]


def exchanged_in_lists():
    """What each rank gets of an exchange of lists, which gloo of torch 2.11 has not."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found = [torch.empty(2) for _ in range(size)]
    dist.all_to_all(found, [torch.full((2,), 10.0 * rank + other) for other in range(size)])
    return [tensor.tolist() for tensor in found]


@pytest.mark.parametrize("ranks", [2, 3])
def test_in_an_exchange_of_lists_each_rank_gets_its_own_from_every_other(ranks):
    found = dc.launch(exchanged_in_lists, ranks=ranks, backend="ring")
    assert found == [[[10.0 * other + rank] * 2 for other in range(ranks)] for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_reduction_and_exchange_gives_what_gloo_gives(ranks):
    by_backend = [dc.launch(reduced_and_exchanged, ranks=ranks, backend=name) for name in ("gloo", "ring")]
    assert by_backend[0] == by_backend[1]


def unlike_sizes():
    dist.all_reduce(torch.ones(1000 * (1 + dist.get_rank())))


def unlike_collectives():
    own = torch.ones(4)
    dist.all_reduce(own) if dist.get_rank() else dist.broadcast(own, 0)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (unlike_sizes, ["all_reduce #1 of [1000] float32", "all_reduce #1 of [2000] float32"]),
        (unlike_collectives, ["rank 0 waits in broadcast #1", "rank 1 waits in all_reduce #1"]),
    ],
)
@pytest.mark.parametrize("place", ["ring", "paced"])
def test_collectives_that_differ_are_named_and_no_rank_is_aborted(function, said, place):
    on_hosts = {"cluster": dc.Cluster(hosts=2, links="paced")}
    with pytest.raises(dc.RankError) as caught:
        dc.launch(function, **(on_hosts if place == "paced" else {"ranks": 2, "backend": "ring"}))
    assert caught.value.kind == "hang"
    assert all(words in str(caught.value) for words in said), str(caught.value)


def test_one_shape_or_another_of_as_many_numbers_is_one_collective():
    def viewed():
        own = torch.ones(4) if dist.get_rank() else torch.ones(2, 2)
        dist.all_reduce(own)
        return own.sum().item()

    assert dc.launch(viewed, ranks=2, backend="ring") == [8.0, 8.0]


def what_it_lacks():
    with pytest.raises(NotImplementedError, match=r"a reduction by BAND, and can do SUM, .*links=\"kernel\""):
        dist.all_reduce(torch.ones(2, dtype=torch.int64), op=dist.ReduceOp.BAND)
    with pytest.raises(NotImplementedError, match=r"the ring backend has no recv_?anysource; .*\"gloo\""):
        dist.recv(torch.empty(2))
    with pytest.raises(
        NotImplementedError, match=r"asked to reduce by .* leave FSDP2's gradient divide factor"
    ):
        hooks.RingReduceScatter()(torch.empty(1), torch.ones(2), None, dist.ReduceOp.MAX)
    with pytest.raises(ValueError, match=r"Linear has no unit of FSDP2 .* call fully_shard on it first"):
        hooks.use_ring(nn.Linear(2, 2))
    return True


def test_what_the_ring_cannot_do_is_refused_with_the_way_out():
    assert all(dc.launch(what_it_lacks, ranks=2, backend="ring"))


def asked_from_everywhere():
    """In a rank: collectives asked for by a callback of another, without gradients, and for inference."""
    own, later = torch.ones(2), torch.ones(2)
    future = dist.all_reduce(own, async_op=True).get_future().then(lambda _: dist.all_reduce(later))
    future.wait()
    parameter = nn.Parameter(torch.ones(2) * dist.get_rank())
    with torch.no_grad():
        dist.broadcast(parameter, 1)
    with torch.inference_mode():
        inferred = torch.ones(2)
        dist.all_reduce(inferred)
    return [tensor.tolist() for tensor in (own, later, parameter, inferred)]


def test_collectives_may_be_asked_for_from_a_callback_and_in_every_mode():
    wanted = [[2, 2], [2, 2], [1, 1], [2, 2]]
    assert dc.launch(asked_from_everywhere, ranks=2, backend="ring") == [wanted] * 2


def threads_of_groups():
    def count():
        return sum(thread.name == THREAD_NAME for thread in threading.enumerate())

    found = [count()]
    group = dist.new_group([0, 1])
    for used in (None, group):
        dist.all_reduce(torch.ones(2), group=used)
        found.append(count())
    dist.destroy_process_group()
    del group, used
    gc.collect()
    assert wait_until(lambda: count() == 0)
    return found


def test_a_group_has_a_thread_from_its_first_collective_until_it_is_destroyed():
    assert dc.launch(threads_of_groups, ranks=2, backend="ring") == [[0, 1, 2]] * 2


def announced_in_a_step():
    heard = []
    module = DistributedDataParallel(nn.Linear(3, 2))
    with listen(
        lambda collective, dtype, ranks, num_bytes, unit: heard.append((collective, num_bytes, unit))
    ):
        module(torch.ones(1, 3)).sum().backward()
        dist.broadcast(torch.ones(3), 0)
        dist.barrier()
    return heard


def test_a_listener_hears_what_torch_does_on_the_ring():
    wanted = [("all_reduce", 32, ""), ("broadcast", 12, ""), ("barrier", 0, "")]
    assert dc.launch(announced_in_a_step, ranks=2, backend="ring", everything=True) == [wanted] * 2


# -- asking for it ------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"backend": "rings"}, r"no backend is called 'rings'; there is gloo, nccl, ring, staged, or None"),
        ({"backend": "ring", "device": "cuda"}, r"backend='ring' joins ranks on 'cpu', and device='cuda'"),
        ({"backend": "nccl", "device": "cpu"}, r"backend='nccl' joins ranks on 'cuda', and device='cpu'"),
    ],
)
def test_a_backend_that_cannot_be_is_refused_before_a_rank_starts(asked, words):
    with pytest.raises(ValueError, match=words):
        dc.launch(calls, ranks=2, **asked)


def test_the_backend_is_gloo_on_cpu_unless_another_is_asked_for():
    assert dc.launch(dist.get_backend, ranks=1, device="cpu") == ["gloo"]
    assert dc.launch(dist.get_backend, ranks=1, backend="gloo") == ["gloo"]


def one_too_few():
    if dist.get_rank() == 0:
        ring.all_reduce(torch.ones(4))


def test_a_rank_that_waits_in_the_ring_for_ever_is_ended_with_its_stack():
    with pytest.raises(dc.RankError, match="rank 0") as caught:
        dc.launch(one_too_few, ranks=2, backend="ring", deadline_seconds=5)
    assert "one_too_few" in str(caught.value)
