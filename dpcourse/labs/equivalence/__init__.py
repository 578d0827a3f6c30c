"""Lab 01: shard a batch, combine gradients, and weigh them when ranks hold unequally many loss terms."""

from dpcourse.labs.equivalence.combine import COMBINE_GRADIENTS, COMBINE_WEIGHTED
from dpcourse.labs.equivalence.shard import SHARD_BATCH
from dpcourse.labs.equivalence.sum_or_mean import LEARNING_RATE, OPTIMIZERS
from dpcourse.labs.question import LabSpec

LAB = LabSpec(
    "01_equivalence",
    "When N ranks equal one",
    (SHARD_BATCH, COMBINE_GRADIENTS, COMBINE_WEIGHTED, LEARNING_RATE, OPTIMIZERS),
)
