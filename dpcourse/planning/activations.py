"""What one micro-batch of a decoder leaves on a rank: bytes kept for backward, the logits and the loss.

The same counting as theory/activations.py, for every architecture, with fused or plain attention and each
kind of checkpointing. Bytes, not elements: the known 34 s b h + 5 a s^2 b a layer are bytes at 16 bit with
dropout and plain attention. Source: Korthikanti et al., Reducing activation recomputation in large
transformer models, 2022, section 4.1; fused attention keeps one fp32 number a head and token in place of the
square. Tests hold it to what torch keeps of a Llama block and of the course's GPT.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dpcourse.planning.architecture import Architecture
from dpcourse.theory.activations import FLOAT_BYTES, Keeping

ATTENTIONS = ("fused", "plain")
CHECKPOINTINGS = ("none", "selective", "full")


@dataclass(frozen=True)
class Microbatch:
    """How a micro-batch is computed: its sequences, and what is kept of them.

    attention: "fused" never holds the table of scores, "plain" does. has_dropout: after attention's scores
    and after both halves of a block.
    """

    num_sequences: int
    sequence_length: int
    keeping: Keeping
    attention: str = "fused"
    checkpointing: str = "none"
    has_dropout: bool = False

    @property
    def num_tokens(self) -> int:
        return self.num_sequences * self.sequence_length


@dataclass(frozen=True)
class Activations:
    """Bytes on one rank: `kept` by unit at the end of forward, without the loss.

    recomputed: what one block makes again in backward. working: gradients of activations inside one block.
    loss: what is held at once when the loss's backward pass begins, by name.
    """

    kept: Mapping[str, int]
    recomputed: int
    working: int
    loss: Mapping[str, int]

    @property
    def kept_bytes(self) -> int:
        return sum(self.kept.values())

    @property
    def loss_bytes(self) -> int:
        return sum(self.loss.values())


def activations_of(model: Architecture, micro: Microbatch, loss_is_fp32: bool = True) -> Activations:
    """Count what a micro-batch leaves on a rank.

    loss_is_fp32: logits are cast to fp32 for the loss; else it is computed in the recipe's own format.
    """
    parts = block_parts(model, micro)
    again = recomputed_parts(parts, micro.checkpointing)
    block = sum(parts.values()) - sum(parts[part] for part in again)
    kept = {f"blocks.{index}": block for index in range(model.depth)}
    kept["norm"] = _final_norm(model, micro)
    if casts := _casts(model, micro):
        kept["casts"] = casts
    recomputed = sum(parts[part] for part in again)
    loss_bytes = FLOAT_BYTES if loss_is_fp32 else micro.keeping.loss_bytes
    loss = loss_parts(micro.num_tokens * model.vocabulary, micro.keeping.product_bytes, loss_bytes)
    return Activations(kept, recomputed, _working(model, micro), loss)


def block_parts(model: Architecture, micro: Microbatch) -> dict[str, int]:
    """Count what one block keeps, part by part: the inputs of its norms and of its matrix products."""
    tokens, stream, product = micro.num_tokens, micro.keeping.float_bytes, micro.keeping.product_bytes
    statistics = 2 if model.norm == "layer" else 1
    hidden = (4 if model.is_gated else 2) * model.num_hidden
    each_token = {
        "block's input": stream * model.width,
        "second norm's input": stream * model.width,
        "norms' statistics": 2 * statistics * stream,
        "norms' outputs": 2 * product * model.width,
        "queries, keys, values": product * (model.query_width + 2 * model.kv_width),
        "attention's output": product * model.query_width,
        "hidden layer": product * hidden,
        "dropout masks": 2 * model.width * micro.has_dropout,
        "attention's scores": _scores(model, micro),
    }
    return {part: tokens * num_bytes for part, num_bytes in each_token.items() if num_bytes}


def _scores(model: Architecture, micro: Microbatch) -> int:
    """Each token's: one fp32 number a head when fused, else a row of the table, once more with dropout.

    Under autocast the softmax is in fp32, and its cast for the product is kept too.
    """
    if micro.attention == "fused":
        return FLOAT_BYTES * model.heads
    softmax = micro.keeping.loss_bytes
    cast = micro.keeping.product_bytes if softmax != micro.keeping.product_bytes else 0
    dropped = micro.has_dropout * (1 + micro.keeping.product_bytes)
    return model.heads * micro.sequence_length * (softmax + cast + dropped)


def recomputed_parts(parts: Mapping[str, int], checkpointing: str) -> list[str]:
    """Name the parts that backward computes again: all but a block's input, or attention's scores alone.

    Selective recomputation gives nothing back where attention is fused: it has no table of scores.
    """
    if checkpointing == "full":
        return [part for part in parts if part != "block's input"]
    return ["attention's scores"] if checkpointing == "selective" else []


def _final_norm(model: Architecture, micro: Microbatch) -> int:
    statistics = 2 if model.norm == "layer" else 1
    stream, product = micro.keeping.float_bytes, micro.keeping.product_bytes
    return micro.num_tokens * (stream * (model.width + statistics) + product * model.width)


def _casts(model: Architecture, micro: Microbatch) -> int:
    """Casts of weights under autocast; those inside blocks that are computed again are made again."""
    head = model.width * model.vocabulary
    is_kept = micro.checkpointing != "full"
    blocks = micro.keeping.cast_bytes(model.multiplied - head, is_in_block=True) if is_kept else 0
    return blocks + micro.keeping.cast_bytes(head, is_in_block=False)


def _working(model: Architecture, micro: Microbatch) -> int:
    """Gradients of the hidden layer (of its gate too) and of the stream, while a block's backward goes on."""
    hidden = (3 if model.is_gated else 1) * model.num_hidden
    each = micro.keeping.product_bytes * hidden + micro.keeping.float_bytes * model.width
    return micro.num_tokens * each


def loss_parts(num_logits: int, logit_bytes: int, loss_bytes: int) -> dict[str, int]:
    """Count the logits, and the table of log-probabilities with its gradient and that of the logits.

    The loss's backward pass has them all at once. logit_bytes: of a number of the logits; loss_bytes: of one
    in the three tables, 4 where logits are cast to fp32 for the loss.
    """
    return {
        "logits": logit_bytes * num_logits,
        "log-probabilities": loss_bytes * num_logits,
        "their gradient": loss_bytes * num_logits,
        "the logits' gradient": loss_bytes * num_logits,
    }
