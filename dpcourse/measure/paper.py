"""Real code without numbers: tensors that have sizes and no contents, and ranks that are not there.

torch's FakeTensorMode carries out each operation on shapes alone, and its fake process group answers every
collective at once. Strategies, FSDP and optimizers run as they are; nothing is computed, sent or held. It is
for a process of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

_FEW_PIECES = 16  # a model's own chunk(3) stays torch's own
# Operations that change numbers in place, and neither a size nor a storage: without numbers, nothing to do.
_CHANGES_NUMBERS = {
    "add_", "addcdiv_", "addcmul_", "clamp_", "copy_", "div_", "fill_", "lerp_", "mul_", "neg_", "normal_",
    "sqrt_", "sub_", "uniform_", "zero_",
}  # fmt: skip
_PROPAGATE = "_propagate_tensor_meta_non_cached"
_chunk, _new_empty, _address = torch.chunk, torch.Tensor.new_empty, torch.UntypedStorage.data_ptr


@contextmanager
def on_paper(rank: int, world_size: int) -> Iterator[FakeTensorMode]:
    """Be one rank of many that are not there: what is made inside has no contents."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    nothing: dict[torch.dtype, torch.Tensor] = {}

    def new_empty(like: torch.Tensor, *size: Any, **keywords: Any) -> torch.Tensor:
        """Give one empty tensor for all: FSDP2 makes one for each rank that has no row of a parameter."""
        if size != (0,) or keywords:
            return _new_empty(like, *size, **keywords)
        if like.dtype not in nothing:
            nothing[like.dtype] = _new_empty(like, 0)
        return nothing[like.dtype]

    with ExitStack() as stack:
        for owner, name, ours in (
            (torch, "chunk", pieces),
            (torch.Tensor, "chunk", pieces),
            (torch.Tensor, "new_empty", new_empty),
            (torch.UntypedStorage, "data_ptr", address),
            (ShardingPropagator, _PROPAGATE, _out_of_sight(getattr(ShardingPropagator, _PROPAGATE))),
        ):
            stack.enter_context(patch.object(owner, name, ours))
        yield stack.enter_context(FakeTensorMode())


class Shortcuts(TorchDispatchMode):
    """Leaves out work whose result is known, so that a model of 70B takes seconds and not minutes.

    It goes on after a ledger, which then need not look at what makes no storage, and before a meter of calls.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and func._opname in _CHANGES_NUMBERS and args[0].dim():
            return args[0]  # torch follows single numbers, such as Adam's count of steps, and needs them
        if func.namespace == "c10d" and func._opname == "allgather_":
            return _gather_list(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _gather_list(func: Any, args: tuple, kwargs: Any) -> Any:
    """Answer FSDP1's gather into a list of one tensor a rank: thousands that are all alike."""
    with _disable_current_modes():  # a number that no ledger sees
        number = torch.empty(1)
        _, work = func([[number]], [number], *args[2:], **kwargs)
    return args[0], work


def pieces(input: torch.Tensor, chunks: int, dim: int = 0) -> tuple[torch.Tensor, ...]:
    """Stand for torch.chunk: pieces of one size are one and the same view of the first of them.

    FSDP cuts each parameter into a piece for every rank, looks at two of them, and drops the rest: thousands
    of views, each a millisecond under FakeTensorMode.
    """
    is_recorded = torch.is_grad_enabled() and input.requires_grad and not input.is_leaf
    length = input.shape[dim]
    if chunks < _FEW_PIECES or is_recorded or not length:
        return _chunk(input, chunks, dim)
    size = -(-length // chunks)
    num_whole, rest = divmod(length, size)
    whole = (input.narrow(dim, 0, size),) * num_whole
    return (*whole, input.narrow(dim, length - rest, rest)) if rest else whole


def _out_of_sight(propagate: Callable) -> Callable:
    """Let DTensor find a result's whole shape, by fake tensors of its own, where no ledger sees them."""

    def quietly(*args: Any, **keywords: Any) -> Any:
        with _disable_current_modes():
            return propagate(*args, **keywords)

    return quietly


def address(storage: torch.UntypedStorage) -> int:
    """Stand for UntypedStorage.data_ptr: FSDP1 tells by it whether two tensors share a storage.

    Without contents there is no address: where the storage's own record lies stands for one.
    """
    if storage.device.type != "meta":
        return _address(storage)
    return storage._cdata if storage.nbytes() else 0
