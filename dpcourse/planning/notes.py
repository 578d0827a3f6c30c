"""What a plan says beside its table: what was assumed, and what the numbers do not show by themselves."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dpcourse.planning.peak import CONTEXT_BYTES, GAPS
from dpcourse.planning.ranking import Row
from dpcourse.tables import bytes_text

if TYPE_CHECKING:
    from dpcourse.planning.judging import Asked

SMALL = 10**9  # parameters under which sharding has little to give


def notes_of(asked: "Asked", rows: Sequence[Row], missing: Sequence[str]) -> list[str]:
    """List the notes of a plan, what was assumed first."""
    return [*_assumed(asked), *_worth_knowing(asked, rows), *_counted(asked, missing)]


def _assumed(asked: "Asked") -> Iterator[str]:
    if asked.is_recipe_assumed:
        each = asked.choice.bytes_per_parameter(asked.optimizer)
        yield (
            f"RECIPE ASSUMED: {asked.choice.name}, {asked.choice.says}, {each} bytes a parameter; give "
            "recipe= for another"
        )
    yield from (f"assumed: {what}" for what in asked.hardware.assumed)
    if asked.is_sequence_assumed:
        yield f"assumed: sequences of {asked.sequence_length:,} tokens (give sequence_length=)"
    yield (
        f"assumed: cards reach {asked.utilisation:.0%} of their operations; the optimizer's step is left out"
    )
    yield from asked.subject.notes


def _worth_knowing(asked: "Asked", rows: Sequence[Row]) -> Iterator[str]:
    num_params, capacity = asked.subject.layout.num_params, asked.hardware.capacity_bytes
    whole = asked.choice.bytes_per_parameter(asked.optimizer) * num_params
    if asked.hardware.num_gpus == 1:
        yield "one card: ZeRO and FSDP share states with nobody, and save nothing"
    elif num_params < SMALL:
        yield (
            f"under 1B parameters: all states take {bytes_text(whole)} of {bytes_text(capacity)}, so that "
            "sharding gains next to nothing; what is held is activations, logits and loss"
        )
    yield from _of_best(rows[0], asked.hardware.ranks_per_host)
    if asked.checkpointing == "selective" and asked.attention == "fused":
        yield "selective checkpointing saves nothing here: fused attention has no table of scores to drop"


def _of_best(best: Row, ranks_per_host: int) -> Iterator[str]:
    """What the best row needs at its start and for a checkpoint."""
    memory, capacity = best.memory, best.capacity_bytes
    if not best.fits:
        yield from _of_none(best)
        return
    if memory.host_bytes:
        host = bytes_text(ranks_per_host * memory.host_bytes)
        yield (
            f"offload: {bytes_text(memory.host_bytes)} of host memory for each card, {host} in each host: "
            "whether it has as much is not checked"
        )
    if memory.start_bytes > capacity:
        yield (
            f"start: {bytes_text(memory.start_bytes)} if every rank builds the whole model on its card; "
            f"build it on the meta device ({bytes_text(memory.start_on_meta_bytes)})"
        )
    if memory.saving_bytes > capacity:
        yield (
            f"saving: {bytes_text(memory.saving_bytes)} on rank 0 for a full state dict; save shards "
            f"({bytes_text(memory.sharded_saving_bytes)}), or gather into host memory"
        )


def _of_none(least: Row) -> Iterator[str]:
    """What more cards do not make smaller: each computes a micro-batch of its own."""
    held = least.peak.num_bytes
    own = held.get("activations", 0) + held.get("logits", 0)
    if own > least.capacity_bytes:
        yield (
            f"activations, logits and loss of one micro-batch alone take {bytes_text(own)}, and more cards "
            "make that no smaller: a smaller micro_batch, shorter sequences, the loss in chunks, or "
            "sequences cut over cards (context parallelism)"
        )


def _counted(asked: "Asked", missing: Sequence[str]) -> Iterator[str]:
    yield (
        "planned is allocated memory (what tensors take), not what PyTorch reserves nor what nvidia-smi "
        f"shows; the margin is {bytes_text(CONTEXT_BYTES)} for CUDA's context and NCCL, and {GAPS:.0%} of "
        "what comes and goes for gaps between blocks"
    )
    if missing:
        yield f"cannot do this recipe, so not in the table: {', '.join(missing)}"
    if asked.choice.has_fp32_gradients:
        yield "only DeepSpeed accumulates gradients in fp32: the other rows are counted with bf16 gradients"
