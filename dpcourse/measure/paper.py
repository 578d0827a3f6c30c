"""Real code without numbers: tensors that have sizes and no contents, and ranks that are not there.

torch's FakeTensorMode carries out each operation on shapes alone, and its fake process group answers every
collective at once. Strategies, FSDP and optimizers run as they are; nothing is computed, sent or held. It is
for a process of its own: what is changed here stays changed until the process ends.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

_FEW_PIECES = 16  # a model's own chunk(3) stays torch's own
# Operations that change numbers in place, and neither a size nor a storage: without numbers, nothing to do.
_CHANGES_NUMBERS = {
    "add_", "addcdiv_", "addcmul_", "clamp_", "copy_", "div_", "fill_", "lerp_", "mul_", "neg_", "normal_",
    "sqrt_", "sub_", "uniform_", "zero_",
}  # fmt: skip


@contextmanager
def on_paper(rank: int, world_size: int) -> Iterator[FakeTensorMode]:
    """Be one rank of many that are not there: what is made inside has no contents."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    torch.chunk = torch.Tensor.chunk = _chunk_of(torch.chunk)  # type: ignore[method-assign, assignment]
    shortcuts = Shortcuts()
    with FakeTensorMode() as mode, shortcuts:
        yield mode


class Shortcuts(TorchDispatchMode):
    """Leaves out work whose result is known, so that a model of 70B takes seconds and not minutes."""

    def __init__(self) -> None:
        super().__init__()
        self._number = torch.empty(1)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and func._opname in _CHANGES_NUMBERS and args[0].dim():
            return args[0]  # torch follows single numbers, such as Adam's count of steps, and needs them
        if func.namespace == "c10d" and func._opname == "allgather_":
            return self._gather_list(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _gather_list(self, func: Any, args: tuple, kwargs: Any) -> Any:
        """Answer FSDP1's gather into a list of one tensor a rank: thousands that are all alike."""
        with unset_fake_temporarily():
            _, work = func([[self._number]], [self._number], *args[2:], **kwargs)
        return args[0], work


def _chunk_of(chunk: Callable) -> Callable:
    """Give a chunk() whose pieces of one size are one and the same view of the first of them.

    FSDP cuts each parameter into a piece for every rank, looks at two of them, and drops the rest: thousands
    of views, each a millisecond under FakeTensorMode.
    """

    def pieces(input: torch.Tensor, chunks: int, dim: int = 0) -> tuple[torch.Tensor, ...]:
        is_recorded = torch.is_grad_enabled() and input.requires_grad and not input.is_leaf
        length = input.shape[dim]
        if chunks < _FEW_PIECES or is_recorded or not length:
            return chunk(input, chunks, dim)
        size = -(-length // chunks)
        num_whole, rest = divmod(length, size)
        whole = (input.narrow(dim, 0, size),) * num_whole
        return (*whole, input.narrow(dim, length - rest, rest)) if rest else whole

    return pieces
