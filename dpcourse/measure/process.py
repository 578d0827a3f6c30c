"""What the system says of this process's memory: whole, with all that no ledger of tensors can see."""

import ctypes
import sys
from collections.abc import Mapping
from pathlib import Path

_STATUS = Path("/proc/self/status")
_STATUS_FIELDS = {"VmRSS": "resident", "VmHWM": "most resident"}  # in the order of EXPLANATIONS

# What the ledger and CUDA's allocator say of one thing, see measure/allocator.py.
BY_LEDGER, BY_CUDA = "tensors on the GPU, ledger", "tensors on the GPU, CUDA's allocator"

# What each count counts, and why it is not what the ledger says.
EXPLANATIONS: Mapping[str, str] = {
    "resident": "Pages of memory that the process occupies now: Python, torch's libraries and their caches "
    "too, and blocks that were freed and not given back to the system.",
    "most resident": "The most pages since the process began: a peak while importing or building counts, "
    "one of a later step only if it is higher.",
    "in use by malloc": "Blocks that the C library has handed out and not got back: tensors, the libraries' "
    "own tables, Python's larger objects.",
    "in use by malloc, more than before": "The same, less what it was before the model was built: what the "
    "ledger says, and what libraries set up at their first use, the backend's buffers and Python's objects.",
    "cuda allocated": "Bytes of tensors on the GPU now, each rounded up to 512: what the ledger says, a "
    "little more.",
    "cuda most allocated": "The most bytes of tensors on the GPU since the process began.",
    "cuda reserved": "What torch's caching allocator has taken from the GPU: allocated bytes and blocks that "
    "it keeps to use again.",
    **{
        f"{who}, {phase}": f"At the end of {phase}, the bytes of tensors that {what}."
        for phase in ("forward", "backward", "step")
        for who, what in (
            (BY_LEDGER, "the ledger knows on the GPU; the rest of its tensors are in host memory"),
            (BY_CUDA, "asked CUDA's allocator for memory, before rounding: the same, counted anew"),
        )
    },
    "device used": "What all processes together occupy on the GPU: the reserved blocks, and CUDA's own "
    "context and libraries for each process.",
}


class ProcessMeter:
    """Reads what the process occupies: make one before the model is built, and read it after some steps.

    ```
    meter = ProcessMeter()
    ...  # build, wrap, train
    counts = meter.read()
    ```
    """

    def __init__(self) -> None:
        self._before = malloc_bytes()

    def read(self) -> dict[str, int]:
        """Read all counts that there are here, in bytes, by their names in EXPLANATIONS."""
        return _resident() | self._from_malloc() | _on_gpu()

    def _from_malloc(self) -> dict[str, int]:
        now = malloc_bytes()
        if now is None or self._before is None:
            return {}
        return {"in use by malloc": now, "in use by malloc, more than before": now - self._before}


def _resident() -> dict[str, int]:
    if not _STATUS.exists():
        import psutil

        return {"resident": psutil.Process().memory_info().rss}
    pairs = (line.split(":") for line in _STATUS.read_text().splitlines())
    kilobytes = {key: value.split()[0] for key, value in pairs if key in _STATUS_FIELDS}
    return {name: int(kilobytes[key]) * 1024 for key, name in _STATUS_FIELDS.items()}


_MALLINFO_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd",
    "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class _Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2 (malloc.h, since 2.33)."""

    _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO_FIELDS]


def malloc_bytes() -> int | None:
    """Count the bytes that the C library has handed out and not got back; None without glibc's mallinfo2."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None) if sys.platform == "linux" else None
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def _on_gpu() -> dict[str, int]:
    """Read CUDA's counts; none where this process has not begun to use a GPU."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    free, there = torch.cuda.mem_get_info()
    return {
        "cuda allocated": torch.cuda.memory_allocated(),
        "cuda most allocated": torch.cuda.max_memory_allocated(),
        "cuda reserved": torch.cuda.memory_reserved(),
        "device used": there - free,
    }
