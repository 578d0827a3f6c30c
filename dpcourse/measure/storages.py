"""Every storage that a rank's tensors lie in: when it came, how large it is, when it went.

A weak reference to each untyped storage tells when it goes; two tensors that share a storage count once.
What torch cannot show is not here: memory that an operation takes and gives back inside, or on a thread of
the backend's own. The process's own count (measure/process.py) has it.
"""

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from dpcourse.ledger import REDUCE_BUFFER, WHOLE_GRADIENT
from dpcourse.measure.history import Change, History
from dpcourse.scratch import announce

_REDUCING = ("allreduce_", "allreduce_coalesced_", "_allreduce_base_")
_GATHER, _WHOLE = ("buckets", "gather buffer"), ("gathered", "whole")
_COPY, _MESSAGE = ("buckets", "gloo's copy"), ("buckets", "messages")
BUFFERS = (_GATHER, REDUCE_BUFFER, _COPY, _MESSAGE)  # of communication: gone when it is over
# What an operation's arguments are for: FSDP's copies into and out of its buffers, and a reduce-scatter.
# Each says which arguments, by place or by name; what is owned, or was said first, keeps its name.
_PURPOSES: dict[str, tuple[tuple[int | str, tuple[str, str]], ...]] = {
    "fsdp::all_gather_copy_in": ((0, _GATHER), (1, _GATHER)),
    "fsdp::split_with_sizes_copy": (("out", _WHOLE),),
    "fsdp::chunk_cat": ((0, WHOLE_GRADIENT), ("out", REDUCE_BUFFER)),
    "fsdp::chunk_cat_mixed_dtype": ((0, WHOLE_GRADIENT), ("out", REDUCE_BUFFER)),  # its name in torch 2.15
    "c10d::_reduce_scatter_base_": ((0, REDUCE_BUFFER), (1, WHOLE_GRADIENT)),
    "c10d::send": ((0, _MESSAGE),),
    "c10d::recv_": ((0, _MESSAGE),),
}


