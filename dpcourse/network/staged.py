"""The backend "staged": collectives through host memory, so that several ranks can share one GPU.

NCCL refuses two ranks on one GPU. Here a collective copies what it reads into host memory, gloo carries it
out there, and its result is copied back. The numbers are gloo's, and so are the bytes that the kernel counts
on each rank's sockets; times are those of one card that all ranks share. On a CPU the same copies are made,
from one part of host memory to another, which is of use to nobody but a test.

Importing this file registers the backend, and `dc.launch(..., backend="staged")` does.
"""

# torch's stubs describe the C++ class, whose overloads no Python method can have.
# mypy: disable-error-code="override, assignment, call-arg, attr-defined"

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from dpcourse.network.own_group import OwnProcessGroup, Tensors, refusal
from dpcourse.scratch import star
from dpcourse.scratch.announce import announced, tell

NAME = "staged"
ELSEWHERE = 'launch with backend="gloo" (ranks on the CPU) or "nccl" (a GPU for each rank)'
OnHost = Callable[[Any], Any]


class StagedProcessGroup(OwnProcessGroup):
    """A process group that carries out every collective in host memory, with gloo.

    Collectives go on while the rank computes, one after another on a thread of the group's own, on a stream
    of its own. Whoever waits for one waits in the host program too, until its result lies on the GPU: from
    then on every stream may read it. Names in pairs are those of torch 2.11 and of 2.13.
    """

    backend_name = NAME

    def __init__(self, options: Any) -> None:
        """Join a group; options: what torch gives a backend of the extended kind."""
        super().__init__(options)
        # Under the group's own name, so that torch's flight recorder says whose each call is.
        self._host = dist.ProcessGroup(options.store, options.group_rank, options.group_size)
        self._host._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._carrier)
        self._host._set_group_name(options.group_id)
        self._carrier._set_sequence_number_for_group()
        self._streams: dict[torch.device, Any] = {}

    # -- messages: a peer's may be waited for before its own is sent, so that they cannot take turns -------

    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        twins = [_twin(tensor).copy_(tensor) for tensor in _dense(tensors)]
        return Sent(self._carrier.send(twins, dst, tag), twins)

    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        twins = [_twin(tensor) for tensor in _dense(tensors)]
        return Received(self._carrier.recv(twins, src, tag), twins, tensors)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        twins = [_twin(tensor) for tensor in _dense(tensors)]
        return Received(self._carrier.recv_anysource(twins, tag), twins, tensors)

    # -- collectives -------------------------------------------------------------------------------------

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        for tensor in _dense(tensors):
            self._tell("all_reduce", tensor.nbytes, tensor)
        return self._stage(
            "all_reduce", tensors, tensors, lambda host: _each(self._host.allreduce, tensors, host, opts)
        )

    allreduce_coalesced = allreduce

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> dist.Work:
        for input in inputs:
            self._tell("reduce_scatter", input.nbytes, input)

        def call(host: OnHost) -> Iterator[dist.Work]:
            for output, input in zip(outputs, inputs, strict=True):
                yield _call(self._host._reduce_scatter_base, host(output), host(input), opts=opts)

        return self._stage("reduce_scatter", inputs, outputs, call)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> dist.Work:
        for pieces in inputs:
            self._tell("reduce_scatter", sum(piece.nbytes for piece in pieces), pieces[0])
        return self._stage(
            "reduce_scatter",
            _flat(inputs),
            outputs,
            lambda host: [_call(self._host.reduce_scatter, host(outputs), host(inputs), opts=opts)],
        )

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        for output in outputs:
            self._tell("all_gather", output.nbytes, output)

        def call(host: OnHost) -> Iterator[dist.Work]:
            for output, input in zip(outputs, inputs, strict=True):
                yield _call(self._host._allgather_base, host(output), host(input), opts=opts)

        return self._stage("all_gather", inputs, outputs, call)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        for input in inputs:
            self._tell("all_gather", input.nbytes * self.size(), input)
        return self._stage(
            "all_gather",
            inputs,
            _flat(outputs),
            lambda host: [_call(self._host.allgather, host(outputs), host(inputs), opts=opts)],
        )

    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        for tensor in tensors:
            self._tell("broadcast", tensor.nbytes, tensor)
        return self._stage(
            "broadcast", tensors, tensors, lambda host: _each(self._host.broadcast, tensors, host, opts)
        )

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        for tensor in tensors:
            self._tell("reduce", tensor.nbytes, tensor)
        is_main = self.rank() == opts.rootRank  # the others keep what they gave
        return self._stage(
            "reduce",
            tensors,
            tensors if is_main else [],
            lambda host: _each(self._host.reduce, tensors, host, opts),
        )

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        pieces = outputs[0] if outputs else None
        self._tell("gather", star.whole_bytes(inputs[0], pieces, self), inputs[0])
        return self._stage(
            "gather",
            inputs,
            _flat(outputs),
            lambda host: [self._host.gather(host(outputs), host(inputs), opts)],
        )

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any) -> dist.Work:
        pieces = inputs[0] if inputs else None
        self._tell("scatter", star.whole_bytes(outputs[0], pieces, self), outputs[0])
        return self._stage(
            "scatter",
            _flat(inputs),
            outputs,
            lambda host: [self._host.scatter(host(outputs), host(inputs), opts)],
        )

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        self._tell("all_to_all", sum(input.nbytes for input in inputs), inputs[0])
        return self._stage(
            "all_to_all",
            inputs,
            outputs,
            lambda host: [_call(self._host.alltoall, host(outputs), host(inputs), opts=opts)],
        )

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_sizes: list[int] | None = None,
        input_sizes: list[int] | None = None,
        opts: Any = None,
    ) -> dist.Work:
        self._tell("all_to_all", input.nbytes, input)
        sizes = (output_sizes or [], input_sizes or [])
        return self._stage(
            "all_to_all",
            [input],
            [output],
            lambda host: [_call(self._host.alltoall_base, host(output), host(input), *sizes, opts=opts)],
        )

    alltoall_base = all_to_all_single

    def barrier(self, opts: Any = None) -> dist.Work:
        """Wait for the other ranks' programs; what their GPUs still have to do is not waited for."""
        tell("barrier", 0, self)
        return self._stage("barrier", [], [], lambda host: [self._carrier.barrier()])

    # -- staging -----------------------------------------------------------------------------------------

    def _stage(self, name: str, reads: Tensors, writes: Tensors, call: Callable[[OnHost], Any]) -> dist.Work:
        """Have a collective carried out in its turn, on host twins of the tensors that it reads and writes.

        call: given what finds the twin of a tensor (or of a list), starts the work on twins.
        """
        copies = Copies(reads, writes, self._stream)

        def carry_out() -> None:
            with announced(name, 0, self):
                copies.fetch()
                for work in list(call(copies.on_host)):
                    work.wait()
                copies.deliver()

        return self._in_order.start(carry_out, writes)

    def _stream(self, device: torch.device) -> Any:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]


