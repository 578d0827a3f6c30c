"""Bytes that autograd keeps for the backward pass, as formulas of a model's sizes.

Only what forward makes is counted, each storage once: parameters are held anyway, and inputs and targets are
the batch. A linear layer keeps its input and a ReLU its output: one storage where one follows the other.
Found by watching what torch 2.13 saves on CPU, where tests hold it to the byte; the same counting by hand:
Korthikanti et al., Reducing activation recomputation in large transformer models, 2022, section 4.1.
"""

from dataclasses import dataclass
from itertools import pairwise

from dpcourse.layout import DTYPE_BYTES
from dpcourse.theory.recipes import Recipe

FLOAT_BYTES, BF16_BYTES, INDEX_BYTES = 4, 2, 8


@dataclass(frozen=True)
class Keeping:
    """How forward computes, as far as it decides what is kept.

    float_bytes: of a number of the parameters. is_autocast: matrix products take and give bf16, and keep
    casts of fp32 weights and inputs. is_checkpointed: a repeated block keeps its input alone, and computes
    the rest again in backward (Chen et al., Training deep nets with sublinear memory cost, 2016).
    is_batch_cast: inputs are cast before the model sees them, as FSDP does, so that the cast is kept.
    """

    float_bytes: int = FLOAT_BYTES
    is_autocast: bool = False
    is_checkpointed: bool = False
    is_batch_cast: bool = False

    @property
    def product_bytes(self) -> int:
        """Bytes of a number that a matrix product takes or gives."""
        return BF16_BYTES if self.is_autocast else self.float_bytes

    @property
    def loss_bytes(self) -> int:
        """Autocast computes the loss in fp32."""
        return FLOAT_BYTES if self.is_autocast else self.float_bytes

    def cast_bytes(self, num_elements: int, is_in_block: bool = True) -> int:
        """Casts of weights and inputs; those inside a checkpointed block are made again."""
        is_kept = self.is_autocast and not (is_in_block and self.is_checkpointed)
        return BF16_BYTES * num_elements if is_kept else 0


def keeping_of(recipe: Recipe, is_checkpointed: bool = False) -> Keeping:
    """Say how forward computes under a recipe."""
    return Keeping(
        DTYPE_BYTES[recipe.gather_dtype or recipe.parameter_dtype],
        is_autocast=recipe.autocast_dtype is not None,
        is_checkpointed=is_checkpointed,
        is_batch_cast=recipe.gather_dtype is not None,
    )


def mlp_bytes(
    batch: int, features: int, width: int, depth: int, classes: int, keeping: Keeping
) -> dict[str, int]:
    """Linear layers with ReLU between: the output of each ReLU is kept, and what the loss needs.

    A checkpointed linear layer keeps its input, which it kept before: checkpoints save nothing but casts.
    The first layer's weight needs no cast in backward: nobody asks for the gradient of the batch.
    """
    kept = {f"layers.{2 * layer + 1}": keeping.product_bytes * batch * width for layer in range(depth)}
    weights = width * width * (depth - 1) + classes * width
    casts = keeping.cast_bytes(batch * features + weights)
    casts += keeping.float_bytes * batch * features if keeping.is_batch_cast else 0
    return _with_casts(kept, casts) | _loss(batch, classes, keeping)


def convnet_bytes(
    batch: int, image_size: int, channels: tuple[int, ...], classes: int, keeping: Keeping
) -> dict[str, int]:
    """Blocks of convolution, batch norm, ReLU and 2 x 2 max-pooling, then a mean over pixels and a head.

    Batch norm keeps its input and two statistics a channel, ReLU its output, pooling where each maximum was;
    the next block's convolution (or, after the last block, nothing) keeps the pooled images.
    """
    kept = {}
    for index, width in enumerate(channels):
        pixels = batch * width * (image_size >> index) ** 2
        inside = keeping.product_bytes * 2 * pixels + keeping.float_bytes * 2 * width
        inside += INDEX_BYTES * (pixels // 4)
        kept[f"blocks.{index}"] = 0 if keeping.is_checkpointed else inside
        if index < len(channels) - 1:
            kept[f"blocks.{index + 1}, input"] = keeping.product_bytes * (pixels // 4)
    kept["head"] = keeping.product_bytes * batch * channels[-1]
    kernels = sum(9 * inputs * outputs for inputs, outputs in pairwise((3, *channels)))
    casts = keeping.cast_bytes(batch * 3 * image_size**2 + kernels)
    casts += keeping.cast_bytes(classes * channels[-1], is_in_block=False)
    return _with_casts(kept, casts) | _loss(batch, classes, keeping)


def gpt_bytes(
    batch: int, context: int, width: int, heads: int, depth: int, vocabulary: int, keeping: Keeping
) -> dict[str, int]:
    """A GPT with fused attention, which keeps one fp32 number a head and token, not the table of scores.

    A block keeps for each token: the inputs of both norms (2 x width) with mean and deviation (4), and what
    matrix products take: the norms' outputs (2 x width), queries, keys and values (3 x width), the
    attention's output (width), and the hidden layer before and after GELU (8 x width). Under autocast the
    stream and the norms stay in fp32.
    """
    tokens, stream, product = batch * context, keeping.float_bytes, keeping.product_bytes
    block = tokens * (stream * (2 * width + 4) + product * 14 * width + FLOAT_BYTES * heads)
    if keeping.is_checkpointed:
        block = tokens * stream * width
    kept = {f"blocks.{index}": block for index in range(depth)}
    kept["norm"] = tokens * (stream * (width + 2) + product * width)
    casts = keeping.cast_bytes(depth * 12 * width * width)
    casts += keeping.cast_bytes(vocabulary * width, is_in_block=False)
    return _with_casts(kept, casts) | _loss(tokens, vocabulary, keeping)


def _with_casts(kept: dict[str, int], cast_bytes: int) -> dict[str, int]:
    parts = kept | {"casts": cast_bytes}
    return {part: num_bytes for part, num_bytes in parts.items() if num_bytes}


def _loss(num_terms: int, classes: int, keeping: Keeping) -> dict[str, int]:
    """Mean cross-entropy keeps the log-probabilities and one number: the weight of all terms together."""
    return {"loss": keeping.loss_bytes * (num_terms * classes + 1)}
