"""Lab 05: an optimizer and gradients in slices, and what each stage of ZeRO holds."""

from dpcourse.labs.question import LabSpec
from dpcourse.labs.zero.counted import SIXTEEN_BYTES, STAGES
from dpcourse.labs.zero.gradients import SHARDED_GRADIENTS
from dpcourse.labs.zero.optimizer import SHARDED_OPTIMIZER

LAB = LabSpec(
    "05_zero",
    "States and gradients in slices",
    (SHARDED_OPTIMIZER, SHARDED_GRADIENTS, SIXTEEN_BYTES, STAGES),
)
