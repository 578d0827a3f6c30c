"""Lab 08: the latency wall, what crosses the cable, the time of a step, choices for described networks."""

from dpcourse.labs.many_machines.choices import BUCKET_SIZE, MESH
from dpcourse.labs.many_machines.crossing import HYBRID
from dpcourse.labs.many_machines.step import STEP_SECONDS
from dpcourse.labs.many_machines.wall import LATENCY_WALL
from dpcourse.labs.question import LabSpec

LAB = LabSpec(
    "08_many_machines",
    "Many machines",
    (LATENCY_WALL, HYBRID, STEP_SECONDS, BUCKET_SIZE, MESH),
)
