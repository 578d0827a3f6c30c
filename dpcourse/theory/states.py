"""Bytes of the states an optimizer keeps for each parameter.

Source: what torch 2.13 puts into `state` at the first step (torch/optim/adam.py, torch/optim/sgd.py).
"""

from collections.abc import Iterable

from dpcourse.layout import Parameter

FP32_BYTES = 4
STEP_COUNTER_BYTES = 4  # torch's Adam keeps one fp32 number a parameter tensor
# For each optimizer: how many numbers it keeps for one of the parameter's, and whether it counts steps.
OPTIMIZER_STATES = {"sgd": (0, False), "momentum": (1, False), "adam": (2, True), "adamw": (2, True)}


def optimizer_bytes(parameters: Iterable[Parameter], optimizer: str, has_masters: bool = False) -> int:
    """Count what an optimizer holds from its first step on; frozen and unused parameters have no state.

    has_masters: it steps fp32 copies of the parameters, and keeps its states in fp32 too.
    """
    trainable = [parameter for parameter in parameters if parameter.is_trainable]
    used = [parameter for parameter in trainable if parameter.is_used]
    if not has_masters:
        return sum(state_bytes(parameter.num_bytes, optimizer) for parameter in used)
    masters = sum(FP32_BYTES * parameter.num_elements for parameter in trainable)
    return masters + sum(state_bytes(FP32_BYTES * parameter.num_elements, optimizer) for parameter in used)


def state_bytes(tensor_bytes: int, optimizer: str) -> int:
    """Count the states that an optimizer keeps for one tensor (or for a rank's shard of one)."""
    copies, has_counter = OPTIMIZER_STATES[optimizer]
    return copies * tensor_bytes + (STEP_COUNTER_BYTES if has_counter else 0)
