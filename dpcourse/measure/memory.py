"""Bytes that a rank holds, by owner: at the end of each phase, at the fullest moment, and over a step's time.

Whose a storage is comes to the meter as data; what nobody owns is "other", never dropped.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from dpcourse.ledger import GATHERED_PEAK, UNNAMED, Holding, Moment
from dpcourse.measure.history import History
from dpcourse.measure.storages import BUFFERS, StorageLedger

Owned = Iterable[tuple[str, str, torch.Tensor]]
_NOBODY = ("other", UNNAMED)
_SETTLE_SECONDS = 0.5
_BEFORE_STEP_SECONDS = 0.05


def with_the_step_s(owned: Owned, inputs: Any, targets: Any, loss: Any) -> Owned:
    """Give what has an owner, and with it the batch and the loss of a step."""
    yield from owned
    yield "other", "batch", inputs
    yield "other", "batch", targets
    if loss is not None:
        yield "other", "loss", loss


class MemoryMeter:
    """Reports what a rank holds at the end of each phase of a step, at its fullest moment, and in between.

    ```
    with StorageLedger() as ledger:
        ...  # build, wrap, train up to a steady step
        meter = MemoryMeter(ledger, owned, rank)
        meter.start_step()
        with meter.keep_for_backward():
            trainer.step_on(inputs, targets, meter.mark)
    holdings, moments = meter.finish(), meter.moments()
    ```

    owned() names owner, unit and tensor of all that has an owner. An owner that comes first keeps a storage
    it shares with a later one: gradients that are views into a bucket own the bucket while they exist. What
    exists within a phase alone has the owner it had at the end of any phase, or the one that an operation
    of FSDP tells (see storages.py).
    """

    def __init__(self, ledger: StorageLedger, owned: Callable[[], Owned], rank: int) -> None:
        self.ledger, self.owned, self.rank = ledger, owned, rank
        self.holdings: list[Holding] = []
        self._ever: dict[int, tuple[str, str]] = {}  # all owners that a storage had in this step
        self._kept: dict[int, None] = {}
        self._buckets: dict[int, str] = {}
        self._ends: list[tuple[str, int]] = []  # phases, and how many changes there were at their ends

    def start_step(self) -> None:
        """Begin the step that is reported; buckets are known by the all-reduces of the step before."""
        # What gloo still holds of the step before is no bucket; a real one stays, so that the wait is short.
        self._settle(self.ledger.purposes, _BEFORE_STEP_SECONDS)
        reduced = dict.fromkeys(serial for serial in self.ledger.reduced if serial in self.ledger.live)
        self._buckets = {serial: f"bucket {index}" for index, serial in enumerate(reduced)}
        # What goes before a phase has ended, as gradients of the step before, has the owner it has now.
        self._ever = dict(self._owned_now())
        self.ledger.start_step()

    def keep_for_backward(self) -> Any:
        """Note what autograd saves, as activations; the hooks hand every tensor back as it was."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        self._kept |= dict.fromkeys(self.ledger.serials_of(tensor))
        # Detached: a result that is saved by its own operation would otherwise keep itself alive.
        return tensor.detach()

    def mark(self, phase: str) -> None:
        """Close a phase: list all that is held now, once gloo's threads have let go of what they carried."""
        owners = dict(self._owners())
        self._settle(owners, _SETTLE_SECONDS)
        self._ever = owners | self._ever
        self._ends.append((phase, len(self.ledger.changes)))
        self.holdings += self._summed(self.ledger.live, owners, phase)

    def _settle(self, owners: Mapping[int, tuple[str, str]], seconds: float) -> None:
        """Wait until buffers of communication that nobody owns are gone, for a while.

        A collective is over for the rank a moment before the thread that carried it out drops its buffers.
        """
        deadline = time.monotonic() + seconds
        while self._has_buffers(owners) and time.monotonic() < deadline:
            os.sched_yield()

    def _has_buffers(self, owners: Mapping[int, tuple[str, str]]) -> bool:
        live = dict(self.ledger.live)  # copied at once: another thread may drop a storage meanwhile
        return any(num_bytes and owners.get(serial) in BUFFERS for serial, num_bytes in live.items())

    def finish(self) -> list[Holding]:
        """Give the holdings of all phases, then of the fullest moment, then the most that was gathered."""
        history = self._history()
        at_peak = self._summed(history.live_at(history.fullest), self._known, "peak")
        most = max(history.columns.get("gathered", [0]))
        gathered = [Holding("gathered", "most at once", most, GATHERED_PEAK, self.rank)] if most else []
        return self.holdings + at_peak + gathered

    def moments(self) -> tuple[Moment, ...]:
        """Give what was held over the step, thinned out, with no owner's maximum lost."""
        return tuple(self._history().moments(self.rank))

    def _history(self) -> History:
        owners = {serial: owner for serial, (owner, _) in self._known.items()}
        return self.ledger.history(owners, self._ends)

    @property
    def _known(self) -> dict[int, tuple[str, str]]:
        return self.ledger.purposes | self._ever

    def _owners(self) -> Iterator[tuple[int, tuple[str, str]]]:
        """Who owns each storage now; where a storage comes twice, the last one given holds."""
        purposes = self.ledger.purposes
        yield from purposes.items()
        for serial in self._kept:
            if purposes.get(serial) in (None, *BUFFERS):  # kept, it is no mere buffer
                yield serial, ("activations", "kept for backward")
        for serial, name in self._buckets.items():
            yield serial, ("buckets", name)
        yield from self._owned_now()

    def _owned_now(self) -> Iterator[tuple[int, tuple[str, str]]]:
        for owner, unit, tensor in reversed(list(self.owned())):
            for serial in self.ledger.serials_of(tensor):
                is_bucket = owner == "gradients" and serial in self._buckets
                yield serial, (owner, self._buckets[serial] if is_bucket else unit)

    def _summed(
        self, live: Mapping[int, int], owners: Mapping[int, tuple[str, str]], phase: str
    ) -> list[Holding]:
        """Add up live storages under their owners; those of nobody are "other", "without an owner"."""
        sums: dict[tuple[str, str], int] = {}
        for serial, num_bytes in dict(live).items():
            key = owners.get(serial, _NOBODY)
            sums[key] = sums.get(key, 0) + num_bytes
        return [
            Holding(owner, unit, num_bytes, phase, self.rank)
            for (owner, unit), num_bytes in sums.items()
            if num_bytes
        ]
