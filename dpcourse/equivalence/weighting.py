"""A mean of means is the mean of all only where each rank's mean is over equally many terms."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcourse import data
from dpcourse.equivalence.training import CLASSES, FEATURES, build, on_ranks, sample_weights
from dpcourse.equivalence.values import ROUNDING, share_text
from dpcourse.models import GptSmall
from dpcourse.show import Shown
from dpcourse.tables import Table

if TYPE_CHECKING:
    from torch import Tensor, nn

    Batch = tuple[Tensor, Tensor]

GPT = GptSmall(depth=2)
IGNORED = -100  # the target that torch's cross_entropy leaves out of its mean


def uneven_batches(sizes: Sequence[int] = (10, 10, 10, 2)) -> Table:
    """Cut one batch into shares of these sizes, and hold the ranks' gradient against the whole batch's.

    (1/N) sum_k g_k counts a sample on a rank of n_k samples 1/(N n_k) times instead of 1/n; a factor of
    N n_k / n on each rank's loss mends it. The chapter on data parallelism (section 2) asks for equal local
    batches.
    """
    check_sizes(sizes)
    found = on_ranks(_weigh_shares, list(sizes), ranks=len(sizes))[0]
    rows = [
        ("each rank the same (mean of means)", *_errors(found, "ranks")),
        ("each rank by its samples", *_errors(found, "terms")),
    ]
    caption = f"A batch of {sum(sizes)} as {' + '.join(map(str, sizes))}: how far from the whole batch's"
    return Table(("what counts", "gradient", "loss"), rows, caption)


def token_weighted(lengths: Sequence[int] = (24, 16, 8, 4, 1), full_length: int = 32) -> Table:
    """Give two ranks one sequence each, rank 1's padded, and hold their gradient against all tokens' mean.

    Both ranks hold equally many samples, but cross_entropy divides by the tokens that it does not ignore:
    with n and m of them the mean of means is off by (1/2 - m/(n+m)) (g_1 - g_0). If the tokens' gradients
    were independent, that would be (n - m) / (2 sqrt(n m)) of the gradient: the column "expected".
    """
    if not all(1 <= length <= full_length for length in lengths) or full_length > GPT.context:
        raise ValueError(
            f"lengths={tuple(lengths)} with full_length={full_length}: each length must lie between 1 and "
            f"full_length, and full_length can be at most {GPT.context}"
        )
    found = on_ranks(_weigh_sequences, list(lengths), full_length, ranks=2)[0]
    rows = []
    for length, one in zip(lengths, found, strict=True):
        expected = (full_length - length) / (2 * math.sqrt(full_length * length))
        gradient, loss = _errors(one, "ranks")
        rows.append((str(length), share_text(expected), gradient, loss, _errors(one, "terms")[0]))
    means, tokens = "mean of means", "by tokens"
    columns = ("tokens on rank 1", "expected", f"gradient, {means}", f"loss, {means}", f"gradient, {tokens}")
    return Table(columns, rows, f"{full_length} tokens on rank 0: how far from the mean over all tokens")


def _errors(found: dict[str, Any], weighting: str) -> tuple[str, str]:
    """Write the relative errors of the gradient and of the loss."""
    whole, combined = found["whole"], found[weighting]
    gradient = np.linalg.norm(combined["gradient"] - whole["gradient"]) / np.linalg.norm(whole["gradient"])
    loss = abs(combined["loss"] - whole["loss"]) / whole["loss"]
    return share_text(float(gradient)), share_text(loss)


# --- in a rank ---


def _weigh_shares(sizes: list[int]) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    inputs, targets = data.classified_points(sum(sizes), FEATURES, CLASSES, seed=0)
    return weigh(build("mlp"), list(zip(inputs.split(sizes), targets.split(sizes), strict=True)))


def _weigh_sequences(lengths: list[int], full_length: int) -> list[dict[str, Any]]:
    inputs, targets = data.token_sequences(2, full_length, GPT.vocabulary, seed=0)
    found = []
    for length in lengths:
        padded = targets.clone()
        padded[1, length:] = IGNORED
        found.append(weigh(GPT.build(seed=0), list(zip(inputs.split(1), padded.split(1), strict=True))))
    return found


def weigh(model: "nn.Module", batches: "list[Batch]") -> dict[str, Any]:
    """In a rank: gradient and loss of all ranks' batches at once ("whole"), and what the ranks make of their
    own when each counts the same ("ranks") or by the terms in its loss ("terms")."""
    import torch
    import torch.distributed as dist

    own = batches[dist.get_rank()]
    num_terms = (own[1] != IGNORED).sum()
    all_terms = num_terms.clone()
    dist.all_reduce(all_terms)
    weight = float(dist.get_world_size() * num_terms / all_terms)
    inputs, targets = zip(*batches, strict=True)
    return {
        "whole": _gradient(model, (torch.cat(inputs), torch.cat(targets))),
        "ranks": _gradient(model, own, weight=1.0, is_averaged=True),
        "terms": _gradient(model, own, weight=weight, is_averaged=True),
    }


def _gradient(
    model: "nn.Module", batch: "Batch", weight: float = 1.0, is_averaged: bool = False
) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    from dpcourse.modules import loss_of
    from dpcourse.scratch.naive import average_gradients

    model.zero_grad()
    loss = weight * loss_of(model(batch[0]), batch[1])
    loss.backward()
    loss = loss.detach()
    if is_averaged:
        average_gradients(model)
        dist.all_reduce(loss)
        loss /= dist.get_world_size()
    gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return {"gradient": torch.cat(gradients), "loss": loss.item()}


# --- without ranks: arithmetic for a slider ---


@dataclass(frozen=True, repr=False)
class SplitError(Shown):
    """How wrong a plain mean of means is for one split, and the weights that make it right."""

    sizes: tuple[int, ...]
    error: float
    weights: tuple[float, ...]

    def __str__(self) -> str:
        split = " + ".join(map(str, self.sizes))
        if self.error < ROUNDING:
            return f"{split}: the mean of means is the mean of all"
        weights = ", ".join(f"{weight:.3g}" for weight in self.weights)
        return f"{split}: the mean of means is {share_text(self.error)} off; right with weights {weights}"


def split_error(num_ranks: int, sizes: Sequence[int]) -> SplitError:
    """Work out how far the mean of means lies from the whole batch's gradient, in float64, without ranks.

    The model is a regression on 8 features with weights of zero, on the same seeded samples for every split.
    """
    check_sizes(sizes)
    if len(sizes) != num_ranks:
        raise ValueError(
            f"{num_ranks} ranks, and sizes for {len(sizes)}: {tuple(sizes)}; give one size for each rank"
        )
    random = np.random.default_rng(0)
    samples = random.standard_normal((sum(sizes), 9))
    inputs, targets = samples[:, :8], samples[:, 8:] + samples[:, :8].sum(axis=1, keepdims=True)
    gradients = -2 * inputs * targets  # of (target - inputs @ weights)^2, for each sample
    whole = gradients.mean(axis=0)
    means = [share.mean(axis=0) for share in np.split(gradients, np.cumsum(sizes)[:-1])]
    error = np.linalg.norm(np.mean(means, axis=0) - whole) / np.linalg.norm(whole)
    return SplitError(tuple(sizes), float(error), tuple(sample_weights(sizes)))


def check_sizes(sizes: Sequence[int]) -> None:
    """Refuse a share without samples: its mean is not defined."""
    if not sizes or min(sizes) < 1:
        raise ValueError(
            f"sizes={tuple(sizes)}: a rank without samples has no mean; give each rank at least 1"
        )
