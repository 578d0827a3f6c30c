"""The backend "ring": the ring of dpcourse.scratch under PyTorch's own systems, in place of gloo or NCCL.

Importing this file registers it, and `dc.launch(..., backend="ring")` does. DDP, FSDP, ZeRO and DTensor then
call the methods below. They need gloo only to carry a message from one rank to another, so that a
reduce-scatter costs what the formula says, (n - 1)/n, where gloo's own costs twice that.

Every collective is over when the call returns: DDP's buckets are not hidden behind its backward pass.
"""

# torch's stubs describe the C++ class, whose overloads no Python method can have.
# mypy: disable-error-code="override, assignment, call-arg, attr-defined"

import datetime
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed.distributed_c10d import _world

from dpcourse.scratch import ring, star
from dpcourse.scratch.announce import announced

NAME = "ring"
Tensors = list[torch.Tensor]


class RingProcessGroup(dist.ProcessGroup):
    """A process group that moves everything round a ring (to and from one rank: through a star).

    It sums and averages; another reduction, or an all-to-all, raises NotImplementedError. Names in pairs are
    those of torch 2.11 and of 2.13.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> None:
        super().__init__(rank, size)
        self._carrier = dist.ProcessGroupGloo(store, rank, size, timeout)

    @property
    def pg_name(self) -> str:
        return _world.pg_names[self]

    @property
    def group_name(self) -> str:
        return self.pg_name

    def getBackendName(self) -> str:
        return NAME

    # -- messages: what the ring is made of --------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        return self._carrier.send(tensors, dst, tag)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        return self._carrier.recv(tensors, src, tag)

    # -- collectives -------------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        divisor = self._divisor(opts)
        for tensor in tensors:
            ring.all_reduce(tensor, self)
            _divide(tensor, divisor)
        return _done(tensors)

    allreduce_coalesced = allreduce

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        piece = ring.reduce_scatter(input, self)
        _divide(piece, self._divisor(opts))
        output.copy_(piece.view_as(output))
        return _done([output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        for output, input in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, input, opts)
        return _done(outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> dist.Work:
        for output, pieces in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, torch.cat([piece.flatten() for piece in pieces]), opts)
        return _done(outputs)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        ring.all_gather_into(output, input, self)
        return _done([output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        for output, input in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, input)
        return _done(outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        for pieces, input in zip(outputs, inputs, strict=True):
            gathered = ring.all_gather(input, self).chunk(self.size())
            for piece, found in zip(pieces, gathered, strict=True):
                piece.copy_(found.view_as(piece))
        return _done([piece for pieces in outputs for piece in pieces])

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        for tensor in tensors:
            ring.broadcast(tensor, opts.rootRank, self)
        return _done(tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        divisor = self._divisor(opts)
        for tensor in tensors:
            star.reduce(tensor, opts.rootRank, self)
            _divide(tensor, divisor if self.rank() == opts.rootRank else 1)
        return _done(tensors)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        star.gather(inputs[0], outputs[0] if outputs else None, opts.rootRank, self)
        return _done([])

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> dist.Work:
        star.scatter(outputs[0], inputs[0] if inputs else None, opts.rootRank, self)
        return _done(outputs)

    def barrier(self, opts: Any = None) -> dist.Work:
        with announced("barrier", 0, self):
            ring.all_reduce(torch.zeros(1), self)
        return _done([])

    def _divisor(self, opts: Any) -> int:
        """By what a sum is to be divided for the reduction that is asked for."""
        asked = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        if asked == dist.ReduceOp.SUM:
            return 1
        if asked == dist.ReduceOp.AVG:
            return self.size()
        name = str(getattr(asked, "op", asked)).rpartition(".")[2]
        raise NotImplementedError(
            f"the ring backend was asked for a reduction by {name}, and can do SUM and AVG; "
            'use one of them, or launch with backend="gloo"'
        )


def _divide(tensor: torch.Tensor, divisor: int) -> None:
    if divisor != 1:
        tensor.div_(divisor)


def _done(tensors: Tensors) -> dist.Work:
    """Give the work of a collective that is over; DDP takes its result from the future."""
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(tensors)
    return _create_work_from_future(future)


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(
            f"the ring backend has no {name}: its messages go to a neighbour, or to and from one rank; "
            'launch with backend="gloo" for it'
        )

    return refuse


for _name in ("alltoall", "alltoall_base", "all_to_all_single", "allgather_coalesced", "recv_anysource"):
    setattr(RingProcessGroup, _name, _refusal(_name))

dist.Backend.register_backend(NAME, RingProcessGroup, devices=["cpu"])
