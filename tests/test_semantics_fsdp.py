"""Golden values of sharding on real ranks: gathers and reductions a unit, hybrid meshes, accumulation."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dpcourse as dc
from dpcourse.measure.wire import WireCounter
from dpcourse.strategies.sanity import check_hybrid_mesh
from dpcourse.theory import zero
from tests.collectives import asked_in

torch.set_num_threads(1)  # other tests run beside these


def three_units() -> nn.Sequential:
    """Two layers that become units, and one that stays with the root: a unit of its own."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))


def sharded(mesh, root=None, **options) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    model = three_units()
    for layer in model[1:]:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **(options if root is None else root))


def batch() -> torch.Tensor:
    return torch.full((2, 8), dist.get_rank() + 1.0)


# -- gathers and reductions a unit --------------------------------------------


def collectives_of_a_step() -> list[dict[str, int]]:
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    found = []
    for options, root in (
        ({"reshard_after_forward": True}, {}),  # the root's own default is None
        ({"reshard_after_forward": False}, None),
        ({"reshard_after_forward": True}, None),
    ):
        model = sharded(mesh, root, **options)
        model(batch()).sum().backward()
        found.append(asked_in(lambda model=model: model(batch()).sum().backward()))
    return found


def test_full_sharding_gathers_a_unit_twice_and_reduces_once_but_the_root_is_gathered_once_unless_told():
    full, kept, also_root = dc.launch(collectives_of_a_step, everything=True)[0]
    num_units = 3
    assert full == {"all_gather": 2 * num_units - 1, "reduce_scatter": num_units}
    assert kept == {"all_gather": num_units, "reduce_scatter": num_units}
    assert also_root == {"all_gather": 2 * num_units, "reduce_scatter": num_units}


# -- hybrid --------------------------------------------------------------------


def mesh_of(shape: tuple[int, ...]):
    names = ("replicas", "shards")[-len(shape) :]
    return dist.device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)


def hybrid_with_fsdp2(shape: tuple[int, ...]) -> dict:
    model = sharded(mesh_of(shape))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts = asked_in(lambda: model(batch()).sum().backward())
    optimizer.step()
    share = sum(p.to_local().numel() for p in model.parameters()) / (3 * 72)
    weights = torch.cat([p.full_tensor().flatten() for p in model.parameters()])
    return {"counts": counts, "share": share, "weights": weights.tolist()}


