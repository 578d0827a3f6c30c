"""Lab 03: the naive way to average gradients, then hooks and buckets that overlap with backward."""

from dpcourse.labs.ddp.against_dp import AGAINST_DP
from dpcourse.labs.ddp.average import AVERAGE_GRADIENTS
from dpcourse.labs.ddp.buckets import BUCKETS
from dpcourse.labs.ddp.start import SAME_START
from dpcourse.labs.ddp.unused import UNUSED_LAYER
from dpcourse.labs.question import LabSpec

LAB = LabSpec(
    "03_ddp",
    "A DDP of your own",
    (SAME_START, AVERAGE_GRADIENTS, BUCKETS, AGAINST_DP, UNUSED_LAYER),
)
