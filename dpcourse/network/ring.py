"""The backend "ring": the ring of dpcourse.scratch under PyTorch's own systems, in place of gloo or NCCL.

Importing this file registers it, and `dc.launch(..., backend="ring")` does. DDP, FSDP, ZeRO and DTensor then
call the methods below. They need gloo only to carry a message from one rank to another, so that a
reduce-scatter costs what the formula says, (n - 1)/n, where gloo's own costs twice that.

Collectives go on while the rank computes, one after another on a thread of the group's own, so that DDP's
buckets are hidden behind its backward pass as on gloo.
"""

# torch's stubs describe the C++ class, whose overloads no Python method can have.
# mypy: disable-error-code="override, assignment, call-arg, attr-defined"

import itertools
import zlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dpcourse.network.own_group import OwnProcessGroup, Tensors, refusal
from dpcourse.ranks import witness
from dpcourse.scratch import ring, star
from dpcourse.scratch.announce import announced, tell
from dpcourse.scratch.messages import start

NAME = "ring"
_COLLECTIVES = 1 << 30  # added to the tags of messages that collectives are made of: a rank's own are below
_ALIKE = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")  # all ranks give as much
COMBINE: dict[str, Callable[..., Any]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}
ELSEWHERE = 'launch with backend="gloo" (on emulated hosts with links="kernel")'