def hybrid_with_fsdp1(shape: tuple[int, ...]) -> dict:
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

    model = FullyShardedDataParallel(
        three_units(),
        device_mesh=mesh_of(shape),
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wire = WireCounter()
    model(batch()).sum().backward()
    sent = wire.sent_since_last()
    optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        weights = torch.cat([p.flatten() for p in model.parameters()]).tolist()
    return {"sent": sent, "weights": weights}


def all_meshes() -> dict:
    found = {("fsdp2", shape): hybrid_with_fsdp2(shape) for shape in ((4,), (2, 2), (4, 1), (1, 4))}
    return found | {("fsdp1", shape): hybrid_with_fsdp1(shape) for shape in ((2, 2), (4, 1))}


@pytest.fixture(scope="module")
def meshes() -> list[dict]:
    return dc.launch(all_meshes, ranks=4, everything=True)


def is_one_model(meshes, system, shape) -> bool:
    first, *others = [torch.tensor(rank[system, shape]["weights"]) for rank in meshes]
    return all(torch.allclose(first, other, rtol=1e-6, atol=1e-6) for other in others)


@pytest.mark.parametrize(
    ("shape", "share", "counts"),
    [
        ((4,), 1 / 4, {"all_gather": 5, "reduce_scatter": 3}),
        ((2, 2), 1 / 2, {"all_gather": 5, "reduce_scatter": 3, "all_reduce": 3}),
        ((4, 1), 1, {"all_reduce": 3}),
        ((1, 4), 1 / 4, {"all_gather": 5, "reduce_scatter": 3, "all_reduce": 3}),  # of groups of one
    ],
)
def test_fsdp2_shards_over_the_second_axis_and_averages_over_the_first(meshes, shape, share, counts):
    for rank in meshes:
        assert rank["fsdp2", shape]["counts"] == counts
        assert rank["fsdp2", shape]["share"] == share
    assert is_one_model(meshes, "fsdp2", shape)


def test_all_meshes_of_fsdp2_train_the_same_model(meshes):
    full = torch.tensor(meshes[0]["fsdp2", (4,)]["weights"])
    for shape in ((2, 2), (4, 1), (1, 4)):
        found = torch.tensor(meshes[0]["fsdp2", shape]["weights"])
        torch.testing.assert_close(found, full, rtol=1e-6, atol=1e-6)


def test_fsdp1_with_shard_groups_of_one_sends_nothing_and_its_replicas_drift_apart(meshes):
    assert is_one_model(meshes, "fsdp1", (2, 2))
    assert all(rank["fsdp1", (2, 2)]["sent"] != 0 for rank in meshes)
    assert not is_one_model(meshes, "fsdp1", (4, 1))
    assert all(rank["fsdp1", (4, 1)]["sent"] in (0, None) for rank in meshes)  # None: no kernel count here


def test_that_mesh_is_refused_for_fsdp1_and_a_mesh_of_one_axis_for_both():
    with pytest.raises(ValueError, match=r'replicas drift apart; take "ddp", or "fsdp2" with the same mesh'):
        check_hybrid_mesh((4, 1), "fsdp1")
    for system in ("fsdp1", "fsdp2"):
        with pytest.raises(ValueError, match=r"mesh of \(4,\), which has 1 axis and needs two"):
            check_hybrid_mesh((4,), system)
        for shape in ((2, 2), (1, 4), (1, 1)):
            check_hybrid_mesh(shape, system)
    check_hybrid_mesh((4, 1), "fsdp2")


# -- accumulation with synchronisation off ---------------------------------------


def test_26_billion_bf16_gradients_on_16_ranks_stay_whole_without_synchronisation_52_gb_for_3_25():
    assert zero.accumulated_gradient_bytes(26e9, 2, 16, is_synchronised=False) == 52e9
    assert zero.accumulated_gradient_bytes(26e9, 2, 16, is_synchronised=True) == 3.25e9


def held_gradient_bytes(model: nn.Module) -> int:
    """Bytes of the gradients that this rank holds: shards, and whole ones on the gathered parameters."""
    shards = [p.grad.to_local() for p in model.parameters() if p.grad is not None]
    model.unshard()
    for layer in model:
        layer.unshard()
    whole = [p.grad for p in model.parameters() if p.grad is not None]
    num_bytes = sum(gradient.untyped_storage().nbytes() for gradient in [*shards, *whole])
    for layer in model:
        layer.reshard()
    model.reshard()
    return num_bytes


def accumulated() -> list[tuple[int, torch.Tensor]]:
    """Without and with synchronisation: bytes held between two micro-batches, and the gradient in the end."""
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(3)]).bfloat16()
    for layer in model:
        nn.init.eye_(layer.weight)  # gradients are small whole numbers, which bf16 adds without rounding
        fully_shard(layer)
    fully_shard(model)
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = torch.randint(3, (2, 4, 64), generator=generator).bfloat16()
    found = []
    for is_synchronised in (False, True):
        model.zero_grad()
        model.set_requires_gradient_sync(is_synchronised)
        model(batches[0]).sum().backward()
        held = held_gradient_bytes(model)
        model.set_requires_gradient_sync(True)
        model(batches[1]).sum().backward()
        found.append((held, torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])))
    return found


def test_without_synchronisation_a_rank_holds_whole_gradients_and_has_the_same_in_the_end():
    num_params, world_size = 3 * 64 * 64, 4
    for without, with_synchronisation in dc.launch(accumulated, ranks=world_size, everything=True):
        for (held, _), is_synchronised in ((without, False), (with_synchronisation, True)):
            assert held == zero.accumulated_gradient_bytes(num_params, 2, world_size, is_synchronised)
        assert torch.equal(without[1], with_synchronisation[1])
        assert without[1].count_nonzero() == num_params
