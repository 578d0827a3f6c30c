"""In a rank: how many bytes its tensors hold, by walking over all of them, whoever keeps them and where.

What is counted is storages, each once: a slice that is a view keeps the whole that it was cut from.
"""

import gc
from collections.abc import Iterable
from typing import Any

import torch

from dpcourse.labs import plug


class Held:
    """Counts the storages that have come, or have grown, since it was made.

    Python's collector knows every object, in a closure or a global too; what is there already is put out of
    its sight, so that a walk is short.
    """

    def __init__(self) -> None:
        gc.collect()
        self._known = _tensors()
        self._before = _sizes(self._known)
        self._storages = [_storage_of(item) for item in self._known]  # kept: an address is used again
        gc.freeze()
        self._mark: list[Any] = [self]  # seen by every walk, unless somebody hides objects as well

    def num_bytes(self, without: Iterable[Any] = ()) -> int:
        """Bytes of all storages but those of the tensors `without`."""
        return sum(self.by_dtype(without).values())

    def by_dtype(self, without: Iterable[Any] = ()) -> dict[str, int]:
        """The same for each dtype of the tensors that lie in the storages."""
        plug.settle()
        gc.collect()
        if not any(item is self._mark for item in gc.get_objects()):
            gc.unfreeze()
        ours, sums = _sizes(without), dict[str, int]()
        for at, (num_bytes, dtype) in _sizes([*self._known, *_tensors()]).items():
            if at not in ours:
                sums[dtype] = sums.get(dtype, 0) + num_bytes - self._before.get(at, (0, ""))[0]
        return sums


def _tensors() -> list[Any]:
    kinds = (torch.Tensor, torch.UntypedStorage)
    return [item for item in gc.get_objects() if issubclass(type(item), kinds)]


def _sizes(items: Iterable[Any]) -> dict[int, tuple[int, str]]:
    """The address of each storage, its bytes and a dtype; a tensor on "meta" holds nothing."""
    found: dict[int, tuple[int, str]] = {}
    for item in items:
        if isinstance(item, torch.UntypedStorage):
            found.setdefault(item._cdata, (item.nbytes(), "bytes"))
        elif item.device.type != "meta":
            storage = item.untyped_storage()
            found[storage._cdata] = storage.nbytes(), str(item.dtype).removeprefix("torch.")
    return found


def _storage_of(item: Any) -> Any:
    return item if isinstance(item, torch.UntypedStorage) else item.untyped_storage()
