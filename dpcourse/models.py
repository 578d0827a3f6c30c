"""The course's models as configurations of integers: layouts and activations need no torch, building does.

Change a size by giving a configuration instead of a name: `dc.train("ddp", model=Mlp(width=1024))`.
"""

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from dpcourse import data
from dpcourse.checks import check_count
from dpcourse.layout import Layout, Parameter, layout_of
from dpcourse.theory import activations
from dpcourse.theory.recipes import RECIPES, Recipe

if TYPE_CHECKING:
    from torch import nn


FP32 = RECIPES["fp32"]
_FLOAT_BYTES, _CLASS_BYTES = 4, 8  # inputs are fp32, classes and tokens int64
_TRIAL_SAMPLES = 2  # a batch norm refuses a single one


@dataclass(frozen=True)
class Mlp:
    """Linear layers with ReLU between them: `depth` hidden layers of `width`."""

    name: ClassVar[str] = "mlp"
    features: int = 64
    width: int = 512
    depth: int = 3
    classes: int = 10

    def __post_init__(self) -> None:
        _check_sizes(self)

    def layout(self) -> Layout:
        sizes = [self.features] + [self.width] * self.depth + [self.classes]
        parameters: list[Parameter] = []
        for index, (inputs, outputs) in enumerate(pairwise(sizes)):
            parameters += _linear(f"layers.{2 * index}", inputs, outputs)
        return Layout(tuple(parameters))

    def build(self, seed: int) -> "nn.Module":
        from dpcourse import modules

        return modules.seeded(lambda: modules.Mlp(self.features, self.width, self.depth, self.classes), seed)

    def batch(self, batch_size: int, seed: int) -> "data.Batch":
        return data.classified_points(batch_size, self.features, self.classes, seed)

    def batch_bytes(self, batch_size: int, float_bytes: int = _FLOAT_BYTES) -> int:
        return self.input_bytes(batch_size, float_bytes) + batch_size * _CLASS_BYTES

    def input_bytes(self, batch_size: int, float_bytes: int = _FLOAT_BYTES) -> int:
        return batch_size * float_bytes * self.features

    def output_bytes(self, batch_size: int, float_bytes: int = _FLOAT_BYTES) -> int:
        return batch_size * float_bytes * self.classes

    def activation_bytes(
        self, batch_size: int, recipe: Recipe = FP32, is_checkpointed: bool = False
    ) -> dict[str, int]:
        keeping = activations.keeping_of(recipe, is_checkpointed)
        sizes = (self.features, self.width, self.depth, self.classes)
        return activations.mlp_bytes(batch_size, *sizes, keeping)


@dataclass(frozen=True)
class ConvNet:
    """Blocks of convolution, batch norm, ReLU and pooling: the model with buffers."""

    name: ClassVar[str] = "convnet"
    image_size: int = 16
    channels: tuple[int, ...] = (32, 64, 128)
    classes: int = 10

    def __post_init__(self) -> None:
        _check_sizes(self)
        if self.image_size % 2 ** len(self.channels):
            raise ValueError(
                f"{len(self.channels)} blocks halve an image {len(self.channels)} times, but image_size is "
                f"{self.image_size}; choose a multiple of {2 ** len(self.channels)}"
            )

    def layout(self) -> Layout:
        parameters: list[Parameter] = []
        buffers: list[Parameter] = []
        for index, (inputs, outputs) in enumerate(pairwise((3, *self.channels))):
            parameters.append(Parameter(f"blocks.{index}.0.weight", (outputs, inputs, 3, 3)))
            parameters += _norm(f"blocks.{index}.1", outputs)
            buffers += _running_statistics(f"blocks.{index}.1", outputs)
        parameters += _linear("head", self.channels[-1], self.classes)
        return Layout(tuple(parameters), tuple(buffers))

    def build(self, seed: int) -> "nn.Module":
        from dpcourse import modules

        return modules.seeded(lambda: modules.ConvNet(self.channels, self.classes), seed)

    def batch(self, batch_size: int, seed: int) -> "data.Batch":
        return data.classified_images(batch_size, self.image_size, self.classes, seed)

    def batch_bytes(self, batch_size: int, float_bytes: int = _FLOAT_BYTES) -> int:
        return self.input_bytes(batch_size, float_bytes) + batch_size * _CLASS_BYTES

    def input_bytes(self, batch_size: int, float_bytes: int = _FLOAT_BYTES) -> int:
        return batch_size * float_bytes * 3 * self.image_size**2

    def output_bytes(self, batch_size: int, float_bytes: int = _FLOAT_BYTES) -> int:
        return batch_size * float_bytes * self.classes

    def activation_bytes(
        self, batch_size: int, recipe: Recipe = FP32, is_checkpointed: bool = False
    ) -> dict[str, int] | None:
        if recipe.gather_dtype:
            return None  # gathered in bf16 beside fp32 statistics: nobody has found out
        keeping = activations.keeping_of(recipe, is_checkpointed)
        sizes = (self.image_size, self.channels, self.classes)
        return activations.convnet_bytes(batch_size, *sizes, keeping)


