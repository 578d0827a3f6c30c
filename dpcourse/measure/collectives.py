"""Collectives as they are asked for: each call that reaches torch's dispatcher, from Python or from C++.

DDP's reducer, FSDP, DTensor's functional collectives and a learner's own calls all pass here, on every
backend. What a backend makes of a call (gloo carries out a reduce-scatter as an all-reduce) is not seen here:
the flight recorder shows that (traffic.py), and the kernel's counters show what it cost (wire.py).
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpcourse.ledger import Transfer
from dpcourse.scratch import announce

# For each operation of c10d its name in the course, and where its whole tensor stands: among the arguments
# (0, 1), or as the argument times the number of ranks ("each").
_OPERATIONS: dict[str, tuple[str, int | str]] = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "broadcast_": ("broadcast", 0),
    "allgather_": ("all_gather", 0),
    "_allgather_base_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "reduce_scatter_": ("reduce_scatter", 1),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "reduce_": ("reduce", 0),
    "gather_": ("gather", "each"),
    "scatter_": ("scatter", "each"),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "send": ("send", 0),
    "recv_": ("recv", 0),
}
_FUNCTIONAL: dict[str, tuple[str, int | str]] = {
    "all_reduce": ("all_reduce", 0),
    "all_reduce_": ("all_reduce", 0),
    "all_reduce_coalesced": ("all_reduce", 0),
    "all_reduce_coalesced_": ("all_reduce", 0),
    "all_gather_into_tensor": ("all_gather", "each"),
    "all_gather_into_tensor_out": ("all_gather", "each"),
    "all_gather_into_tensor_coalesced": ("all_gather", "each"),
    "reduce_scatter_tensor": ("reduce_scatter", 0),
    "reduce_scatter_tensor_out": ("reduce_scatter", 0),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 0),
    "broadcast": ("broadcast", 0),
    "broadcast_": ("broadcast", 0),
    "all_to_all_single": ("all_to_all", 0),
}
_BY_NAMESPACE = {"c10d": _OPERATIONS, "_c10d_functional": _FUNCTIONAL}
_EACH_FROM = {"gather_": 1, "scatter_": 0}  # which argument holds this rank's own part


class CollectiveMeter(TorchDispatchMode):
    """Lists this rank's collectives, phase by phase: `with meter: step(meter.mark)`, then `meter.transfers`.

    Each Transfer has its dtype as its unit until the strategy names it, and no sent_bytes. A collective from
    scratch that announces itself is one row in place of its messages. A group of one is no traffic.
    """

    def __init__(self) -> None:
        super().__init__()
        self.transfers: list[Transfer] = []
        self._new: list[tuple[str, str, tuple[int, ...], int]] = []
        self._is_inside = False

    def __enter__(self) -> "CollectiveMeter":
        self._listening = announce.listen(self._note_announced)
        self._listening.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._listening.__exit__(*error)

    def mark(self, phase: str) -> None:
        """Close a phase: what was asked for since the last mark belongs to it."""
        rank = dist.get_rank()
        for collective, dtype, group, payload_bytes in self._new:
            if len(group) > 1:
                self.transfers.append(Transfer(collective, dtype, group, payload_bytes, None, phase, rank))
        self._new = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its own dispatch follows, and what it calls comes back here
        known = _BY_NAMESPACE.get(func.namespace, {})
        if func._opname not in known or announce.is_announced():
            return func(*args, **(kwargs or {}))
        self._note(func, args, *known[func._opname])
        self._is_inside = True  # a group written in Python announces what it does: it is this same call
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._is_inside = False

    def _note(self, func: Any, args: tuple, collective: str, place: int | str) -> None:
        own = _EACH_FROM.get(func._opname, 0) if isinstance(place, str) else place
        tensors = [leaf for leaf in tree_leaves(args[own]) if isinstance(leaf, torch.Tensor)]
        group = _group(func, args)
        factor = len(group) if place == "each" else 1
        payload_bytes = factor * sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self._new.append((collective, _dtype_name(tensors), group, payload_bytes))

    def _note_announced(
        self, collective: str, dtype: str, group: tuple[int, ...], payload_bytes: int, unit: str = ""
    ) -> None:
        if not self._is_inside:
            self._new.append((collective, unit or dtype, group, payload_bytes))


def _dtype_name(tensors: Iterable[torch.Tensor]) -> str:
    return next((str(tensor.dtype).removeprefix("torch.") for tensor in tensors), "")


def _group(func: Any, args: tuple) -> tuple[int, ...]:
    """Find the ranks of the group that a call names, by its name or as an object."""
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.name == "process_group":
            return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(value)))
        if argument.name == "group_name":
            return tuple(dist.get_process_group_ranks(_resolved(value)))
    return tuple(range(dist.get_world_size()))


def _resolved(name: Any) -> Any:
    from torch.distributed.distributed_c10d import _resolve_process_group

    return _resolve_process_group(name) if isinstance(name, str) else name  # type: ignore[arg-type]
