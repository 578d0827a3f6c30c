"""Lab 07: the memory ledger and the traffic ledger, written as functions and held against real runs."""

from dpcourse.labs.ledgers.eaters import WHO_EATS
from dpcourse.labs.ledgers.memory import MEMORY_BYTES
from dpcourse.labs.ledgers.rows import ROW, THREE_AGAINST_TWO
from dpcourse.labs.ledgers.traces import PICK_THE_TRACE
from dpcourse.labs.ledgers.traffic import TRAFFIC_BYTES
from dpcourse.labs.question import LabSpec

LAB = LabSpec(
    "07_two_ledgers",
    "Two ledgers",
    (ROW, MEMORY_BYTES, TRAFFIC_BYTES, WHO_EATS, PICK_THE_TRACE, THREE_AGAINST_TWO),
)
