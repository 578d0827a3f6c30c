"""Seeded toy data: one global batch a step, of which each rank takes its own share. Torch is imported inside.

Each task can be learned (the targets follow from the inputs), so that a loss which falls means something.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Generator, Tensor

    Batch = tuple[Tensor, Tensor]

Sliceable = TypeVar("Sliceable")
Item = TypeVar("Item")

_TASK_SEED = 2_718_281  # the same task for every seed of a run


def batch_seed(seed: int, step: int) -> int:
    """Give each step of a run a batch of its own, the same on every rank."""
    return (1_000_003 * seed + step) % 2**63  # torch takes no larger seed


def share_of(global_batch: Sliceable, rank: int, world_size: int) -> Sliceable:
    """Cut one rank's share out of a global batch: equal, contiguous, in rank order."""
    size = len(global_batch) // world_size  # type: ignore[arg-type]
    return global_batch[rank * size : (rank + 1) * size]  # type: ignore[index]


def classified_points(batch_size: int, features: int, classes: int, seed: int) -> "Batch":
    """Points (batch, features) around one centre a class."""
    return _around_centres((features,), batch_size, classes, seed)


def classified_images(batch_size: int, image_size: int, classes: int, seed: int) -> "Batch":
    """Images (batch, 3, image_size, image_size) of one pattern a class, under noise."""
    return _around_centres((3, image_size, image_size), batch_size, classes, seed)


def token_sequences(batch_size: int, context: int, vocabulary: int, seed: int) -> "Batch":
    """Sequences (batch, context) that walk a fixed random cycle of tokens; each target is the next token."""
    import torch

    cycle = torch.randperm(vocabulary, generator=_generator(_TASK_SEED))
    starts = torch.randint(vocabulary, (batch_size, 1), generator=_generator(seed))
    sequences = cycle[(starts + torch.arange(context + 1)) % vocabulary]
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


def _around_centres(shape: tuple[int, ...], batch_size: int, classes: int, seed: int) -> "Batch":
    import torch

    generator = _generator(seed)
    labels = torch.randint(classes, (batch_size,), generator=generator)
    centres = torch.randn(classes, *shape, generator=_generator(_TASK_SEED))
    return centres[labels] + torch.randn(batch_size, *shape, generator=generator), labels


def _generator(seed: int) -> "Generator":
    import torch

    return torch.Generator().manual_seed(seed)


def without_padding(shares: Sequence[Sequence[Item]], num_samples: int) -> list[Item]:
    """Put the ranks' per-sample results in the order of the samples and drop those of repeated samples.

    torch's DistributedSampler (drop_last=False) gives sample i to rank i mod n and repeats the first samples
    until all ranks have equally many, so that a metric over all that was drawn counts some samples twice.

    shares: for each rank its results, one a sample it drew (as all_gather_object gives them).
    Raises ValueError where the ranks did not draw just enough for num_samples.
    """
    drawn = [len(share) for share in shares]
    needed = -(-num_samples // len(shares)) if shares else 0
    if not shares or set(drawn) != {needed}:
        raise ValueError(
            f"{num_samples} samples over {len(shares)} ranks are {needed} a rank, and the ranks brought "
            f"{drawn} results; give one for each sample that the DistributedSampler drew, for every rank"
        )
    return [item for row in zip(*shares, strict=True) for item in row][:num_samples]
