"""Bytes that autograd keeps for the backward pass, as formulas of a model's sizes, in fp32.

Only what forward makes is counted, each storage once: parameters are held anyway, and inputs and targets are
the batch. A linear layer keeps its input and a ReLU its output: one storage where one follows the other.
"""

FLOAT_BYTES = 4
INDEX_BYTES = 8


def mlp_bytes(batch: int, width: int, depth: int, classes: int) -> dict[str, int]:
    """Linear layers with ReLU between: the output of each ReLU is kept, and what the loss needs."""
    kept = {f"layers.{2 * layer + 1}": FLOAT_BYTES * batch * width for layer in range(depth)}
    return kept | {"loss": cross_entropy_bytes(batch, classes)}


def convnet_bytes(batch: int, image_size: int, channels: tuple[int, ...], classes: int) -> dict[str, int]:
    """Blocks of convolution, batch norm, ReLU and 2 x 2 max-pooling, then a mean over pixels and a head.

    Batch norm keeps its input and two statistics a channel, ReLU its output, pooling where each maximum was;
    the next block's convolution (or, after the last block, nothing) keeps the pooled images.
    """
    kept = {}
    for index, width in enumerate(channels):
        pixels = batch * width * (image_size >> index) ** 2
        pooled = pixels // 4
        is_last = index == len(channels) - 1
        num_floats = 2 * pixels + 2 * width + (0 if is_last else pooled)
        kept[f"blocks.{index}"] = FLOAT_BYTES * num_floats + INDEX_BYTES * pooled
    kept["head"] = FLOAT_BYTES * batch * channels[-1]
    return kept | {"loss": cross_entropy_bytes(batch, classes)}


def gpt_bytes(
    batch: int, context: int, width: int, heads: int, depth: int, vocabulary: int
) -> dict[str, int]:
    """A GPT with fused attention, which keeps one number a head and token instead of the table of scores.

    A block keeps for each token: the inputs of both norms (2 x width) with mean and deviation (4), their
    outputs (2 x width), queries, keys and values (3 x width), the attention's output (width) with one number
    a head, and the hidden layer before and after GELU (8 x width): 16 x width + heads + 4 numbers.
    """
    tokens = batch * context
    block = FLOAT_BYTES * tokens * (16 * width + heads + 4)
    kept = {f"blocks.{index}": block for index in range(depth)}
    kept["norm"] = FLOAT_BYTES * tokens * (2 * width + 2)
    return kept | {"loss": cross_entropy_bytes(tokens, vocabulary)}


def cross_entropy_bytes(num_terms: int, classes: int) -> int:
    """Mean cross-entropy keeps the log-probabilities and one number: the weight of all terms together."""
    return FLOAT_BYTES * (num_terms * classes + 1)