class Copies:
    """Host twins of the tensors of one collective, and the copies there and back.

    Made by whoever asks for the collective: its streams, as they are then, have to come to that point before
    anything is read or written. The tensors are kept until the copies are over, so that no allocator gives
    their memory away; the thread that copies waits for its stream, so that nothing else has to.
    """

    def __init__(self, reads: Tensors, writes: Tensors, stream_of: Callable[[torch.device], Any]) -> None:
        self._reads, self._writes, self._stream_of = reads, writes, stream_of
        self._twins: dict[int, torch.Tensor] = {}
        devices = dict.fromkeys(tensor.device for tensor in (*reads, *writes) if tensor.is_cuda)
        self._asked = {device: torch.cuda.current_stream(device).record_event() for device in devices}

    def fetch(self) -> None:
        """Copy what is read to the host."""
        with self._beside():
            for tensor in self._reads:
                self.on_host(tensor).copy_(tensor, non_blocking=True)

    def deliver(self) -> None:
        """Copy what was written back."""
        with self._beside():
            for tensor in self._writes:
                tensor.copy_(self.on_host(tensor), non_blocking=True)

    def on_host(self, value: Any) -> Any:
        """Give the twin of a tensor, or those of a list (of lists)."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._twins:
                self._twins[id(value)] = _twin(value)
            return self._twins[id(value)]
        return [self.on_host(item) for item in value]

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        """Copy on streams beside those of the caller, and come back when the copies are over."""
        with contextlib.ExitStack() as stack:
            for device, event in self._asked.items():
                stream = self._stream_of(device)
                stream.wait_event(event)
                stack.enter_context(torch.cuda.stream(stream))
            yield
            for device in self._asked:
                self._stream_of(device).synchronize()


class Sent(dist._Work):
    """A message under way, whose twin is kept until it has gone."""

    def __init__(self, work: dist.Work, twins: Tensors) -> None:
        super().__init__()
        self._work, self._twins = work, twins

    def wait(self, timeout: Any = None) -> bool:
        self._work.wait()
        return True

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def is_success(self) -> bool:
        return self._work.is_success()


class Received(Sent):
    """A message to come: it lies in the tensor once somebody has waited for it, as gloo's does."""

    def __init__(self, work: dist.Work, twins: Tensors, tensors: Tensors) -> None:
        super().__init__(work, twins)
        self._tensors = tensors

    def wait(self, timeout: Any = None) -> bool:
        super().wait(timeout)
        self._deliver()
        return True

    def _deliver(self) -> None:
        """Copy on the waiter's stream, once."""
        with torch.no_grad():
            for tensor, twin in zip(self._tensors, self._twins, strict=True):
                tensor.copy_(twin)
        self._tensors, self._twins = [], []

    def _source_rank(self) -> int:
        return self._work._source_rank()

    source_rank = _source_rank


def _twin(tensor: torch.Tensor) -> torch.Tensor:
    """Make an empty tensor in host memory; for one on a GPU in pages that its copies reach directly."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)


def _dense(tensors: Tensors) -> Tensors:
    for tensor in tensors:
        if tensor.layout is not torch.strided:
            raise NotImplementedError(
                f"the staged backend was given a tensor in the layout {tensor.layout}, and copies dense ones "
                f"alone; make it dense with to_dense(), or {ELSEWHERE}"
            )
    return list(tensors)


def _flat(nested: list[Tensors]) -> Tensors:
    return [tensor for tensors in nested for tensor in tensors]


def _call(method: Callable[..., dist.Work], *arguments: Any, opts: Any) -> dist.Work:
    return method(*arguments) if opts is None else method(*arguments, opts)


def _each(method: Callable[..., dist.Work], tensors: Tensors, host: OnHost, opts: Any) -> Iterator[dist.Work]:
    """Call a collective for one tensor after another, as gloo wants them."""
    for tensor in tensors:
        yield _call(method, [host(tensor)], opts=opts)


for _name in ("allgather_coalesced",):
    setattr(StagedProcessGroup, _name, refusal(NAME, _name, ELSEWHERE))


def _create(options: Any, own_options: Any) -> StagedProcessGroup:
    return StagedProcessGroup(options)


dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
