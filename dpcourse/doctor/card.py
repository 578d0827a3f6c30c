"""The hardware card of notebook 00: what is attached, and what the course will use of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpcourse.doctor import chapters, isolation, packages, probes
from dpcourse.doctor.finding import Finding, Probe, look
from dpcourse.show import Shown, is_reference
from dpcourse.tables import Table

_PROBES = (
    Probe("cores", probes.cores),
    Probe("memory", probes.memory),
    Probe("GPUs", probes.gpus, deadline_seconds=30),
    Probe("kernel links", isolation.links, deadline_seconds=40),
    Probe("byte counts", probes.byte_counters, deadline_seconds=15),
    Probe("torch", packages.torch),
)
_ATTACHED = ("cores", "memory", "GPUs", "GPU links")
# The same on every machine: the reference configuration runs on CPU ranks whatever is attached.
_REFERENCE = "This course's ranks: processes on CPU, joined by the loopback of this machine."


@dataclass(frozen=True, repr=False)
class HardwareCard(Shown):
    """What was found, as a small table; `here` says what the chapters will use."""

    findings: Sequence[Finding] = ()

    @property
    def here(self) -> chapters.Here:
        return chapters.here(self.findings)

    def table(self) -> Table:
        here = self.here
        rows = [(item.topic, item.text) for item in self.findings if item.topic in _ATTACHED]
        rows += [
            ("ranks run on", f"{here.num_gpus} GPUs, and the CPU for more" if here.has_gpus else "the CPU"),
            (
                "links between hosts",
                "limited by the kernel" if here.has_kernel_links else "paced in user space",
            ),
            ("bytes counted by", "the kernel and PyTorch" if here.has_byte_counts else "PyTorch alone"),
        ]
        return Table(("this machine", ""), rows)

    def __str__(self) -> str:
        return _REFERENCE if is_reference() else str(self.table())

    def to_html(self) -> str:
        return self.table().to_html()


def hardware() -> HardwareCard:
    """Look at this machine for about a second; nothing is started on it, nothing leaves it."""
    if is_reference():
        return HardwareCard()
    return HardwareCard(tuple(finding for probe in _PROBES for finding in look(probe)))
