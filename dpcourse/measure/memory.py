"""Bytes that a rank holds, storage by storage: a ledger of every tensor made while the meter is on.

A weak reference to each untyped storage tells when it goes; two tensors that share a storage count once.
Whose a storage is comes to the meter as data; what nobody owns is "other", never dropped.
"""

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpcourse.ledger import Holding

_REDUCING = ("allreduce_", "allreduce_coalesced_", "_allreduce_base_")
Owned = Iterable[tuple[str, str, torch.Tensor]]


class StorageLedger(TorchDispatchMode):
    """Knows every storage made while it is on, its size, and the fullest moment since `start_step`."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}  # serial number of a storage -> its bytes
        self.live_bytes = 0
        self.peak_bytes = 0
        self.at_peak: dict[int, int] = {}
        self.reduced: list[int] = []  # storages given to an all-reduce since `start_step`, in order
        self._serials: dict[int, int] = {}  # address -> serial: an address is used again once it is free
        self._references: dict[int, weakref.ref] = {}
        self._num_seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.note(value.untyped_storage())
        if func.namespace == "c10d" and func._opname in _REDUCING:
            self._note_reduced(value for value in tree_leaves(args) if isinstance(value, torch.Tensor))
        return result

    def _note_reduced(self, tensors: Iterable[torch.Tensor]) -> None:
        serials = (self.serial_of(tensor) for tensor in tensors if tensor.is_floating_point())
        self.reduced += [serial for serial in serials if serial is not None]

    def __enter__(self) -> "StorageLedger":
        self._resize = torch.UntypedStorage.resize_
        resize, note = self._resize, self.note

        def watched(storage: torch.UntypedStorage, num_bytes: int) -> Any:
            result = resize(storage, num_bytes)
            note(storage)
            return result

        torch.UntypedStorage.resize_ = watched  # type: ignore[method-assign, assignment]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        super().__exit__(*error)

    def note(self, storage: torch.UntypedStorage) -> None:
        """Enter a storage, or its new size."""
        serial = self._serials.get(storage._cdata)
        if serial is None:
            serial = self._enter(storage)
        self._set(serial, storage.nbytes())

    def _enter(self, storage: torch.UntypedStorage) -> int:
        self._num_seen += 1
        serial, address = self._num_seen, storage._cdata

        def forget(_: weakref.ref) -> None:
            self._set(serial, 0)
            del self.live[serial], self._serials[address], self._references[serial]

        self._serials[address] = serial
        self._references[serial] = weakref.ref(storage, forget)
        return serial

    def _set(self, serial: int, num_bytes: int) -> None:
        self.live_bytes += num_bytes - self.live.get(serial, 0)
        self.live[serial] = num_bytes
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.at_peak = self.live_bytes, dict(self.live)

    def serial_of(self, tensor: torch.Tensor) -> int | None:
        """Find a tensor's storage in the ledger; None for one made while the ledger was off."""
        return self._serials.get(tensor.untyped_storage()._cdata)

    def start_step(self) -> None:
        """Forget the peak and the all-reduces of earlier steps."""
        self.peak_bytes, self.at_peak, self.reduced = self.live_bytes, dict(self.live), []


class MemoryMeter:
    """Reports what a rank holds at the end of each phase of a step, and at its fullest moment.

    owned() names owner, unit and tensor of all that has an owner. An owner that comes first keeps a storage
    it shares with a later one: gradients that are views into a bucket own the bucket while they exist.
    """

    def __init__(self, ledger: StorageLedger, owned: Callable[[], Owned], rank: int) -> None:
        self.ledger, self.owned, self.rank = ledger, owned, rank
        self.holdings: list[Holding] = []
        self._ever: dict[int, tuple[str, str]] = {}  # all owners that a storage had in this step
        self._kept: dict[int, None] = {}
        self._buckets: dict[int, str] = {}

    def start_step(self) -> None:
        """Begin the step that is reported; buckets are known by the all-reduces of the step before."""
        self._name_buckets()
        self.ledger.start_step()

    def _name_buckets(self) -> None:
        for index, serial in enumerate(dict.fromkeys(self.ledger.reduced)):
            self._buckets[serial] = f"bucket {index}"

    def keep_for_backward(self) -> Any:
        """Note what autograd saves, as activations; the hooks hand every tensor back as it was."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        serial = self.ledger.serial_of(tensor)
        if serial is not None:
            self._kept[serial] = None
        # Detached: a result that is saved by its own operation would otherwise keep itself alive.
        return tensor.detach()

    def mark(self, phase: str) -> None:
        """Close a phase: list all that is held now."""
        owners = self._owners()
        self._ever = owners | self._ever
        self.holdings += _summed(self.ledger.live, owners, phase, self.rank)

    def finish(self) -> list[Holding]:
        """Give the holdings of all phases, the fullest moment last."""
        return self.holdings + _summed(self.ledger.at_peak, self._ever, "peak", self.rank)

    def _owners(self) -> dict[int, tuple[str, str]]:
        owners: dict[int, tuple[str, str]] = {}
        for owner, unit, tensor in self.owned():
            serial = self.ledger.serial_of(tensor)
            if serial is not None:
                is_bucket = owner == "gradients" and serial in self._buckets
                owners.setdefault(serial, (owner, self._buckets[serial] if is_bucket else unit))
        for serial, name in self._buckets.items():
            owners.setdefault(serial, ("buckets", name))
        for serial in self._kept:
            owners.setdefault(serial, ("activations", "kept for backward"))
        return owners


def _summed(live: dict[int, int], owners: dict[int, tuple[str, str]], phase: str, rank: int) -> list[Holding]:
    """Add up live storages under their owners; those of nobody are "other", "without an owner"."""
    sums: dict[tuple[str, str], int] = {}
    for serial, num_bytes in live.items():
        key = owners.get(serial, ("other", "without an owner"))
        sums[key] = sums.get(key, 0) + num_bytes
    return [
        Holding(owner, unit, num_bytes, phase, rank) for (owner, unit), num_bytes in sums.items() if num_bytes
    ]
