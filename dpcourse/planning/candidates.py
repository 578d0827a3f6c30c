"""What a plan chooses from: the strategies of the course as they would be asked for on these cards."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dpcourse.planning.decision import DDP, FULL, HYBRID, KEPT, OFFLOAD, RECOMPUTED, SINGLE
from dpcourse.planning.hardware import Hardware
from dpcourse.planning.recipes import Choice
from dpcourse.strategies import find

# What it takes to set a strategy up, from least to most.
EFFORTS = (
    "none",
    "one line",
    "a launcher and a wrapper",
    "an optimizer's wrapper on top",
    "a unit for each block",
    "a mesh of two axes on top",
    "a configuration file, an engine of its own",
    "host memory and a slow step on top",
)
_UNKNOWN_WIDTH = 8192


@dataclass(frozen=True)
class Candidate:
    """One way to train: a strategy with its options. family: what the table of decisions calls it."""

    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    effort: int = 0
    family: str | None = None
    checkpointing: str = "none"

    @property
    def key(self) -> str | None:
        """Its name in the table of decisions; offloading has one for all."""
        if self.family is None or self.family == OFFLOAD or self.checkpointing == "none":
            return self.family
        return self.family + RECOMPUTED

    @property
    def is_offloaded(self) -> bool:
        return bool(self.options.get("cpu_offload"))

    @property
    def label(self) -> str:
        shown = {"reduce_bucket_size", "grad_accum_dtype"}
        words = [f"{name}={value}" for name, value in self.options.items() if name not in shown]
        words += [f"checkpointing={self.checkpointing}"] if self.checkpointing != "none" else []
        return self.strategy + (f" ({', '.join(words)})" if words else "")


def candidates(
    hardware: Hardware, choice: Choice, checkpointing: str | None, width: int | None = None
) -> list[Candidate]:
    """List what can be asked for here; `missing` says what cannot.

    checkpointing: None tries none and full. width: of the model; DeepSpeed's buckets take its square of
    elements, as Hugging Face's trainer sets them (its own default of 5e8 takes a gigabyte more).
    """
    modes = ("none", "full") if checkpointing is None else (checkpointing,)
    found = [
        replace(candidate, checkpointing=mode)
        for candidate in _all(hardware, choice, (width or _UNKNOWN_WIDTH) ** 2)
        for mode in modes
        if _can(candidate, choice)
    ]
    return [candidate for candidate in found if not (candidate.is_offloaded and _is_spare(candidate, modes))]


def missing(hardware: Hardware, choice: Choice) -> list[str]:
    """Name the strategies that cannot do the recipe."""
    names = (candidate.strategy for candidate in _all(hardware, choice) if not _can(candidate, choice))
    return list(dict.fromkeys(names))


def _is_spare(candidate: Candidate, modes: tuple[str, ...]) -> bool:
    """Offloading is the last resort: it is tried with everything else that saves memory."""
    return candidate.checkpointing != modes[-1]


def _can(candidate: Candidate, choice: Choice) -> bool:
    return choice.recipe_for(candidate.strategy).name in find(candidate.strategy).recipes


def _all(hardware: Hardware, choice: Choice, bucket_size: int = 1) -> Iterator[Candidate]:
    yield Candidate("single", family=SINGLE if hardware.num_gpus == 1 else None)
    if hardware.num_gpus > 1:
        yield from _replicated(hardware)
        yield from _fully_sharded(hardware)
        yield from _deepspeed(choice, bucket_size)
    yield Candidate("fsdp2", {"cpu_offload": True}, 7, OFFLOAD)


def _replicated(hardware: Hardware) -> Iterator[Candidate]:
    if hardware.num_hosts == 1:
        yield Candidate("dp", effort=1)
    yield Candidate("ddp", effort=2, family=DDP)
    yield Candidate("ddp", {"gradient_as_bucket_view": True}, 2, DDP)
    yield Candidate("zero1", effort=3)


def _fully_sharded(hardware: Hardware) -> Iterator[Candidate]:
    mesh = (hardware.num_hosts, hardware.ranks_per_host)
    yield Candidate("fsdp2", {"reshard_after_forward": False}, 4, KEPT)
    yield Candidate("fsdp2", effort=4, family=FULL)
    if min(mesh) > 1:
        yield Candidate("fsdp2", {"mesh": mesh}, 5, HYBRID)
    yield Candidate("fsdp1", {"sharding": "SHARD_GRAD_OP"}, 4)
    yield Candidate("fsdp1", {"sharding": "FULL_SHARD"}, 4)
    if min(mesh) > 1:
        yield Candidate("fsdp1", {"sharding": "HYBRID_SHARD", "mesh": mesh}, 5)


def _deepspeed(choice: Choice, bucket_size: int) -> Iterator[Candidate]:
    for stage in (1, 2, 3):
        options: dict[str, Any] = {"stage": stage, "reduce_bucket_size": bucket_size}
        if choice.has_fp32_gradients:
            options["grad_accum_dtype"] = "fp32"
        yield Candidate("deepspeed", options, 6)
