"""What strategies share: the model states of an unsharded rank, and the optimizers."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from dpcourse.layout import Parameter, unit_of
from dpcourse.ledger import Holding
from dpcourse.strategies import Setting
from dpcourse.theory.states import optimizer_bytes

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

_LOSS_BYTES = 4
LEARNING_RATE = {"sgd": 0.05, "momentum": 0.01, "adam": 1e-3, "adamw": 1e-3}


def replicated_states(setting: Setting, rank: int) -> list[Holding]:
    """List what a rank with a whole copy of the model holds in a steady step.

    Gradients exist at the end of backward alone: they are made by it, and set to None after the optimizer's
    step.
    """
    holdings = []
    for phase in ("forward", "backward", "step"):
        holdings += _by_unit("parameters", phase, rank, setting.layout.parameters)
        holdings += [
            Holding("optimizer", unit, num_bytes, phase, rank)
            for unit, parameters in _units(setting.layout.parameters).items()
            if (num_bytes := optimizer_bytes(parameters, setting.optimizer))
        ]
        holdings += _others(setting, phase, rank)
    return holdings + activations(setting, rank)


def _others(setting: Setting, phase: str, rank: int) -> list[Holding]:
    """Buffers, the rank's share of the batch and the loss: small, but nothing that is held goes unnamed."""
    sizes = {"buffers": setting.layout.buffer_bytes}
    if setting.batch_bytes is not None:
        sizes |= {"batch": setting.batch_bytes, "loss": _LOSS_BYTES}
    return [Holding("other", unit, size, phase, rank) for unit, size in sizes.items() if size]


def gradients_by_unit(setting: Setting, rank: int) -> list[Holding]:
    """Gradients at the end of backward: as many bytes as each unit's trainable parameters."""
    return _by_unit("gradients", "backward", rank, setting.layout.trainable)


def activations(setting: Setting, rank: int) -> list[Holding]:
    """What autograd keeps at the end of forward; nothing is listed where nobody knows."""
    kept = (setting.activation_bytes or {}).items()
    return [Holding("activations", unit, num_bytes, "forward", rank) for unit, num_bytes in kept]


def _by_unit(owner: str, phase: str, rank: int, parameters: Iterable[Parameter]) -> list[Holding]:
    return [
        Holding(owner, unit, sum(parameter.num_bytes for parameter in members), phase, rank)
        for unit, members in _units(parameters).items()
    ]


def _units(parameters: Iterable[Parameter]) -> dict[str, list[Parameter]]:
    units: dict[str, list[Parameter]] = {}
    for parameter in parameters:
        units.setdefault(parameter.unit, []).append(parameter)
    return units


def build_optimizer(name: str, module: "nn.Module") -> "Optimizer":
    """Build an optimizer by its name in the course, over the parameters that are trained."""
    import torch

    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    lr = LEARNING_RATE[name]
    if name == "adamw":
        return torch.optim.AdamW(trainable, lr=lr)
    if name == "adam":
        return torch.optim.Adam(trainable, lr=lr)
    return torch.optim.SGD(trainable, lr=lr, momentum=0.9 if name == "momentum" else 0.0)


def owned_tensors(module: Any, optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
    """Name the owner and the unit of each tensor a rank holds for its model: (owner, unit, tensor)."""
    for name, parameter in module.named_parameters():
        yield "parameters", unit_of(name), parameter
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            yield "gradients", unit_of(name), parameter.grad
        for state in optimizer.state.get(parameter, {}).values():
            if hasattr(state, "untyped_storage"):
                yield "optimizer", unit_of(name), state
    for _, buffer in module.named_buffers():
        yield "other", "buffers", buffer
