"""What a plan is for: a model by name, by its configuration, as a module, or as a number of parameters."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from dpcourse.checks import check_count
from dpcourse.layout import Layout, Parameter, layout_of
from dpcourse.models import MODELS, GptSmall
from dpcourse.planning.activations import Activations, Microbatch, activations_of, loss_parts
from dpcourse.planning.architecture import Architecture
from dpcourse.planning.configuration import architecture_from
from dpcourse.planning.named import ARCHITECTURES
from dpcourse.strategies import check_name
from dpcourse.theory.activations import keeping_of
from dpcourse.theory.recipes import Recipe

ASSUMED_BLOCKS = 32
DEFAULT_SEQUENCE = 4096
_MOST_PARAMS = 10**15
_SIZES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


@dataclass(frozen=True)
class Subject:
    """A model as far as it is known.

    architecture: None where its activations cannot be told from its sizes. own: one of the course's models
    that is no decoder. loss_is_fp32: logits are cast to fp32 for the loss, as Hugging Face's and Megatron's
    are; the course's own models take the loss in the format of their logits.
    """

    name: str
    layout: Layout
    architecture: Architecture | None = None
    own: Any = None
    loss_is_fp32: bool = True
    notes: tuple[str, ...] = ()

    @property
    def context(self) -> int | None:
        return self.architecture.context if self.architecture else None

    @property
    def multiplied(self) -> int:
        """The parameters that a token is multiplied with; all of them where nothing else is known."""
        return self.architecture.multiplied if self.architecture else self.layout.num_params

    def activations(self, micro: Microbatch, recipe: Recipe) -> Activations | None:
        """Count what a micro-batch leaves; None where nobody knows."""
        if self.architecture:
            return activations_of(self.architecture, micro, self.loss_is_fp32)
        if self.own is None:
            return None
        kept = self.own.activation_bytes(micro.num_sequences, recipe, micro.checkpointing == "full")
        if kept is None:
            return None
        blocks = {unit: size for unit, size in kept.items() if unit != "loss"}
        number, loss = micro.keeping.product_bytes, micro.keeping.loss_bytes
        return Activations(blocks, 0, 0, loss_parts(micro.num_sequences * self.own.classes, number, loss))


def read_subject(model: Any, trainable: Any = None) -> Subject:
    """Find out what is to be planned.

    Raises ValueError or TypeError for what is no model, with the nearest names.
    """
    if trainable is not None and not _is_count(model):
        raise ValueError(
            f"trainable={trainable!r} goes with a parameter count, such as plan(34.3e9, trainable=0.91e9); "
            "of a module freeze parameters with requires_grad_(False)"
        )
    if isinstance(model, Architecture):
        return Subject(model.name, model.layout(), model)
    if isinstance(model, Mapping):
        return read_subject(architecture_from(model))
    if _is_count(model):
        return _of_count(_count(model), trainable)
    if isinstance(model, str):
        check_name("model", model, [*ARCHITECTURES, *MODELS])
        return read_subject(ARCHITECTURES[model] if model in ARCHITECTURES else MODELS[model]())
    if hasattr(model, "named_parameters") and not isinstance(model, type):
        return _of_module(model)
    if hasattr(model, "activation_bytes") and not isinstance(model, type):
        return _of_course(model)
    raise TypeError(
        f"model is a {type(model).__name__}; give a name (such as {', '.join(list(ARCHITECTURES)[4:7])}), a "
        'configuration as a dict, a module, or a parameter count such as 7e9 or "7B"'
    )


def _is_count(model: Any) -> bool:
    if isinstance(model, str):
        return bool(re.fullmatch(r"\s*[+-]?[\d.][\d._e+]*\s*[kmbt]?\s*", model.lower()))
    return isinstance(model, Real) and not isinstance(model, bool)


def _count(model: Any, what: str = "model") -> int:
    """Read 7e9, "7B" or "350M" as a number of parameters."""
    text = str(model).strip().lower()
    size = _SIZES.get(text[-1:], 1)
    try:
        count = float(text.rstrip("kmbt")) * size
    except ValueError:
        count = math.nan
    if not ASSUMED_BLOCKS <= count < _MOST_PARAMS:  # nan is neither
        raise ValueError(
            f"{what}={model!r}: give a number of parameters from {ASSUMED_BLOCKS} to {_MOST_PARAMS:.0e}, "
            'such as 7e9 or "7B"'
        )
    return round(count)


def _of_count(num_params: int, trainable: Any) -> Subject:
    """A model of which only the size is known, cut into equal blocks; what is trained is spread over them."""
    num_trained = num_params if trainable is None else _count(trainable, "trainable")
    if num_trained > num_params:
        raise ValueError(f"trainable={trainable!r} is more than the model's {num_params:,} parameters")
    parameters: list[Parameter] = []
    for index in range(ASSUMED_BLOCKS):
        whole, trained = (_part(number, index) for number in (num_params, num_trained))
        if whole > trained:
            parameters.append(Parameter(f"blocks.{index}.frozen", (whole - trained,), is_trainable=False))
        if trained:
            parameters.append(Parameter(f"blocks.{index}.trained", (trained,)))
    notes = (
        f"only the size is known: {ASSUMED_BLOCKS} equal blocks are assumed, and activations, logits and "
        "loss are not counted",
    )
    return Subject("a model of any shape", Layout(tuple(parameters)), notes=notes)


def _part(number: int, index: int) -> int:
    return number * (index + 1) // ASSUMED_BLOCKS - number * index // ASSUMED_BLOCKS


def _of_module(module: Any) -> Subject:
    layout = layout_of(module)
    if not layout.trainable:
        raise ValueError(
            f"{type(module).__name__} has no parameter to train; leave one with requires_grad=True"
        )
    notes = (
        "a module's sizes are known, what its forward keeps is not: activations and logits are not counted",
    )
    return Subject(type(module).__name__, layout, notes=notes)


def _of_course(model: Any) -> Subject:
    if not isinstance(model, GptSmall):
        return Subject(model.name, model.layout(), own=model, loss_is_fp32=False)
    return Subject(model.name, model.layout(), architecture_of(model), loss_is_fp32=False)


def architecture_of(model: GptSmall) -> Architecture:
    """Say the course's GPT in an architecture's integers."""
    return Architecture(
        model.name,
        model.vocabulary,
        model.width,
        model.depth,
        model.heads,
        positions=model.context,
        context=model.context,
        has_query_bias=True,
        has_projection_bias=True,
        has_mlp_bias=True,
    )


def read_sequence(subject: Subject, asked: Any) -> tuple[int, bool]:
    """Give the length of sequences, and whether it was assumed.

    Raises ValueError for one that is longer than the model's positions.
    """
    if subject.own is not None:
        if asked is not None:
            raise ValueError(f"sequence_length={asked!r}: {subject.name} has no sequences; leave it out")
        return 1, False
    if asked is None:
        return min(subject.context or DEFAULT_SEQUENCE, DEFAULT_SEQUENCE), True
    check_count("sequence_length", asked)
    if subject.context is not None and asked > subject.context:
        raise ValueError(
            f"sequence_length={asked:,} is longer than the {subject.context:,} positions of {subject.name}; "
            f"give at most {subject.context:,}, or a configuration with more positions"
        )
    return asked, False


def microbatch(
    recipe: Recipe, micro_batch: int, sequence: int, attention: str, checkpointing: str
) -> Microbatch:
    keeping = keeping_of(recipe, checkpointing == "full")
    return Microbatch(micro_batch, sequence, keeping, attention, checkpointing)