@dataclass(frozen=True)
class GptSmall:
    """A small GPT: its head shares the token embedding's table, which counts once."""

    name: ClassVar[str] = "gpt-small"
    vocabulary: int = 256
    context: int = 32
    width: int = 128
    heads: int = 4
    depth: int = 6

    def __post_init__(self) -> None:
        _check_sizes(self)
        if self.width % self.heads:
            raise ValueError(
                f"a width of {self.width} does not divide over {self.heads} heads; "
                f"choose a width that is a multiple of {self.heads}"
            )

    def layout(self) -> Layout:
        parameters = [
            Parameter("token_embedding.weight", (self.vocabulary, self.width)),
            Parameter("position_embedding.weight", (self.context, self.width)),
        ]
        for index in range(self.depth):
            parameters += self._block(f"blocks.{index}")
        parameters += _norm("norm", self.width)
        return Layout(tuple(parameters), shared=(("head.weight", "token_embedding.weight"),))

    def _block(self, name: str) -> list[Parameter]:
        return [
            *_norm(f"{name}.attention_norm", self.width),
            *_linear(f"{name}.queries_keys_values", self.width, 3 * self.width),
            *_linear(f"{name}.projection", self.width, self.width),
            *_norm(f"{name}.hidden_norm", self.width),
            *_linear(f"{name}.expand", self.width, 4 * self.width),
            *_linear(f"{name}.contract", 4 * self.width, self.width),
        ]

    def build(self, seed: int) -> "nn.Module":
        from dpcourse import modules

        sizes = (self.vocabulary, self.context, self.width, self.heads, self.depth)
        return modules.seeded(lambda: modules.Gpt(*sizes), seed)

    def batch(self, batch_size: int, seed: int) -> "data.Batch":
        return data.token_sequences(batch_size, self.context, self.vocabulary, seed)

    def batch_bytes(self, batch_size: int, float_bytes: int = _FLOAT_BYTES) -> int:
        return 2 * self.input_bytes(batch_size)  # tokens and the tokens that follow them

    def input_bytes(self, batch_size: int, float_bytes: int = _FLOAT_BYTES) -> int:
        return batch_size * self.context * _CLASS_BYTES

    def output_bytes(self, batch_size: int, float_bytes: int = _FLOAT_BYTES) -> int:
        return batch_size * float_bytes * self.context * self.vocabulary

    def activation_bytes(
        self, batch_size: int, recipe: Recipe = FP32, is_checkpointed: bool = False
    ) -> dict[str, int]:
        keeping = activations.keeping_of(recipe, is_checkpointed)
        sizes = (self.context, self.width, self.heads, self.depth, self.vocabulary)
        return activations.gpt_bytes(batch_size, *sizes, keeping)


@dataclass(frozen=True)
class Gpt7B(GptSmall):
    """The same GPT with 7 billion parameters: for dry runs and expected lists."""

    name: ClassVar[str] = "gpt-7b"
    vocabulary: int = 32_000
    context: int = 2048
    width: int = 4096
    heads: int = 32
    depth: int = 34


@dataclass(frozen=True)
class Gpt70B(Gpt7B):
    """The same GPT with 70 billion parameters: for dry runs and expected lists."""

    name: ClassVar[str] = "gpt-70b"
    width: int = 8192
    heads: int = 64
    depth: int = 86


