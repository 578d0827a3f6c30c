"""The torch modules that the configurations in models.py build. Importing this file imports torch."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpcourse.layout import unit_of

Result = TypeVar("Result")


class Mlp(nn.Module):
    """Linear layers with ReLU between them. Input (batch, features), output (batch, classes)."""

    def __init__(self, features: int, width: int, depth: int, classes: int) -> None:
        super().__init__()
        sizes = [features] + [width] * depth
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], classes))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs)


class ConvNet(nn.Module):
    """Convolutions with batch norm. Input (batch, 3, image_size, image_size), output (batch, classes)."""

    def __init__(self, channels: tuple[int, ...], classes: int) -> None:
        super().__init__()
        sizes = (3, *channels)
        self.blocks = nn.Sequential(*(_convolution(inputs, outputs) for inputs, outputs in pairwise(sizes)))
        self.head = nn.Linear(channels[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(images).mean(dim=(2, 3)))


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),  # the norm has the bias
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


class Gpt(nn.Module):
    """A GPT whose head shares the token embedding's table: (batch, context) in, (..., vocabulary) out."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, depth: int) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.position_embedding = PositionTable(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for table in (self.token_embedding, self.position_embedding):
            nn.init.normal_(table.weight, std=0.02)
        self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.token_embedding(tokens) + self.position_embedding(tokens.shape[1])
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream))


class PositionTable(nn.Embedding):
    """The embeddings of the first positions: a slice of the table, so that backward keeps no positions.

    It is a module that is called and gives a copy: FSDP gathers the table before the call, and may free it
    after.
    """

    def forward(self, num_positions: int) -> Tensor:  # type: ignore[override]
        return self.weight[:num_positions].clone()


class Block(nn.Module):
    """Attention, then a hidden layer four times as wide, each after a norm and added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.hidden_norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.projection(self._attend(self.attention_norm(stream)))
        return stream + self.contract(F.gelu(self.expand(self.hidden_norm(stream))))

    def _attend(self, inputs: Tensor) -> Tensor:
        batch, context, _ = inputs.shape
        # Where heads are shared out over ranks, self.heads are this rank's, and the results are as few.
        split = self.queries_keys_values(inputs).view(batch, context, 3, self.heads, -1)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return attended.transpose(1, 2).reshape(batch, context, -1)


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy for targets that are classes, mean squared error for targets that are numbers."""
    if targets.is_floating_point():
        return F.mse_loss(outputs, targets)
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def checkpoint_blocks(module: nn.Module) -> None:
    """Keep only each repeated block's input in forward; backward computes the block once more.

    Batch norms see the batch in the first forward pass alone: their running statistics move once a step.
    Source: Chen et al., Training deep nets with sublinear memory cost, 2016.
    """
    for name, block in module.named_modules():
        is_block = unit_of(f"{name}.weight") == name and name.rpartition(".")[2].isdigit()
        if is_block and any(True for _ in block.parameters()):
            contexts = partial(_first_and_second_forward, block)
            block.forward = partial(  # type: ignore[method-assign]
                checkpoint, block.forward, use_reentrant=False, context_fn=contexts
            )


def _first_and_second_forward(block: nn.Module) -> tuple[AbstractContextManager, AbstractContextManager]:
    return nullcontext(), _kept_buffers(block)


@contextmanager
def _kept_buffers(block: nn.Module) -> Iterator[None]:
    """Put the buffers back as they were: what is computed again has been counted before."""
    before = [(buffer, buffer.clone()) for buffer in block.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def arrival_of(module: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[str, ...]:
    """Find the order in which gradients arrive, by one backward pass; a parameter without one is left out."""
    names: list[str] = []
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: names.append(name))
    loss = loss_of(_output_of(module, inputs), targets)
    if not loss.requires_grad:
        raise ValueError(
            "the loss depends on no parameter that is trained, so that there are no gradients; let forward "
            "use one that has requires_grad=True, outside of torch.no_grad() and without detach()"
        )
    loss.backward()
    return tuple(names)


def _output_of(module: nn.Module, inputs: Tensor) -> Tensor:
    """Call a module, and refuse an output from which no loss can be taken."""
    outputs = module(inputs)
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"forward returned {type(outputs).__name__}, and the loss is taken of one tensor; let forward "
            "return the predictions alone"
        )
    return outputs


def seeded(build: Callable[[], Result], seed: int) -> Result:
    """Build something from a seed, leaving the process's own random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()