class StorageLedger(TorchDispatchMode):
    """Knows every storage made while it is on, its size, and all changes since `start_step`.

    Storages are named by serial numbers: an address is used again once it is free. Meta tensors and fake
    ones hold nothing and are left out, unless it counts them (counts_fake) by what they would hold; of a
    DTensor or another wrapper the tensors inside count.
    """

    def __init__(self, counts_fake: bool = False) -> None:
        super().__init__()
        self.counts_fake = counts_fake
        self.live: dict[int, int] = {}  # serial number of a storage -> its bytes
        self.at_start: dict[int, int] = {}  # what was live when the step began
        self.changes: list[Change] = []
        self.started_seconds = time.perf_counter()
        self.reduced: list[int] = []  # storages given to an all-reduce since `start_step`, in order
        self.purposes: dict[int, tuple[str, str]] = {}  # serial -> owner and unit, as operations tell
        self._serials: dict[int, int] = {}  # address -> serial
        self._references: dict[int, weakref.ref] = {}
        self._num_seen = 0
        self._awaited_bytes: int | None = None  # of an announced all-reduce whose tensor was not seen yet

    @property
    def live_bytes(self) -> int:
        return sum(list(self.live.values()))

    def bytes_on(self, device: str) -> int:
        """Add up what lies on a kind of device now, "cuda" or "cpu": a rank on a GPU has both."""
        storages = (reference() for reference in list(self._references.values()))
        return sum(one.nbytes() for one in storages if one is not None and one.device.type == device)

    def start_step(self) -> None:
        """Forget the changes and the all-reduces of earlier steps."""
        self.changes, self.reduced, self.started_seconds = [], [], time.perf_counter()
        self.at_start = dict(self.live)

    def history(self, owners: Mapping[int, str], ends: Sequence[tuple[str, int]]) -> History:
        """Give the changes since `start_step`, with the owners of storages and the ends of phases."""
        return History(self.started_seconds, self.at_start, tuple(self.changes), owners, tuple(ends))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a wrapper: it unfolds into operations on the tensors inside, seen next
        result, num_seen = func(*args, **(kwargs or {})), self._num_seen
        for tensor in _tensors(result):
            for storage in storages_of(tensor):
                self.note(storage)
        if self._awaited_bytes is not None:
            self._note_announced(args)
        if func.namespace in ("c10d", "fsdp"):
            self._note_purposes(func, args, kwargs or {})
        elif func._opname == "split" and self._num_seen > num_seen:
            # Splitting makes no storage: gloo did, out of sight, as its copy of what it reduces and scatters.
            self.purposes[self._num_seen] = _COPY
        return result

    def _note_purposes(self, func: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        if func.namespace == "c10d" and func._opname in _REDUCING:
            self._note_reduced(_tensors(args))
            for tensor in _tensors(args):
                if tensor.is_floating_point():
                    self._note_purpose(tensor, *REDUCE_BUFFER)
        for place, purpose in _PURPOSES.get(f"{func.namespace}::{func._opname}", ()):
            given = kwargs.get(place) if isinstance(place, str) else args[place]
            for tensor in _tensors(given):
                self._note_purpose(tensor, *purpose)

    def _note_purpose(self, tensor: torch.Tensor, owner: str, unit: str) -> None:
        for serial in self.serials_of(tensor):
            self.purposes.setdefault(serial, (owner, unit))

    def _note_reduced(self, tensors: Iterable[torch.Tensor]) -> None:
        floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        self.reduced += [serial for tensor in floats for serial in self.serials_of(tensor)]

    def _hear(
        self, collective: str, dtype: str, group: tuple[int, ...], payload_bytes: int, unit: str
    ) -> None:
        """An all-reduce made of sends begins: it reduces the first tensor of this size that it touches."""
        self._awaited_bytes = payload_bytes if collective == "all_reduce" else None

    def _note_announced(self, args: tuple) -> None:
        whole = [tensor for tensor in _tensors(args) if tensor.nbytes == self._awaited_bytes]
        if whole:
            self._awaited_bytes = None
            self._note_reduced(whole[:1])

    def __enter__(self) -> "StorageLedger":
        self._resize = torch.UntypedStorage.resize_
        resize, note = self._resize, self.note

        def watched(storage: torch.UntypedStorage, num_bytes: int) -> Any:
            result = resize(storage, num_bytes)
            note(storage)
            return result

        torch.UntypedStorage.resize_ = watched  # type: ignore[method-assign, assignment]
        self._listening = ExitStack()
        self._listening.enter_context(announce.listen(self._hear))
        self._listening.enter_context(announce.hear_names(self._note_purpose))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        self._listening.close()
        super().__exit__(*error)

    def note(self, storage: torch.UntypedStorage) -> None:
        """Enter a storage, or its new size."""
        if storage.device.type == "meta" and not self.counts_fake:
            return  # a fake tensor's storage is one of these, too
        serial = self._serials.get(storage._cdata)
        if serial is None:
            serial = self._enter(storage)
        self._set(serial, storage.nbytes())

    def _enter(self, storage: torch.UntypedStorage) -> int:
        self._num_seen += 1
        serial, address = self._num_seen, storage._cdata
        self._serials[address] = serial
        self._references[serial] = weakref.ref(storage, self._forgetting(serial, address))
        return serial

    def _forgetting(self, serial: int, address: int) -> Callable[[weakref.ref], None]:
        def forget(_: weakref.ref) -> None:
            self._set(serial, 0)
            del self.live[serial], self._serials[address], self._references[serial]

        return forget

    def _set(self, serial: int, num_bytes: int) -> None:
        # Two writes that each are whole under Python's lock: a storage may go on a thread of the backend's.
        if self.live.get(serial) != num_bytes:
            self.live[serial] = num_bytes
            self.changes.append(Change(time.perf_counter(), serial, num_bytes))

    def serials_of(self, tensor: torch.Tensor) -> list[int]:
        """Find the storages of a tensor in the ledger; one made while the ledger was off has no number."""
        found = (self._serials.get(storage._cdata) for storage in storages_of(tensor))
        return [serial for serial in found if serial is not None]


def storages_of(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """Give the storage a tensor lies in; for a wrapper (a DTensor), those of the tensors inside it."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor.untyped_storage()
        return
    for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        if isinstance(inside := getattr(tensor, name), torch.Tensor):
            yield from storages_of(inside)


def _tensors(values: Any) -> Iterable[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return (values,)  # what most operations return: a walk through it would cost as much as a note
    return (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))
