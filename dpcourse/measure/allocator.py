"""What CUDA's caching allocator has handed out for a rank's tensors, beside what the ledger says.

The allocator knows nothing of owners, and the ledger nothing of the allocator: two counts of one thing.
"""

import gc
from collections.abc import Callable

import torch

from dpcourse.measure.process import BY_CUDA, BY_LEDGER
from dpcourse.measure.storages import StorageLedger

_ASKED_FOR = "requested_bytes.all.current"


def requested_bytes() -> int:
    """Count the bytes that tensors have asked CUDA's allocator for and not given back, before rounding.

    cuBLAS keeps a workspace of some megabytes in it, which is no tensor: it is given back before counting.
    """
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_stats()[_ASKED_FOR]


def is_counting() -> bool:
    """Tell whether the allocator in use counts what is asked for: CUDA's own asynchronous one does not."""
    return torch.cuda.is_available() and torch.cuda.get_allocator_backend() == "native"


class AllocatorMeter:
    """Counts at the end of each phase what both say of the tensors made since the meter was.

    Make it when the ledger has just begun; afterwards `counts` has two numbers for each phase.
    """

    def __init__(
        self, ledger: StorageLedger, requested: Callable[[], int] = requested_bytes, device: str = "cuda"
    ) -> None:
        gc.collect()  # what an earlier model left in cycles would go later, and be missed
        self.counts: dict[str, int] = {}
        self._ledger, self._requested, self._device = ledger, requested, device
        self._before = requested()

    def mark(self, phase: str) -> None:
        """Close a phase."""
        self.counts[f"{BY_LEDGER}, {phase}"] = self._ledger.bytes_on(self._device)
        self.counts[f"{BY_CUDA}, {phase}"] = self._requested() - self._before