@dataclass(frozen=True)
class OwnModel:
    """A learner's model: a function that returns an nn.Module, and one that gives its batches.

    batch_function(batch_size, seed) returns inputs and targets whose first axis is the batch; the loss is the
    mean cross-entropy for integer targets and the mean squared error for others. The order in which gradients
    arrive is found by a backward pass over two samples; what autograd keeps is not predicted.
    """

    function: Any
    batch_function: Any

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def layout(self) -> Layout:
        from dpcourse import modules

        module = self.build(0)
        layout = layout_of(module)
        if not layout.trainable:
            return layout
        batch = self.batch(_TRIAL_SAMPLES, 0)
        arrival = modules.seeded(lambda: modules.arrival_of(module, *batch), 0)
        return replace(layout.with_used(arrival), arrival=arrival)

    def build(self, seed: int) -> "nn.Module":
        from torch import nn

        from dpcourse import modules

        module = modules.seeded(self.function, seed)
        if not isinstance(module, nn.Module):
            raise TypeError(f"model={self.name} returned {type(module).__name__}; let it return an nn.Module")
        return module

    def batch(self, batch_size: int, seed: int) -> "data.Batch":
        batch = self.batch_function(batch_size, seed)
        _check_batch(batch, batch_size)
        return batch

    def batch_bytes(self, batch_size: int, float_bytes: int = _FLOAT_BYTES) -> None:
        return None

    def input_bytes(self, batch_size: int, float_bytes: int = _FLOAT_BYTES) -> int:
        inputs = self.batch(_TRIAL_SAMPLES, 0)[0]
        return _rows_bytes(inputs, batch_size, float_bytes)

    def output_bytes(self, batch_size: int, float_bytes: int = _FLOAT_BYTES) -> int:
        """Found by a forward pass over two samples."""
        from dpcourse import modules

        inputs = self.batch(_TRIAL_SAMPLES, 0)[0]
        return _rows_bytes(modules.seeded(lambda: self.build(0)(inputs), 0), batch_size, float_bytes)

    def activation_bytes(self, batch_size: int, recipe: Recipe = FP32, is_checkpointed: bool = False) -> None:
        return None


MODELS: dict[str, type] = {model.name: model for model in (Mlp, ConvNet, GptSmall, Gpt7B, Gpt70B)}


def _check_sizes(model: Any) -> None:
    """Refuse a size that is no whole number from 1 on."""
    for item in fields(model):
        value = getattr(model, item.name)
        for size in value if isinstance(value, tuple) and value else (value,):
            check_count(item.name, size)


def _check_batch(batch: Any, batch_size: int) -> None:
    """Refuse what is not a pair of tensors with a row for each sample: shares would be unequal, or none."""
    from torch import Tensor

    parts = batch if isinstance(batch, tuple | list) else (batch,)
    found = [list(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in parts]
    if len(parts) != 2 or not all(isinstance(shape, list) and shape[:1] == [batch_size] for shape in found):
        raise ValueError(
            f"batch was asked for {batch_size} samples and returned ({', '.join(map(str, found))}); "
            f"let it return (inputs, targets), two tensors of {batch_size} rows each"
        )


def _rows_bytes(trial: Any, num_rows: int, float_bytes: int) -> int:
    """Count as many rows as asked for, from a trial of two; floats are cast to float_bytes each."""
    item_bytes = float_bytes if trial.is_floating_point() else trial.element_size()
    return num_rows * item_bytes * trial.numel() // _TRIAL_SAMPLES


def _linear(name: str, inputs: int, outputs: int) -> list[Parameter]:
    return [Parameter(f"{name}.weight", (outputs, inputs)), Parameter(f"{name}.bias", (outputs,))]


def _norm(name: str, width: int) -> list[Parameter]:
    return [Parameter(f"{name}.weight", (width,)), Parameter(f"{name}.bias", (width,))]


def _running_statistics(name: str, width: int) -> list[Parameter]:
    return [
        Parameter(f"{name}.running_mean", (width,), is_trainable=False),
        Parameter(f"{name}.running_var", (width,), is_trainable=False),
        Parameter(f"{name}.num_batches_tracked", (), "int64", is_trainable=False),
    ]
