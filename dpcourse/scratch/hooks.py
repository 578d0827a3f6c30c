"""The ring inside PyTorch's own systems, where they take a part from outside: a hook of DDP, two of FSDP2.

Everything else stays theirs, and gloo or NCCL still carries the messages.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dpcourse.scratch import ring


def ring_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over the ring: `ddp.register_comm_hook(None, ring_hook)`.

    state: the process group; None for all ranks. Divides before it adds, as DDP does, so that half-precision
    sums do not overflow. The future is complete when it is returned: nothing is hidden.
    """
    gradients = bucket.buffer().div_(dist.get_world_size(state))
    ring.all_reduce(gradients, state, unit=f"bucket {bucket.index()}")
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(gradients)
    return future


def bf16_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket in bf16: half the bytes on the wire, and 8 bits of each gradient.

    Torch's own bf16_compress_hook does the same and refuses ranks on CPUs.
    """
    gradients = bucket.buffer()
    compressed = gradients.bfloat16().div_(dist.get_world_size(state))
    work = dist.all_reduce(compressed, group=state, async_op=True)
    return work.get_future().then(lambda future: gradients.copy_(future.value()[0]))


def use_ring(module: nn.Module) -> None:
    """Have every FSDP2 unit in a module gather its parameters and reduce its gradients over the ring."""
    units: list[Any] = [unit for unit in module.modules() if hasattr(unit, "set_custom_reduce_scatter")]
    if not units:
        raise ValueError(
            f"{type(module).__name__} has no unit of FSDP2 that takes a reduce-scatter from outside; call "
            "fully_shard on it first"
        )
    for unit in units:
        unit.set_custom_reduce_scatter(RingReduceScatter())
        unit.set_custom_all_gather(RingAllGather())


class _Buffers:
    """FSDP2 asks here for the memory it gathers into and reduces from."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class RingAllGather(_Buffers):
    """What FSDP2's set_custom_all_gather takes: (output_tensor, input_tensor, group)."""

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> None:
        ring.all_gather_into(output_tensor, input_tensor, group)


class RingReduceScatter(_Buffers):
    """What FSDP2's set_custom_reduce_scatter takes: (output_tensor, input_tensor, group, op)."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any,
        async_op: bool = False,
    ) -> None:
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise NotImplementedError(
                f"the ring was asked to reduce by {op}, and can do SUM and AVG; "
                "leave FSDP2's gradient divide factor as it is"
            )
        output_tensor.copy_(ring.reduce_scatter(input_tensor, group))
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(dist.get_world_size(group))
