"""The three parts of a Run: memory, traffic and timeline, each measured beside expected."""

from dpcourse.parts.memory import MemoryPart
from dpcourse.parts.timeline import TimelinePart
from dpcourse.parts.traffic import TrafficPart

__all__ = ["MemoryPart", "TimelinePart", "TrafficPart"]
