"""Step through a ring's all-reduce, piece by piece; where each piece goes is the plan of theory/ring.py."""

from typing import Any

from dpcourse.figures.canvas import Figure
from dpcourse.figures.ring import ring_step
from dpcourse.show import is_reference
from dpcourse.theory.ring import num_steps
from dpcourse.widgets.controls import button, number, set_high
from dpcourse.widgets.panel import Panel

_MEGABYTE = 10**6


def ring_at(ranks: int, step: int, megabytes: int) -> Figure:
    """The picture after `step` steps; a step beyond the last is the last."""
    return ring_step(ranks, min(step, num_steps(ranks)), megabytes * _MEGABYTE)


def ring_stepper(ranks: int = 4, step: int = 0, megabytes: int = 100) -> Any:
    """Go forward and back through the 2(N - 1) steps of a ring, and see which piece goes where.

    megabytes: what is all-reduced. The scratch ring sends in this order (dpcourse/scratch/ring.py).
    """
    if is_reference():
        return ring_at(ranks, step, megabytes)
    controls = {
        "ranks": number("Ranks in the ring", ranks, 2, 8),
        "step": number("Step", step, 0, num_steps(ranks)),
        "megabytes": number("Megabytes", megabytes, 1, 1024, is_doubling=True),
    }
    at = controls["step"].field

    def go(by: int) -> None:
        at.value += by  # the ends hold it

    # Seen to before the picture is drawn anew, so that there is no step beyond the last.
    controls["ranks"].field.observe(
        lambda change: set_high(controls["step"], num_steps(change["new"])), names="value"
    )
    buttons = [button("Step back", lambda: go(-1)), button("Step forward", lambda: go(1))]
    return Panel(ring_at, controls, buttons)
