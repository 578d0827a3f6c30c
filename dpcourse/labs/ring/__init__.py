"""Lab 04: reduce-scatter, all-gather and all-reduce from send and receive, and what they cost."""

from dpcourse.labs.question import LabSpec
from dpcourse.labs.ring.all_gather import ALL_GATHER
from dpcourse.labs.ring.all_reduce import ALL_REDUCE
from dpcourse.labs.ring.costs import COSTS, PIECES_SENT
from dpcourse.labs.ring.reduce_scatter import REDUCE_SCATTER

LAB = LabSpec(
    "04_ring_all_reduce",
    "A ring of your own",
    (REDUCE_SCATTER, ALL_GATHER, ALL_REDUCE, COSTS, PIECES_SENT),
)
