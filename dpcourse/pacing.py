"""Each layer takes a fixed time, so that order and overlap can be seen on cores too few and too noisy for it.

A layer is a module with parameters of its own: a Linear, a norm, an embedding. What it really computes is
computed, and it sleeps for what is left: of `seconds` in forward, and of twice that in backward, where there
is one gradient for its inputs and one for its weights. There it sleeps first, so that its gradients come
after its time, and is taken to compute for twice as long as in forward. A sleeping rank leaves its core to
the others. What lies between the layers (attention's products, activations, the loss, the optimizer) takes
its own time.

With checkpoints a layer whose forward pass is done again takes its time again; a block's last one is not, as
torch stops there, and has taken its time of backward by then.

Importing this file imports torch.
"""

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function
from torch.utils._pytree import tree_leaves

from dpcourse.measure.timeline import PACED
from dpcourse.ranks.processes import sleep_exactly
from dpcourse.tables import seconds_text

BACKWARD = 2  # times forward: gradients for the inputs and for the weights


@dataclass
class Pace:
    """How long each layer takes in forward, and which took longer by themselves."""

    seconds: float
    num_passes: int = 0
    num_late: int = 0
    longest: tuple[float, str] = field(default=(0.0, ""))

    def note(self, layer: str, own_seconds: float) -> None:
        self.num_passes += 1
        self.num_late += own_seconds > self.seconds
        self.longest = max(self.longest, (own_seconds, layer))

    def __str__(self) -> str:
        """Say in words what did not keep to the pace; nothing where all did."""
        if not self.num_late:
            return ""
        seconds, layer = self.longest
        return (
            f"{self.num_late} of {self.num_passes} forward passes of layers took longer than the "
            f"{seconds_text(self.seconds)} they were given, {layer} {seconds_text(seconds)}"
        )


def pace(module: nn.Module, seconds: float) -> Pace:
    """Have each layer of a module, in place, take `seconds` in forward and twice that in backward.

    Called before a strategy wraps the module: what that does around a layer, such as gathering parameters, is
    outside of the layer's time.
    """
    sleep_exactly()
    found = Pace(seconds)
    for name, layer in module.named_modules():
        if layer._parameters:
            # No hook: hooks of a strategy would run between those of ours, and count as the layer's.
            layer.forward = partial(_forward, layer.forward, name or type(layer).__name__, found)  # type: ignore[method-assign]
    return found


def _forward(forward: Any, name: str, found: Pace, *inputs: Any, **keywords: Any) -> Any:
    start, computing = time.perf_counter(), time.thread_time()
    with record_function(PACED + name):
        output = forward(*inputs, **keywords)
        own_seconds = time.perf_counter() - start
        found.note(name, own_seconds)
        # Of backward what this thread computed, since what it lost to other processes does not come twice.
        left = BACKWARD * (found.seconds - (time.thread_time() - computing))
        _sleep(found.seconds - own_seconds)
    for tensor in tree_leaves(output):
        if isinstance(tensor, torch.Tensor) and tensor.grad_fn is not None:
            # Before the node and after all hooks of the tensor: a strategy gathers parameters in those.
            tensor.grad_fn.register_prehook(partial(_before_backward, name, left))
            break
    return output


def _before_backward(name: str, seconds: float, gradients: Any) -> None:
    """Take the layer's time, before its gradients are there."""
    with record_function(PACED + name):
        _sleep(seconds)


def _sleep(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)
