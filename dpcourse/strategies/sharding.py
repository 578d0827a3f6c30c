"""What sharding strategies share: ranks in a mesh, a rank's rows of a parameter, a step's collectives."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Any

from dpcourse.layout import DTYPE_BYTES, Parameter
from dpcourse.ledger import Transfer
from dpcourse.strategies.base import Setting
from dpcourse.strategies.common import transfer
from dpcourse.strategies.sanity import check_hybrid_mesh
from dpcourse.units import ROOT


@dataclass(frozen=True)
class Mesh:
    """Ranks in rows: those of a row share one copy of the model, those of a column hold the same shard of it.

    On 4 ranks, (2, 2) has the rows 0 1 and 2 3. Full sharding is one row.
    """

    num_replicas: int
    num_shards: int

    def shard_group(self, rank: int) -> tuple[int, ...]:
        first = rank - self.place(rank)
        return tuple(range(first, first + self.num_shards))

    def replica_group(self, rank: int) -> tuple[int, ...]:
        return tuple(range(self.place(rank), self.num_replicas * self.num_shards, self.num_shards))

    def place(self, rank: int) -> int:
        """Tell which shard a rank has."""
        return rank % self.num_shards


def mesh_of(shape: Sequence[int] | None, world_size: int) -> Mesh:
    """Read a mesh from what was asked for: (replicas, ranks of a shard group); None shards over all ranks."""
    return Mesh(1, world_size) if shape is None else Mesh(*shape)


def check_mesh(shape: Sequence[int] | None, world_size: int, system: str) -> None:
    """Refuse, with ValueError, a mesh that is not hybrid, or that has not one place for each rank."""
    if shape is None:
        return
    check_hybrid_mesh(shape, system)
    if prod(shape) != world_size or min(shape) < 1:
        raise ValueError(
            f"mesh={tuple(shape)} has {prod(shape)} places for {world_size} ranks; give (replicas, ranks "
            f"that share one) with the product {world_size}, or leave mesh out to shard over all"
        )


# -- formats


def check_reduce_dtype(setting: Setting) -> None:
    """Refuse a format for reductions where gradients are reduced in their own."""
    asked = setting.options.reduce_dtype
    if asked is not None and setting.recipe.gather_dtype is None:
        raise ValueError(
            f"reduce_dtype={asked!r} goes with recipe='fsdp-mixed', and {setting.recipe.name!r} reduces "
            "gradients in their own format; leave it out"
        )


def torch_dtype(name: str | None) -> Any:
    """Give torch's format of this name; None for none."""
    import torch

    return None if name is None else getattr(torch, name)


def device_mesh(device: str, shape: Sequence[int], names: tuple[str, ...] | None = None) -> Any:
    """Make a mesh; in a dry run too its table of ranks is made of real numbers, which are read."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.distributed.device_mesh import init_device_mesh

    with unset_fake_temporarily():
        return init_device_mesh(device, tuple(shape), mesh_dim_names=names)


# -- rows: fully_shard cuts each parameter along its first axis


def padded_shard_bytes(parameter: Parameter, num_shards: int) -> int:
    """Count what a rank's storage of a shard takes: as many rows as the largest shard, whoever it is.

    6 rows on 4 ranks are cut as torch.chunk cuts them, into 2, 2, 2 and 0, and take the room of 2 everywhere.
    """
    return _rows_bytes(parameter, ceil(parameter.shape[0] / num_shards))


def shard_of(parameter: Parameter, num_shards: int, place: int) -> Parameter:
    """Give a rank's rows of a parameter, without padding, as a parameter of their own."""
    rows = ceil(parameter.shape[0] / num_shards)
    mine = min(rows, max(0, parameter.shape[0] - rows * place))
    return replace(parameter, shape=(mine, *parameter.shape[1:]))


def _rows_bytes(parameter: Parameter, num_rows: int) -> int:
    return num_rows * prod(parameter.shape[1:]) * DTYPE_BYTES[parameter.dtype]


# -- a step


@dataclass(frozen=True)
class UnitBytes:
    """What moves for one unit: its all-gather's result and its reduce-scatter's input (0: nothing trained).

    is_resharded: its whole parameters are freed after forward, and gathered again in backward.
    """

    name: str
    gathered_bytes: int
    reduced_bytes: int
    is_resharded: bool


def step_transfers(setting: Setting, mesh: Mesh, units: Sequence[UnitBytes], rank: int) -> Iterator[Transfer]:
    """List a step's collectives for units in the order of forward, the root first.

    Backward goes through them the other way round, and gathers the next unit before it reduces one; the
    root is gathered first and reduced last. With replicas, the shards of gradients are averaged over them.
    A group of one is no traffic.
    """
    shards, replicas = mesh.shard_group(rank), mesh.replica_group(rank)

    def gather(unit: UnitBytes, phase: str) -> Iterator[Transfer]:
        if len(shards) > 1:
            yield transfer(setting, "all_gather", unit.name, unit.gathered_bytes, phase, rank, shards)

    def reduce(unit: UnitBytes) -> Iterator[Transfer]:
        if unit.reduced_bytes and len(shards) > 1:
            yield transfer(setting, "reduce_scatter", unit.name, unit.reduced_bytes, "backward", rank, shards)
        if unit.reduced_bytes and len(replicas) > 1:
            num_bytes = unit.reduced_bytes // len(shards)
            yield transfer(setting, "all_reduce", unit.name, num_bytes, "backward", rank, replicas)

    for unit in units:
        yield from gather(unit, "forward")
    root = [unit for unit in units if unit.name == ROOT]
    inner = [unit for unit in reversed(units) if unit.name != ROOT]
    for unit in _resharded([*root, *inner[:1]]):
        yield from gather(unit, "backward")
    for index, unit in enumerate(inner):
        for following in _resharded(inner[index + 1 : index + 2]):
            yield from gather(following, "backward")
        yield from reduce(unit)
    for unit in root:
        yield from reduce(unit)


def _resharded(units: Iterable[UnitBytes]) -> list[UnitBytes]:
    return [unit for unit in units if unit.is_resharded]
