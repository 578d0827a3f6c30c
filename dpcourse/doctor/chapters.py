"""What each chapter will use on this machine: GPUs or the CPU, which links, who counts the bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpcourse.doctor.finding import Finding
from dpcourse.tables import Table


@dataclass(frozen=True)
class Here:
    """What decides how a chapter runs. `num_gpus`: those that torch here can use."""

    num_gpus: int = 0
    has_kernel_links: bool = False
    has_byte_counts: bool = False
    has_deepspeed: bool = False
    has_compiler: bool = False

    @property
    def has_gpus(self) -> bool:
        return self.num_gpus >= 2  # fewer than two ranks are no data parallelism


def here(findings: Sequence[Finding]) -> Here:
    """Draw from the findings what decides; what could not be found out counts as missing."""
    by_topic = {finding.topic: finding for finding in findings}

    def has(topic: str) -> bool:
        return topic in by_topic and by_topic[topic].is_there is True

    has_cuda = has("torch") and by_topic["torch"].figures["has_cuda"]
    num_gpus = len(by_topic["GPUs"].figures["gpus"]) if has("GPUs") and has_cuda else 0
    return Here(num_gpus, has("kernel links"), has("byte counts"), has("DeepSpeed"), has("compiler"))


@dataclass(frozen=True)
class Chapter:
    """One notebook and what it makes use of. `needs_cpu`: its lesson is in sockets, whatever is attached."""

    name: str
    needs_cpu: bool = False
    has_links: bool = False

    def row(self, here: Here) -> tuple[str, str, str, str, str]:
        """Chapter, device, links, who counts bytes, and what else depends on this machine."""
        on_gpus = here.has_gpus and not self.needs_cpu
        links = ("kernel" if here.has_kernel_links else "paced") if self.has_links else "-"
        counts = "kernel" if here.has_byte_counts and not on_gpus else "recorder"
        return (self.name, f"{here.num_gpus} GPUs" if on_gpus else "CPU", links, counts, self._else(here))

    def _else(self, here: Here) -> str:
        return {
            "02": "nn.DataParallel" if here.has_gpus else "DataParallel as a star",
            "05": "DeepSpeed" if here.has_deepspeed else "DeepSpeed left out",
            "08": "2 hosts, emulated",
            "10": _compile(here),
        }.get(self.name[:2], "")


def _compile(here: Here) -> str:
    return "compile" if here.has_compiler else "no compile"


CHAPTERS = (
    Chapter("00_start_here"),
    Chapter("01_equivalence"),
    Chapter("02_dataparallel"),
    Chapter("03_ddp", has_links=True),
    Chapter("04_ring_all_reduce", needs_cpu=True),
    Chapter("05_zero"),
    Chapter("06_fsdp", has_links=True),
    Chapter("07_two_ledgers"),
    Chapter("08_many_machines", needs_cpu=True, has_links=True),
    Chapter("09_choosing"),
    Chapter("10_in_production"),
)

LEGEND = {
    "kernel": "links limited, bytes counted by the operating system, socket by socket",
    "paced": "links held to a rate by the course's own ring of ranks",
    "recorder": "bytes as PyTorch's own record of collectives has them",
}


def table(here: Here) -> Table:
    """One row for each chapter."""
    columns = ("chapter", "ranks on", "links", "bytes by", "also")
    return Table(columns, [chapter.row(here) for chapter in CHAPTERS])


def rows_by_name(here: Here) -> dict[str, dict[str, str]]:
    """The same for a report: {"00_start_here": {"ranks on": "CPU", ...}}."""
    plan = table(here)
    return {row[0]: dict(zip(plan.columns[1:], row[1:], strict=True)) for row in plan.rows}
