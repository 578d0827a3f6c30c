"""Train one small model on one global batch a step, cut over any number of ranks in any way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcourse import data
from dpcourse.equivalence.values import Trajectory
from dpcourse.ranks.launch import launch

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

FEATURES, WIDTH, CLASSES = 16, 32, 4


@dataclass(frozen=True)
class Recipe:
    """An optimizer of torch.optim, its learning rate where none is given, and how it decays or clips."""

    optimizer: str
    learning_rate: float
    options: dict[str, float] = field(default_factory=dict)
    clip_norm: float | None = None


# Gradients here have norms of 0.3 and more, so that the clip acts at every step, with a mean and with a sum.
RECIPES = {
    "sgd": Recipe("SGD", 0.1),
    "sgd-decay": Recipe("SGD", 0.1, {"weight_decay": 0.01}),
    "adamw": Recipe("AdamW", 0.01, {"weight_decay": 0.01}),
    "adam-l2": Recipe("Adam", 0.01, {"weight_decay": 0.01}),
    "sgd-clip": Recipe("SGD", 0.1, clip_norm=0.1),
}
MODELS = ("mlp", "batchnorm", "dropout")
COMBINE = ("mean", "sum", "none")
WEIGHTING = ("ranks", "samples")


@dataclass(frozen=True)
class Setting:
    """What decides a run; `split` says how many samples of the global batch each rank takes."""

    split: tuple[int, ...]
    steps: int = 20
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    combine: str = "mean"
    model: str = "mlp"
    weighting: str = "ranks"
    seed: int = 0

    @property
    def ranks(self) -> int:
        return len(self.split)

    @property
    def weights(self) -> list[float]:
        """What each rank's loss is multiplied by before backward: their mean is 1."""
        if self.weighting == "ranks":
            return [1.0] * self.ranks
        return sample_weights(self.split)

    @property
    def title(self) -> str:
        parts = [_ranks_text(self.ranks), self.optimizer]
        defaults = (("combine", "mean"), ("model", "mlp"))
        parts += [getattr(self, name) for name, usual in defaults if getattr(self, name) != usual]
        if len(set(self.split)) > 1:
            parts.append(f"split {'+'.join(map(str, self.split))} weighted by {self.weighting}")
        return ", ".join(parts)


def _ranks_text(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}"


def sample_weights(counts: Sequence[int]) -> list[float]:
    """Weigh each rank by what it holds: N n_k / (n_1 + ... + n_N), so that the mean over ranks of weighted
    means is the mean over all: (1/N) sum_k (N n_k / n) (1/n_k) sum_i g_i = (1/n) sum_i g_i."""
    return [len(counts) * count / sum(counts) for count in counts]


def train(
    ranks: int = 4,
    steps: int = 20,
    global_batch: int = 32,
    optimizer: str = "sgd",
    learning_rate: float | None = None,
    combine: str = "mean",
    model: str = "mlp",
    split: Sequence[int] | None = None,
    weighting: str = "ranks",
    seed: int = 0,
) -> Trajectory:
    """Train on fresh ranks, all from rank 0's weights, and give the losses and the parameters of every step.

    Args:
        ranks: how many processes share each global batch.
        optimizer: "sgd", "sgd-decay" (weight decay 0.01), "adamw", "adam-l2" (Adam with the decay in the
            gradient) or "sgd-clip" (the combined gradient is cut to a norm of 0.1).
        learning_rate: by default 0.1 for the SGDs and 0.01 for the Adams.
        combine: what is done with the ranks' gradients: "mean", "sum" or "none".
        model: "mlp", or the same with "batchnorm" or "dropout" in it.
        split: samples for each rank, in place of equal shares: (10, 10, 10, 2).
        weighting: each rank's mean counts the same ("ranks") or as much as its samples ("samples").
        seed: decides the batches, the first weights and the dropout masks; the last two differ by rank.
    """
    if steps < 1:
        raise ValueError(f"steps={steps}: a run has at least one step to compare; give 1 or more")
    shares = _shares(ranks, global_batch, split)
    for name, value, known in (
        ("optimizer", optimizer, RECIPES),
        ("combine", combine, COMBINE),
        ("model", model, MODELS),
        ("weighting", weighting, WEIGHTING),
    ):
        if value not in known:
            raise ValueError(f"{name}={value!r} is not known; choose from {', '.join(known)}")
    rate = RECIPES[optimizer].learning_rate if learning_rate is None else learning_rate
    return run([Setting(shares, steps, optimizer, rate, combine, model, weighting, seed)])[0]


