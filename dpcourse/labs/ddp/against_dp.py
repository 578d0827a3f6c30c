"""Lab 03, fourth question: what DataParallel does, what DDP does, and what both do."""

from typing import Any

from dpcourse.labs.values import match
from dpcourse.ledger import select, total
from dpcourse.tables import Table, bytes_text

OPTIONS = ("DataParallel", "DDP", "both")
GOALS = {
    "one process, with a thread for each card": "DataParallel",
    "every rank keeps its copy of the model between steps": "DDP",
    "one card holds all optimizer states": "DataParallel",
    "the weights travel in every step": "DataParallel",
    "gradients are sent while backward goes on": "DDP",
    "the busiest card sends less than two models, however many cards": "DDP",
    "the step equals that of one card with the whole batch": "both",
}
_HINTS = {
    "one process, with a thread for each card": "Whose workers stand in line for one Python?",
    "every rank keeps its copy of the model between steps": (
        "With one of them the copies are thrown away after the step, and made anew in the next forward pass."
    ),
    "one card holds all optimizer states": "Who has a main card, and who has ranks that are all alike?",
    "the weights travel in every step": (
        "Equal copies that take equal steps stay equal: then nobody needs to send weights again."
    ),
    "gradients are sent while backward goes on": "Who has buckets?",
    "the busiest card sends less than two models, however many cards": (
        "The main card of a star sends a copy to each other card; a rank of a ring sends 2(N - 1)/N."
    ),
    "the step equals that of one card with the whole batch": (
        "The star adds up at one place and the ring everywhere: does the mathematics ask who adds?"
    ),
}


def measure_both(value: Any, ranks: int) -> Table:
    """Both trained for real: what each rank sends, holds between steps, and learns."""
    from dpcourse.training import train

    runs = {
        "DataParallel, as a star": train("dp", ranks=ranks, device="cpu", steps=2),
        "DDP": train("ddp", ranks=ranks, device="cpu", steps=2),
    }
    rows = [(name, *_row(run)) for name, run in runs.items()]
    columns = (
        "strategy",
        "rank 0 sends",
        "rank 1 sends",
        "payload in forward",
        "bytes a parameter on rank 1 after the step",
        "loss of step 2",
    )
    return Table(columns, rows, f"{ranks} real ranks")


def _row(run: Any) -> tuple[Any, ...]:
    forward = select(run.traffic.measured, rank=0, phase="forward")
    return (
        *(bytes_text(run.traffic.sent_bytes(rank=rank) or 0) for rank in (0, 1)),
        bytes_text(total(forward, "payload_bytes")),
        run.memory.bytes_per_parameter("step", rank=1),
        f"{run.mean_losses[-1]:.6f}",
    )


AGAINST_DP = match(
    "against_dp",
    "DataParallel against DDP",
    points=10,
    minutes=5,
    entry="against_dp",
    noun="sentence",
    options=OPTIONS,
    goals=GOALS,
    hints=_HINTS,
    measure=measure_both,
)
