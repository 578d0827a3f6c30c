"""Lab 06: a unit of FSDP, its flow, where to cut, and what clipping has to know."""

from dpcourse.labs.fsdp.cuts import CLIPPING, WRAPPING
from dpcourse.labs.fsdp.flow import UNIT_FLOW, WHY_REDUCE_SCATTER
from dpcourse.labs.fsdp.unit import UNIT
from dpcourse.labs.question import LabSpec

LAB = LabSpec("06_fsdp", "A unit on loan", (UNIT, UNIT_FLOW, WHY_REDUCE_SCATTER, WRAPPING, CLIPPING))