def _shares(ranks: int, global_batch: int, split: Sequence[int] | None) -> tuple[int, ...]:
    if split is None:
        if ranks < 1 or global_batch < ranks or global_batch % ranks:
            raise ValueError(
                f"a global batch of {global_batch} has no equal shares for {ranks} ranks; choose a multiple "
                "of the ranks, or give each rank's samples: split=(10, 10, 10, 2)"
            )
        return (global_batch // ranks,) * ranks
    if len(split) != ranks or sum(split) != global_batch or min(split) < 1:
        raise ValueError(
            f"split={tuple(split)} has {len(split)} shares and {sum(split)} samples, for {ranks} ranks and "
            f"global_batch={global_batch}; give one share of at least 1 for each rank, in all {global_batch}"
        )
    return tuple(split)


def on_ranks(function: Callable[..., Any], *args: Any, ranks: int) -> list[Any]:
    """Launch an experiment. On the CPU even where there are GPUs, so that everyone sees the same numbers."""
    return launch(
        function, *args, ranks=ranks, deadline_seconds=120, device="cpu", plain=True, everything=True
    )


def run(settings: Sequence[Setting]) -> list[Trajectory]:
    """Train several settings, one after the other, on one launch of ranks: all for as many ranks."""
    return trajectories(settings, on_ranks(_train_all, settings, ranks=settings[0].ranks))


def trajectories(settings: Sequence[Setting], results: list[list[dict[str, Any]]]) -> list[Trajectory]:
    """Join what each rank found for each setting."""
    by_setting = zip(*results, strict=True)
    return [_trajectory(setting, own) for setting, own in zip(settings, by_setting, strict=True)]


def _trajectory(setting: Setting, results: Sequence[dict[str, Any]]) -> Trajectory:
    # The loss of a global batch is the mean over its samples, whatever the gradients were weighted by.
    local = np.array([result["losses"] for result in results])
    losses = np.average(local, axis=0, weights=setting.split)
    replicas = tuple(result["parameters"] for result in results)
    return Trajectory(setting.title, setting.ranks, tuple(losses.tolist()), replicas)


# --- in a rank ---


def _train_all(settings: Sequence[Setting]) -> list[dict[str, Any]]:
    return [train_rank(setting) for setting in settings]


def train_rank(setting: Setting) -> dict[str, Any]:
    """In a rank: data parallelism. Start alike; at each step go backward on a share, combine, update."""
    import torch

    model, optimizer = start_alike(setting)
    losses, parameters = [], [flat(model)]
    for step in range(setting.steps):
        losses.append(backward(setting, model, step))
        combine_gradients(setting, model)
        clip_gradients(setting, model)
        optimizer.step()
        optimizer.zero_grad()
        parameters.append(flat(model))
    return {"losses": losses, "parameters": torch.stack(parameters)}


def start_alike(setting: Setting) -> "tuple[nn.Module, Optimizer]":
    """Build a model with weights of the rank's own, give it rank 0's, and build its optimizer."""
    import torch
    import torch.distributed as dist

    from dpcourse.scratch.naive import broadcast_state

    torch.set_num_threads(1)  # on a model this small, threads cost more than they bring
    torch.manual_seed(1000 * setting.seed + dist.get_rank())  # decides the dropout masks too
    model = build(setting.model)
    broadcast_state(model)
    recipe = RECIPES[setting.optimizer]
    optimizer = getattr(torch.optim, recipe.optimizer)
    return model, optimizer(model.parameters(), lr=setting.learning_rate, **recipe.options)


def build(model: str) -> "nn.Module":
    """One hidden layer, with batch norm or dropout before its ReLU where asked."""
    from torch import nn

    layers: list[nn.Module] = [nn.Linear(FEATURES, WIDTH)]
    if model == "batchnorm":
        layers.append(nn.BatchNorm1d(WIDTH))
    if model == "dropout":
        layers.append(nn.Dropout(0.1))
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def backward(setting: Setting, model: "nn.Module", step: int) -> float:
    """Make the step's global batch, the same on every rank, and go backward on this rank's share."""
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy

    rank, seed = dist.get_rank(), data.batch_seed(setting.seed, step)
    batch = data.classified_points(sum(setting.split), FEATURES, CLASSES, seed)
    inputs, targets = (tensor.split(setting.split)[rank] for tensor in batch)
    loss = cross_entropy(model(inputs), targets)
    (loss * setting.weights[rank]).backward()
    return loss.item()


def combine_gradients(setting: Setting, model: "nn.Module") -> None:
    """Average or sum the ranks' gradients, or leave each rank its own."""
    from dpcourse.scratch import naive

    if setting.combine == "mean":
        naive.average_gradients(model)
    elif setting.combine == "sum":
        naive.sum_gradients(model)


def clip_gradients(setting: Setting, model: "nn.Module") -> None:
    """Scale the gradients down to the optimizer's clip norm, where its recipe has one."""
    from torch.nn.utils import clip_grad_norm_

    clip_norm = RECIPES[setting.optimizer].clip_norm
    if clip_norm is not None:
        clip_grad_norm_(model.parameters(), clip_norm)


def flat(model: "nn.Module") -> "Tensor":
    """All parameters in one vector, copied."""
    import torch

    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
