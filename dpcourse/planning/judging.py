"""Make a row of every candidate: what its lists hold and move, at the size that was asked for."""

from dataclasses import dataclass
from typing import Any

from dpcourse.layout import DTYPE_BYTES
from dpcourse.ledger import Holding, Transfer
from dpcourse.planning.activations import Microbatch
from dpcourse.planning.candidates import Candidate, candidates
from dpcourse.planning.clock import time_of, transfers_of
from dpcourse.planning.hardware import Hardware
from dpcourse.planning.peak import holdings_of, layer_bytes, memory_of
from dpcourse.planning.ranking import Row
from dpcourse.planning.recipes import Choice
from dpcourse.planning.subject import Subject, microbatch
from dpcourse.strategies import Setting, options_for
from dpcourse.theory.recipes import Recipe

_TOKEN_BYTES = 2 * 8  # a token and the one that follows it


@dataclass(frozen=True)
class Asked:
    """What a plan is for, read and checked."""

    subject: Subject
    hardware: Hardware
    choice: Choice
    is_recipe_assumed: bool
    optimizer: str
    sequence_length: int
    is_sequence_assumed: bool
    micro_batch: int
    checkpointing: str | None
    attention: str
    utilisation: float


def rows_of(asked: Asked) -> list[Row]:
    """Judge every candidate; the lists of a strategy serve each kind of checkpointing."""
    width = asked.subject.architecture.width if asked.subject.architecture else None
    mode = asked.checkpointing if _has_activations(asked) else "none"
    known: dict[Any, tuple[Setting, list[Holding], list[Transfer]]] = {}
    rows = []
    for candidate in candidates(asked.hardware, asked.choice, mode, width):
        key = (candidate.strategy, tuple(candidate.options.items()))
        if key not in known:
            setting = setting_of(asked, candidate)
            held = holdings_of(candidate.strategy, setting)
            known[key] = setting, held, transfers_of(candidate.strategy, setting)
        rows.append(_row(asked, candidate, *known[key]))
    return rows


def _has_activations(asked: Asked) -> bool:
    return asked.subject.architecture is not None or asked.subject.own is not None


def _row(
    asked: Asked, candidate: Candidate, setting: Setting, held: list[Holding], moved: list[Transfer]
) -> Row:
    micro = _micro(asked, setting.recipe, candidate.checkpointing)
    memory = memory_of(candidate, setting, held, asked.subject.activations(micro, setting.recipe))
    time = time_of(
        candidate,
        setting,
        moved,
        asked.subject,
        micro,
        asked.hardware,
        asked.utilisation,
        memory.host_bytes,
    )
    is_alone = candidate.strategy == "single" and asked.hardware.num_gpus > 1
    return Row(candidate, setting.recipe.name, memory, time, asked.hardware.capacity_bytes, is_alone)


def _micro(asked: Asked, recipe: Recipe, checkpointing: str) -> Microbatch:
    return microbatch(recipe, asked.micro_batch, asked.sequence_length, asked.attention, checkpointing)


def setting_of(asked: Asked, candidate: Candidate) -> Setting:
    """Say a candidate as the strategies' lists take it: on GPUs, without the activations."""
    recipe = asked.choice.recipe_for(candidate.strategy)
    layout = asked.subject.layout.cast(recipe.parameter_dtype)
    if recipe.autocast_dtype:
        layout = layout.under_autocast()
    world_size = 1 if candidate.strategy == "single" else asked.hardware.num_gpus
    return Setting(
        layout=layout,
        world_size=world_size,
        batch_size=world_size * asked.micro_batch,
        optimizer=asked.optimizer,
        options=options_for(candidate.strategy, dict(candidate.options)),
        input_bytes=asked.micro_batch * asked.sequence_length * _TOKEN_BYTES // 2,
        output_bytes=_output_bytes(asked, recipe),
        batch_bytes=asked.micro_batch * asked.sequence_length * _TOKEN_BYTES,
        recipe=recipe,
        backend="nccl",
        device="cuda",
    )


def _output_bytes(asked: Asked, recipe: Recipe) -> int:
    """The logits of one rank, which DataParallel hands to its main rank."""
    classes = asked.subject.architecture.vocabulary if asked.subject.architecture else 0
    return asked.micro_batch * asked.sequence_length * classes * DTYPE_BYTES[recipe.computed_dtype]


def largest_layer_bytes(asked: Asked) -> int:
    candidate = Candidate("fsdp2")
    setting = setting_of(asked, candidate)
    mode = "full" if asked.checkpointing is None else asked.checkpointing
    micro = _micro(asked, setting.recipe, mode)
    return layer_bytes(setting, asked.subject.activations(micro, setting.recipe))
