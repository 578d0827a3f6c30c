"""Lab 07: the jobs that the two functions are called with, and the real runs that they are held against."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from dpcourse.expectation import Expectation, expect
from dpcourse.labs.values.functions import Job, Values
from dpcourse.layout import Layout
from dpcourse.ledger import select, sums_by
from dpcourse.models import Mlp
from dpcourse.run import Run

if TYPE_CHECKING:
    from torch import nn

OWNERS = ("parameters", "gradients", "optimizer", "buckets")
_DIVISIBLE = 60  # by 2, 3, 4 and 5 ranks: the headline formula is exact where tensors divide

# What a learner calls it, and the strategy and options of the course that are meant.
STRATEGIES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", {}),
    "ddp, views": ("ddp", {"gradient_as_bucket_view": True}),
    "zero1": ("scratch-zero1", {}),
    "zero2": ("scratch-zero2", {}),
    "fsdp": ("fsdp2", {}),
    "fsdp, kept": ("fsdp2", {"reshard_after_forward": False}),
}


@dataclass(frozen=True)
class PartlyFrozen(Mlp):
    """The course's MLP with its third layer frozen; a gradient still goes through it."""

    def layout(self) -> Layout:
        """Name the parameters, and say which are trained."""
        whole = super().layout()
        return Layout(tuple(replace(p, is_trainable=self.is_trained(p.name)) for p in whole.parameters))

    def is_trained(self, name: str) -> bool:
        """Whether the parameter of this name is trained."""
        return not name.startswith("layers.4.")

    def build(self, seed: int) -> "nn.Module":
        """Make the module in a rank."""
        module = super().build(seed)
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(self.is_trained(name))
        return module


@dataclass(frozen=True)
class Setting:
    """A job as the course's own code is asked for it."""

    way: str
    recipe: str
    model: Mlp
    ranks: int
    backend: str = "ring"

    @property
    def asked(self) -> dict[str, Any]:
        """What `dc.expect` and `dc.train` have in common."""
        options = STRATEGIES[self.way][1]
        return {"model": self.model, "recipe": self.recipe, "backend": self.backend, **options}


def job(setting: Setting, is_run: bool = False) -> Job:
    """The job as the learner's function gets it: plain words and numbers."""
    layout = setting.model.layout()
    arguments = {
        "strategy": setting.way,
        "recipe": setting.recipe,
        "num_params": layout.num_params,
        "num_trained": sum(parameter.num_elements for parameter in layout.trainable),
        "ranks": setting.ranks,
    }
    title = f"{setting.way}, {setting.recipe}, {setting.ranks} ranks"
    return Job(title, arguments, setting, is_run)


def model(seed: int, number: int, is_partly_frozen: bool) -> Mlp:
    """A model of hidden sizes that divide over the ranks; large enough that a message's frame is no share."""
    random = np.random.default_rng([seed, number, 7])
    features, width, classes = (int(k) for k in random.integers((1, 6, 1), (6, 10, 4)) * _DIVISIBLE)
    return (PartlyFrozen if is_partly_frozen else Mlp)(features, width, 3, classes)


def expected(job: Job) -> Expectation:
    """The exact lists of the job's strategy."""
    setting: Setting = job.setting
    return expect(STRATEGIES[setting.way][0], ranks=setting.ranks, **setting.asked)


def run_of(job: Job) -> Run:
    """A real run of the job; the same one for both ledgers."""
    return _run(job.setting)


@cache
def _run(setting: Setting) -> Run:
    from dpcourse.training import train

    return train(STRATEGIES[setting.way][0], ranks=setting.ranks, device="cpu", steps=1, **setting.asked)


def held(holdings: Any) -> Values:
    """What rank 0 holds of each owner when backward ends."""
    sums = sums_by(select(holdings, phase="backward", rank=0), "owner")
    return {owner: sums.get(owner, 0) for owner in OWNERS}
