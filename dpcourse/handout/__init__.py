"""`dpcourse release`: what a participant gets, without solutions and without outputs."""

from dpcourse.handout.command import main

__all__ = ["main"]
