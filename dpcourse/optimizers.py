"""The course's optimizers by name, and one that steps fp32 copies of bf16 parameters. Imports torch."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from dpcourse.strategies.base import LEARNING_RATE
from dpcourse.theory.recipes import Recipe

OPTIMIZER_CLASSES: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def arguments_of(name: str) -> dict[str, Any]:
    """Give the arguments that go with an optimizer's class."""
    momentum = {"momentum": 0.9} if name == "momentum" else {}
    return {"lr": LEARNING_RATE[name], **momentum}


def build(name: str, parameters: Iterable[Tensor], recipe: Recipe) -> Any:
    """Build an optimizer by its name in the course; with masters where the recipe has them."""

    def plain(chosen: Iterable[Tensor]) -> torch.optim.Optimizer:
        return OPTIMIZER_CLASSES[name](chosen, **arguments_of(name))

    return MasterWeights(parameters, plain) if recipe.has_masters else plain(parameters)


class MasterWeights:
    """Steps an fp32 copy ("master") of each parameter, and rounds the result into the parameter.

    A step of Adam changes a weight by about a thousandth of it, and bf16 has 8 bits: without masters most
    steps would be rounded away. Source: Micikevicius et al., Mixed precision training, 2018, section 3.1.
    """

    def __init__(
        self, parameters: Iterable[Tensor], build_inner: Callable[[Iterable[Tensor]], torch.optim.Optimizer]
    ) -> None:
        self.masters = {
            parameter: parameter.detach().float().requires_grad_(True) for parameter in parameters
        }
        self.inner = build_inner(self.masters.values())

    @property
    def state(self) -> dict[Tensor, dict[str, Any]]:
        """For each parameter its master and the states of the optimizer inside."""
        return {
            parameter: {"master": master, **self.inner.state.get(master, {})}
            for parameter, master in self.masters.items()
        }

    @torch.no_grad()
    def step(self) -> None:
        """Step the masters on the gradients in fp32, then round them into the parameters."""
        for parameter, master in self.masters.items():
            master.grad = None if parameter.grad is None else parameter.grad.float()
        self.inner.step()
        for parameter, master in self.masters.items():
            parameter.copy_(master)
            master.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        for parameter in self.masters:
            parameter.grad = None
