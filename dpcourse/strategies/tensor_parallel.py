"""Tensor parallelism on a second axis of the mesh: each rank computes some heads and some hidden numbers.

Of each block of the course's GPT the first matrix of a pair is cut by its outputs and the second by its
inputs, so that one all-reduce after each pair makes the stream whole again, and one in backward its gradient.
The rest of the model is on every rank of a tensor-parallel group; FSDP2 shards all of it on the other axis.
Source: Shoeybi et al., Megatron-LM, 2019, section 3; torch/distributed/tensor/parallel (2.13).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpcourse.layout import DTYPE_BYTES, Parameter
from dpcourse.ledger import Transfer
from dpcourse.strategies.base import Setting
from dpcourse.strategies.common import transfer

if TYPE_CHECKING:
    from torch import Tensor, nn

_QKV = "queries_keys_values"
CUT_BY_OUTPUTS, CUT_BY_INPUTS = (_QKV, "expand"), ("projection", "contract")
_TOKEN_BYTES = 8


def check_tensor_parallel(setting: Setting) -> None:
    """Refuse a number that does not divide, and a model without the blocks that can be cut."""
    num_parts = setting.options.tensor_parallel
    if num_parts < 1 or setting.world_size % num_parts:
        raise ValueError(
            f"tensor_parallel={num_parts} does not divide {setting.world_size} ranks; give a number from 1 "
            "on that does"
        )
    if num_parts == 1:
        return
    if setting.options.mesh is not None:
        raise ValueError(
            f"tensor_parallel={num_parts} makes a mesh of its own, and mesh={tuple(setting.options.mesh)} "
            "was given; leave one of the two out"
        )
    if setting.heads is None:
        raise ValueError(
            f"tensor_parallel={num_parts} cuts the blocks of the course's GPT, and this model is none; take "
            'model="gpt-small", "gpt-7b", "gpt-70b" or a GptSmall(...) of your own sizes'
        )
    if setting.heads % num_parts:
        raise ValueError(
            f"tensor_parallel={num_parts} does not divide the model's {setting.heads} heads, of which each "
            "rank computes as many; give a number that does"
        )


def tensor_group(setting: Setting, rank: int) -> tuple[int, ...]:
    """The ranks that share each matrix: neighbours, as those of one host."""
    num_parts = setting.options.tensor_parallel
    first = rank - rank % num_parts
    return tuple(range(first, first + num_parts))


def setting_of_shards(setting: Setting) -> Setting:
    """What FSDP2 is asked to do on its axis: a model of cut matrices, on as many ranks as there are groups.

    What autograd keeps of a model that is cut is not predicted.
    """
    parameters = tuple(_cut(parameter, setting) for parameter in setting.layout.parameters)
    return replace(
        setting,
        layout=replace(setting.layout, parameters=parameters),
        world_size=setting.num_shares,
        options=replace(setting.options, tensor_parallel=1),
        activation_bytes=None,
    )


def _cut(parameter: Parameter, setting: Setting) -> Parameter:
    num_parts, (module, _, kind) = setting.options.tensor_parallel, parameter.name.rpartition(".")
    layer = module.rpartition(".")[2]
    if layer in CUT_BY_OUTPUTS:
        return replace(parameter, shape=(parameter.shape[0] // num_parts, *parameter.shape[1:]))
    if layer in CUT_BY_INPUTS and kind == "weight":
        return replace(parameter, shape=(parameter.shape[0], parameter.shape[1] // num_parts))
    return parameter


def on_all_ranks(setting: Setting, transfers: Iterator[Transfer], rank: int) -> Iterator[Transfer]:
    """Give what FSDP2 moves on its axis the ranks that it has among all: every num_parts-th."""
    num_parts = setting.options.tensor_parallel
    for item in transfers:
        group = tuple(member * num_parts + rank % num_parts for member in item.group)
        yield replace(item, group=group, rank=rank)


def all_reduces(setting: Setting, rank: int) -> Iterator[Transfer]:
    """Two all-reduces of the stream a block in forward, two of its gradient in backward.

    A block that is computed once more in backward reduces the first again; its second is needed by nobody.
    """
    blocks = dict.fromkeys(p.unit for p in setting.layout.parameters if f".{_QKV}." in p.name)
    width = next(p.shape[0] for p in setting.layout.parameters if p.name.endswith("projection.weight"))
    num_bytes = setting.input_bytes // _TOKEN_BYTES * width * DTYPE_BYTES[setting.recipe.computed_dtype]
    for phase, count in (("forward", 2), ("backward", 2 + setting.is_checkpointed)):
        for block in blocks if phase == "forward" else reversed(blocks):
            for _ in range(count):
                yield transfer(
                    setting, "all_reduce", block, num_bytes, phase, rank, tensor_group(setting, rank)
                )


# -- in each rank


def cut_blocks(module: "nn.Module", num_parts: int, mesh: Any) -> None:
    """Cut the blocks' matrices in place; all ranks have the same weights, so that nothing is sent."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    styles = dict.fromkeys(CUT_BY_OUTPUTS, ColwiseParallel) | dict.fromkeys(CUT_BY_INPUTS, RowwiseParallel)
    for block in module.blocks:  # type: ignore[union-attr]
        layer = getattr(block, _QKV)
        for tensor in (layer.weight, layer.bias):
            tensor.data = by_rank(tensor.data, num_parts)
        block.heads //= num_parts  # type: ignore[operator, assignment, union-attr]
        plan: dict[str, Any] = {name: style() for name, style in styles.items()}
        parallelize_module(block, mesh, plan, src_data_rank=None)  # type: ignore[arg-type]


def by_rank(rows: "Tensor", num_parts: int) -> "Tensor":
    """Put rows of all queries, then keys, then values into an order in which a rank's own lie together."""
    return rows.unflatten(0, (3, num_parts, -1)).transpose(0, 1).flatten(0, 2).contiguous()


def by_kind(name: str, rows: "Tensor", num_parts: int) -> "Tensor":
    """Undo `by_rank` for a whole parameter, where it was done."""
    if f".{_QKV}." not in name:
        return rows
    return rows.unflatten(0, (num_parts, 3, -1)).transpose(0, 1).flatten(0, 2)
