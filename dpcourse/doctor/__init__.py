"""What this machine has, what the course will use of it, and whether the course can run: really tried."""

from dpcourse.doctor.card import HardwareCard, hardware
from dpcourse.doctor.command import main

__all__ = ["HardwareCard", "hardware", "main"]
