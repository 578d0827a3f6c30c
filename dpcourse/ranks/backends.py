"""What can carry the messages of a run, by name: torch's own backends, and those of the course."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Backend:
    """A backend by the name that torch.distributed knows it by.

    device: what its ranks compute on. module: imported in each rank, registers a backend of the course's own.
    """

    name: str
    device: str
    module: str | None = None


BACKENDS = {
    "gloo": Backend("gloo", "cpu"),
    "nccl": Backend("nccl", "cuda"),
    "ring": Backend("ring", "cpu", "dpcourse.network.ring"),
}


def device_for(backend: str | None, device: str | None) -> str | None:
    """Give the device to ask for: the backend's own where none was asked for.

    Raises ValueError for a backend that does not exist, or that does not go with the device.
    """
    if backend is None:
        return device
    if backend not in BACKENDS:
        raise ValueError(
            f"no backend is called {backend!r}; there is {', '.join(BACKENDS)}, or None for the device's own"
        )
    wanted = BACKENDS[backend].device
    if device not in (None, wanted):
        raise ValueError(
            f"backend={backend!r} joins ranks on {wanted!r}, and device={device!r} was asked for; "
            "leave one of the two out"
        )
    return wanted


def find(backend: str | None, device: str) -> Backend:
    """Give the backend that was asked for, or the device's own."""
    return BACKENDS[backend or ("nccl" if device == "cuda" else "gloo")]