class RingProcessGroup(OwnProcessGroup):
    """A process group that moves everything round a ring (to and from one rank: through a star).

    A reduction other than those of COMBINE and the mean raises NotImplementedError. Names in pairs are
    those of torch 2.11 and of 2.13.
    """

    backend_name = NAME

    def __init__(self, options: Any) -> None:
        """Join a group; options: what torch gives a backend of the extended kind."""
        super().__init__(options)
        self._under_way = 0  # which collective, as a number that its messages bear
        self._call_numbers = itertools.count(1)

    # -- messages: what the ring is made of --------------------------------------------------------------

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        return self._carrier.send(tensors, dst, self._tag(tag))

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        return self._carrier.recv(tensors, src, self._tag(tag))

    def _tag(self, tag: int) -> int:
        """Keep the messages of collectives apart from those that the rank sends meanwhile, and from a peer's
        other collective: what never matches is a hang, and is named, where gloo would end the process.
        """
        return tag + _COLLECTIVES + self._under_way if self._in_order.is_here() else tag

    # -- collectives -------------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        combine, divisor = self._reduction(opts)
        for tensor in tensors:
            self._tell("all_reduce", tensor.nbytes, tensor)

        def carry_out() -> None:
            for tensor in tensors:
                ring.all_reduce(tensor, self, combine=combine)
                _divide(tensor, divisor)

        return self._start("all_reduce", tensors, carry_out, tensors)

    allreduce_coalesced = allreduce

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        combine, divisor = self._reduction(opts)
        for input in inputs:
            self._tell("reduce_scatter", input.nbytes, input)

        def carry_out() -> None:
            for output, input in zip(outputs, inputs, strict=True):
                piece = ring.reduce_scatter(input, self, combine=combine)
                _divide(piece, divisor)
                output.copy_(piece.view_as(output))

        return self._start("reduce_scatter", inputs, carry_out, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> dist.Work:
        rows = [torch.cat([piece.flatten() for piece in pieces]) for pieces in inputs]
        return self.reduce_scatter_single_coalesced(outputs, rows, opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        for output in outputs:
            self._tell("all_gather", output.nbytes, output)

        def carry_out() -> None:
            for output, input in zip(outputs, inputs, strict=True):
                ring.all_gather_into(output, input, self)

        return self._start("all_gather", inputs, carry_out, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        for input in inputs:
            self._tell("all_gather", input.nbytes * self.size(), input)

        def carry_out() -> None:
            for pieces, input in zip(outputs, inputs, strict=True):
                gathered = ring.all_gather(input, self).chunk(self.size())
                for piece, found in zip(pieces, gathered, strict=True):
                    piece.copy_(found.view_as(piece))

        results = [piece for pieces in outputs for piece in pieces]
        return self._start("all_gather", inputs, carry_out, results)

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        source = opts.rootRank
        for tensor in tensors:
            self._tell("broadcast", tensor.nbytes, tensor)

        def carry_out() -> None:
            for tensor in tensors:
                ring.broadcast(tensor, source, self)

        return self._start("broadcast", tensors, carry_out, tensors)

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        main = opts.rootRank
        combine, divisor = self._reduction(opts)
        for tensor in tensors:
            self._tell("reduce", tensor.nbytes, tensor)

        def carry_out() -> None:
            for tensor in tensors:
                star.reduce(tensor, main, self, combine)
                _divide(tensor, divisor if self.rank() == main else 1)

        return self._start("reduce", tensors, carry_out, tensors)

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        main, pieces = opts.rootRank, outputs[0] if outputs else None
        self._tell("gather", star.whole_bytes(inputs[0], pieces, self), inputs[0])
        return self._start("gather", inputs, lambda: star.gather(inputs[0], pieces, main, self), [])

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> dist.Work:
        main, pieces = opts.rootRank, inputs[0] if inputs else None
        self._tell("scatter", star.whole_bytes(outputs[0], pieces, self), outputs[0])
        return self._start("scatter", outputs, lambda: star.scatter(outputs[0], pieces, main, self), outputs)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        self._tell("all_to_all", sum(input.nbytes for input in inputs), inputs[0])
        others = [rank for rank in range(self.size()) if rank != self.rank()]

        def carry_out() -> None:
            outputs[self.rank()].copy_(inputs[self.rank()])
            sends = [(inputs[rank].contiguous(), rank) for rank in others if inputs[rank].numel()]
            receives = [(outputs[rank], rank) for rank in others if outputs[rank].numel()]
            for message in start(sends, receives, self):
                message.wait()

        return self._start("all_to_all", inputs, carry_out, outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_sizes: list[int] | None = None,
        input_sizes: list[int] | None = None,
        opts: Any = None,
    ) -> dist.Work:
        outputs, inputs = self._rows(output, output_sizes), self._rows(input, input_sizes)
        return self.alltoall(outputs, inputs, opts)

    alltoall_base = all_to_all_single

    def _rows(self, tensor: torch.Tensor, sizes: list[int] | None) -> Tensors:
        """Cut a tensor by its first axis, into equal pieces where no sizes are given."""
        return list(tensor.split(sizes) if sizes else tensor.chunk(self.size()))

    def barrier(self, opts: Any = None) -> dist.Work:
        tell("barrier", 0, self)

        def carry_out() -> None:
            with announced("barrier", 0, self):
                ring.all_reduce(torch.zeros(1), self)

        return self._start("barrier", [], carry_out, [])

    def _start(self, name: str, shown: Tensors, function: Callable[[], None], results: Tensors) -> dist.Work:
        """Have a collective carried out in its turn; the witness of a hang knows of it meanwhile."""
        sizes, dtypes = [list(t.shape) for t in shown], [str(t.dtype).removeprefix("torch.") for t in shown]
        call = witness.note_call(self.pg_name, next(self._call_numbers), name, sizes, dtypes)
        alike = (name, [tensor.numel() for tensor in shown], dtypes) if name in _ALIKE else name

        def carry_out() -> None:
            self._under_way = zlib.crc32(repr(alike).encode()) % _COLLECTIVES
            function()
            call["is_pending"] = False

        return self._in_order.start(carry_out, results)

    def _reduction(self, opts: Any) -> tuple[Callable[..., Any], int]:
        """Give how two tensors are put together, and by what the end is divided."""
        asked = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        if asked == dist.ReduceOp.AVG:
            return torch.add, self.size()
        name = str(getattr(asked, "op", asked)).rpartition(".")[2]
        if name not in COMBINE:
            raise NotImplementedError(
                f"the ring backend was asked for a reduction by {name}, and can do {', '.join(COMBINE)} and "
                f"AVG; use one of them, or {ELSEWHERE}"
            )
        return COMBINE[name], 1


def _divide(tensor: torch.Tensor, divisor: int) -> None:
    if divisor != 1:
        tensor.div_(divisor)


for _name in ("allgather_coalesced", "recv_anysource"):
    setattr(RingProcessGroup, _name, refusal(NAME, _name, ELSEWHERE))

make: Callable[[Any], RingProcessGroup] = RingProcessGroup  # makes each group; paced.py puts its own here


def _create(options: Any, own_options: Any) -> RingProcessGroup:
    return make(options)


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
