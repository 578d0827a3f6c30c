"""Lab 02: a training step through a main rank, of send and receive, and what it costs beside a ring."""

from dpcourse.labs.parameter_server.counts import MAIN_RANK_BYTES, RUNNING_MEAN
from dpcourse.labs.parameter_server.flaws import DDP_ANSWERS, THREE_FLAWS
from dpcourse.labs.parameter_server.star_step import STAR_STEP
from dpcourse.labs.question import LabSpec

LAB = LabSpec(
    "02_dataparallel",
    "A star of your own",
    (STAR_STEP, MAIN_RANK_BYTES, THREE_FLAWS, DDP_ANSWERS, RUNNING_MEAN),
)
