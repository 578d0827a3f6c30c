"""Lab 03: models of linear layers in whole numbers, whose gradients the judge computes without torch.

Weights, samples and targets are small whole numbers, so that sums of gradients are exact in any order, and
only the division by the number of ranks rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpcourse.layout import Bucket, Parameter, assign_buckets

NUM_ROWS, NUM_STEPS = 2, 2
UNUSED = "a model with a layer that one rank does not use"


@dataclass(frozen=True)
class Chain:
    """Layers one after the other, h becomes h W^T + b. Parameters are named as in torch.

    frozen: names of parameters that are not trained. tied: two layers with one weight, which bears the
    first one's name. cap_bytes: where buckets are asked for. is_gated: the last rank begins its backward pass
    when rank 0 has ended its own.
    """

    title: str
    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]
    frozen: tuple[str, ...] = ()
    tied: tuple[int, int] | None = None
    cap_bytes: int = 0
    is_gated: bool = False

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return len(self.weights)

    def weight_name(self, layer: int) -> str:
        """The name of a layer's weight."""
        owner = self.tied[0] if self.tied and layer == self.tied[1] else layer
        return f"layers.{owner}.weight"

    def parameters(self) -> dict[str, np.ndarray]:
        """Every parameter once, in order of definition."""
        found: dict[str, np.ndarray] = {}
        for layer, pair in enumerate(zip(self.weights, self.biases, strict=True)):
            found.setdefault(self.weight_name(layer), pair[0])
            found[f"layers.{layer}.bias"] = pair[1]
        return found

    def trained(self) -> dict[str, np.ndarray]:
        """Those that are trained."""
        return {name: array for name, array in self.parameters().items() if name not in self.frozen}

    def buckets(self) -> list[Bucket]:
        """The buckets that are asked for, in the order in which they are to leave."""
        sizes = [Parameter(name, a.shape, a.dtype.name) for name, a in reversed(self.trained().items())]
        return assign_buckets(sizes, [self.cap_bytes])


@dataclass(frozen=True)
class Share:
    """What a rank gets of one chain: it, samples and targets of each step, and the layers that it uses."""

    chain: Chain
    samples: tuple[np.ndarray, ...]
    targets: tuple[np.ndarray, ...]
    layers: tuple[int, ...] = field(default=())

    def gradients(self, step: int) -> dict[str, np.ndarray]:
        """The gradients of the mean of outputs times targets over this rank's rows; zeros where unused."""
        chain, hidden = self.chain, [self.samples[step]]
        for layer in self.layers:
            hidden.append(hidden[-1] @ chain.weights[layer].T + chain.biases[layer])
        found = {name: np.zeros_like(array) for name, array in chain.trained().items()}
        gradient = self.targets[step] / NUM_ROWS
        for layer, came in zip(reversed(self.layers), hidden[-2::-1], strict=True):
            for name, part in (
                (chain.weight_name(layer), gradient.T @ came),
                (f"layers.{layer}.bias", gradient.sum(0)),
            ):
                if name in found:
                    found[name] += part
            gradient = gradient @ chain.weights[layer]
        return found

    def used(self) -> set[str]:
        """The names of the parameters that this rank's forward pass uses."""
        return {name for k in self.layers for name in (self.chain.weight_name(k), f"layers.{k}.bias")}


def numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Random whole numbers from 1 to 3."""
    return random.integers(1, 4, shape).astype(dtype)


def make_chain(
    random: np.random.Generator, title: str, widths: Sequence[int], dtype: str = "float32", **options: object
) -> Chain:
    """A chain with random weights, from one width to the next."""
    pairs = list(zip(widths[1:], widths[:-1], strict=True))
    weights = [numbers(random, pair, dtype) for pair in pairs]
    tied: tuple[int, int] | None = options.get("tied")  # type: ignore[assignment]
    if tied:
        weights[tied[1]] = weights[tied[0]]
    biases = tuple(numbers(random, (pair[0],), dtype) for pair in pairs)
    return Chain(title, tuple(weights), biases, **options)  # type: ignore[arg-type]


def shares(
    random: np.random.Generator, chain: Chain, size: int, skipped: Mapping[int, tuple[int, ...]] | None = None
) -> list[Share]:
    """Each rank's own samples and targets for every step; skipped: the layers that a rank leaves out."""
    dtype = chain.weights[0].dtype.name
    found = []
    for rank in range(size):
        drawn = [
            tuple(numbers(random, (NUM_ROWS, width), dtype) for _ in range(NUM_STEPS))
            for width in (chain.weights[0].shape[1], chain.weights[-1].shape[0])
        ]
        left_out = (skipped or {}).get(rank, ())
        layers = tuple(layer for layer in range(chain.num_layers) if layer not in left_out)
        found.append(Share(chain, drawn[0], drawn[1], layers))
    return found


def awkward_models(random: np.random.Generator, size: int) -> list[list[Share]]:
    """Three models for `size` ranks: a plain one; tied, frozen and float64; one with layers left out.

    Of the last, one layer is left out by the last rank, another one by all. Each bucket of it is as large as
    every other, so that a bucket which is added to another one does not show by its size.
    """
    plain = make_chain(random, "a plain model", (3, 5, 2, 4, 3), cap_bytes=48, is_gated=True)
    awkward = make_chain(
        random,
        "a model with a tied weight, a frozen one, and float64",
        (4, 4, 4, 4, 4),
        "float64",
        frozen=("layers.2.weight",),
        tied=(0, 3),
        cap_bytes=100,
    )
    left_out = make_chain(random, UNUSED, (3,) * 6, cap_bytes=48)
    skipped = {rank: (1, 2) if rank == size - 1 else (1,) for rank in range(size)}
    return [
        shares(random, plain, size),
        shares(random, awkward, size),
        shares(random, left_out, size, skipped),
    ]
