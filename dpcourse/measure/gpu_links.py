"""Bytes that a GPU sent over its links, as its driver counts them: NVLink and PCIe, each for what it is.

NCCL moves bytes between the GPUs of a machine past every socket. The counters belong to the GPU, not to the
process: another program on it is counted too, and so are copies between host and GPU over PCIe.
Source: NVML's field values (nvml.h), read with the package nvidia-ml-py; written for, not tried on a GPU yet.
"""

from collections.abc import Callable
from typing import Any

_KIBIBYTE = 1024
# For each counter: what it counts, NVML's name for it, and its unit in bytes.
_FIELDS = (
    ("NVLink, data sent", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", _KIBIBYTE),
    ("PCIe, all that was sent", "NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 1),
)


class GpuLinkCounter:
    """Counts what one GPU sends from one reading to the next, by link; one without a counter is left out."""

    def __init__(self, gpu_uuid: str) -> None:
        self._nvml = _nvml()
        self._handle = self._nvml and _quietly(lambda: self._nvml.nvmlDeviceGetHandleByUUID(gpu_uuid))
        self._before = self._read()

    def sent_since_last(self) -> dict[str, int]:
        """Read the counters again and give the bytes sent since the last reading, by link."""
        before, self._before = self._before, self._read()
        return {link: sent - before[link] for link, sent in self._before.items() if link in before}

    def _read(self) -> dict[str, int]:
        counts = ((link, self._value(name), unit) for link, name, unit in _FIELDS)
        return {link: unit * value for link, value, unit in counts if value is not None}

    def _value(self, name: str) -> int | None:
        field = getattr(self._nvml, name, None)
        if self._handle is None or field is None:
            return None
        found = _quietly(lambda: self._nvml.nvmlDeviceGetFieldValues(self._handle, [field])[0])
        is_counted = found is not None and found.nvmlReturn == self._nvml.NVML_SUCCESS
        return int(found.value.ullVal) if is_counted else None


def _nvml() -> Any:
    """Load NVML; None where the package or the driver is missing."""

    def load() -> Any:
        import pynvml

        pynvml.nvmlInit()
        return pynvml

    return _quietly(load)


def _quietly(ask: Callable[[], Any]) -> Any:
    """Ask NVML; None where it is missing, refuses, or knows no such card (a slice of one has no counters)."""
    try:
        return ask()
    except (ImportError, OSError, RuntimeError):
        return None
    except Exception as error:  # pynvml's own errors have a base of their own, which needs it to be named
        if type(error).__name__.startswith("NVMLError"):
            return None
        raise
