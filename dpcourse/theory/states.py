"""Bytes of the states an optimizer keeps for each parameter."""

from collections.abc import Iterable

from dpcourse.layout import Parameter

STEP_COUNTER_BYTES = 4  # torch's Adam keeps one fp32 number a parameter tensor
# For each optimizer: how many numbers it keeps for one of the parameter's, and whether it counts steps.
OPTIMIZER_STATES = {"sgd": (0, False), "momentum": (1, False), "adam": (2, True), "adamw": (2, True)}


def optimizer_bytes(parameters: Iterable[Parameter], optimizer: str) -> int:
    """Count what an optimizer holds from its first step on; frozen parameters have no state."""
    copies, has_counter = OPTIMIZER_STATES[optimizer]
    counter = STEP_COUNTER_BYTES if has_counter else 0
    return sum(copies * parameter.num_bytes + counter for parameter in parameters if parameter.is_trainable)
