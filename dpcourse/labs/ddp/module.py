"""Lab 03, in a rank: the chain as a module, and the passes in which an answer is used."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dpcourse.labs import plug
from dpcourse.labs.ddp.chains import NUM_ROWS, Chain, Share
from dpcourse.labs.inside import describe

_GATE, _MEET = 91, 92  # tags of the lab's own messages, which are empty


class Layers(nn.Module):
    """Linear layers one after the other; `used` says which of them a forward pass takes."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        dtype = torch.from_numpy(chain.weights[0]).dtype
        shapes = [weight.shape for weight in chain.weights]
        self.layers = nn.ModuleList(nn.Linear(shape[1], shape[0], dtype=dtype) for shape in shapes)
        if chain.tied:
            first, second = chain.tied
            self.layers[second].weight = self.layers[first].weight
        for name, parameter in self.named_parameters():
            parameter.data = torch.from_numpy(chain.parameters()[name].copy())
            parameter.requires_grad_(name not in chain.frozen)

    def forward(self, hidden: torch.Tensor, used: tuple[int, ...]) -> torch.Tensor:
        for layer in used:
            hidden = self.layers[layer](hidden)
        return hidden

    def backward(self, share: Share, step: int) -> None:
        """Both passes of a step, on this rank's samples."""
        outputs = self(torch.from_numpy(share.samples[step].copy()), share.layers)
        ((outputs * torch.from_numpy(share.targets[step].copy())).sum() / NUM_ROWS).backward()

    def gradients(self) -> dict[str, Any]:
        """Of each parameter its gradient, and its value, which only an optimizer may change."""
        return {
            "gradients": {name: describe(p.grad) for name, p in self.named_parameters()},
            "values": {name: describe(p.data) for name, p in self.named_parameters()},
        }


def meet() -> None:
    """Wait until all ranks are here."""
    others = range(1, dist.get_world_size())
    if dist.get_rank():
        dist.send(torch.empty(0), 0, tag=_MEET)
        dist.recv(torch.empty(0), 0, tag=_MEET)
        return
    for other in others:
        dist.recv(torch.empty(0), other, tag=_MEET)
    for other in others:
        dist.send(torch.empty(0), other, tag=_MEET)


def enter_gate(share: Share) -> None:
    """On the last rank: wait until rank 0's backward pass is over."""
    if share.chain.is_gated and dist.get_rank() == dist.get_world_size() - 1:
        dist.recv(torch.empty(0), 0, tag=_GATE)


def open_gate(share: Share) -> dist.Work | None:
    """On rank 0: say that the backward pass is over."""
    if share.chain.is_gated and dist.get_rank() == 0:
        return dist.isend(torch.empty(0), dist.get_world_size() - 1, tag=_GATE)
    return None


def note_gradients(model: Layers) -> None:
    """Have the log say when each gradient is complete."""

    def ready(name: str) -> Any:
        return lambda parameter: plug.note(f"ready {name}")

    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(ready(name))
