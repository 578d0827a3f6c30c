"""What the course's own process groups share: gloo below them, and a thread that carries collectives out."""

# torch's stubs describe the C++ class, whose overloads no Python method can have.
# mypy: disable-error-code="override, assignment, attr-defined, call-arg"

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _world

from dpcourse.ledger import REDUCE_BUFFER, WHOLE_GRADIENT
from dpcourse.network.in_order import InOrder
from dpcourse.scratch.announce import name, tell

Tensors = list[torch.Tensor]


class OwnProcessGroup(dist.ProcessGroup):
    """A process group written in Python, as torch wants one: its names, and the order of its collectives.

    backend_name: as torch.distributed knows it.
    """

    backend_name: str

    def __init__(self, options: Any) -> None:
        """Join a group; options: what torch gives a backend of the extended kind."""
        rank, size = options.group_rank, options.group_size
        super().__init__(rank, size)
        self._carrier = dist.ProcessGroupGloo(options.store, rank, size, options.timeout)
        self._in_order = InOrder()

    @property
    def pg_name(self) -> str:
        return _world.pg_names[self]

    @property
    def group_name(self) -> str:
        return self.pg_name

    def getBackendName(self) -> str:
        return self.backend_name

    def _get_backend(self, device: Any) -> dist.ProcessGroupGloo:
        """What sends this group's messages: torch 2.15 asks it whether it can send several as one."""
        return self._carrier

    # A single tensor is a list of one. Both names: torch 2.11's, and that of 2.13.

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        # As a ledger has it of torch's own groups; it waits until the thread has let go of such a buffer.
        name(output, *REDUCE_BUFFER)
        name(input, *WHOLE_GRADIENT)
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    _reduce_scatter_base = reduce_scatter_single

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> dist.Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    _allgather_base = all_gather_single

    def _tell(self, collective: str, num_bytes: int, tensor: torch.Tensor) -> None:
        """Say which collective is asked for, and of which tensor."""
        tell(collective, num_bytes, self, dtype=tensor.dtype)
        tensor.detach()  # a ledger that watches operations learns here which tensor is meant


def refusal(backend: str, method: str, elsewhere: str) -> Callable[..., Any]:
    """Make a method that refuses to be one: torch would look for it in a backend that is not there."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"the {backend} backend has no {method}; {elsewhere} for it")

    return refuse
