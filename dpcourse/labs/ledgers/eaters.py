"""Lab 07, fourth question: which of the four eats the memory?"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from dpcourse.labs.ledgers.jobs import PartlyFrozen
from dpcourse.labs.values import match
from dpcourse.ledger import select, sums_by
from dpcourse.models import GptSmall, Mlp
from dpcourse.tables import Table

OPTIONS = ("parameters", "gradients", "optimizer", "activations")
# What an owner of the ledger is counted with, of the four.
_COUNTED_WITH = {"buckets": "gradients", "gathered": "parameters"}


@dataclass(frozen=True)
class HeadOnly(PartlyFrozen):
    """The course's MLP with all but its last layer frozen: a cheap fine-tuning."""

    def is_trained(self, name: str) -> bool:
        """Whether the parameter of this name is trained."""
        return name.startswith(f"layers.{2 * self.depth}.")


_LONG = {"model": GptSmall(context=128, depth=3), "batch_size": 8}
_WIDE = {"model": Mlp(width=720), "batch_size": 4}
# Each run with its strategy and what it is asked; what eats its memory is held to real runs by a test.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "long sequences, AdamW, one rank": ("single", _LONG),
    "the same, fully sharded over 2 ranks": ("fsdp2", {**_LONG, "ranks": 2}),
    "wide MLP, mixed-adam, DDP with views": (
        "ddp",
        {**_WIDE, "ranks": 2, "recipe": "mixed-adam", "gradient_as_bucket_view": True},
    ),
    "wide MLP, plain SGD, DDP": ("ddp", {**_WIDE, "ranks": 2, "optimizer": "sgd"}),
    "wide MLP, all but the head frozen, AdamW": ("single", {**_WIDE, "model": HeadOnly(width=720)}),
}
EATERS = dict(zip(RUNS, ("activations", "activations", "optimizer", "gradients", "parameters"), strict=True))
_HINTS = {
    "long sequences, AdamW, one rank": (
        "128 tokens, 8 sequences, and only 3 blocks of parameters: forward keeps something for every token."
    ),
    "the same, fully sharded over 2 ranks": (
        "Sharding halves the states. What forward keeps for backward it does not touch: each rank has its own"
        " half of the batch, and half of the ledger before."
    ),
    "wide MLP, mixed-adam, DDP with views": (
        "Four samples leave next to nothing. Of 2 + 2 + 12, which is the largest summand?"
    ),
    "wide MLP, plain SGD, DDP": (
        "Plain SGD has no states. Parameters take 4 bytes; count the gradients together with their copy in "
        "the buckets."
    ),
    "wide MLP, all but the head frozen, AdamW": (
        "What is frozen has neither gradient nor states, and a short batch leaves little: what is left?"
    ),
}


@cache
def peak(name: str) -> dict[str, int]:
    """A real run's bytes at its fullest moment, each of the four with what is counted with it."""
    from dpcourse.training import train

    strategy, asked = RUNS[name]
    run = train(strategy, device="cpu", steps=1, **asked)
    held = dict.fromkeys(OPTIONS, 0)
    for owner, num_bytes in sums_by(select(run.memory.measured, phase="peak", rank=0), "owner").items():
        if (counted := _COUNTED_WITH.get(owner, owner)) in held:
            held[counted] += num_bytes
    return held


def measure_eaters(value: Any, ranks: int) -> Table:
    """Every run made for real: the four in percent of their sum at the fullest moment."""
    rows = []
    for name in RUNS:
        held = peak(name)
        shares = [f"{num_bytes / sum(held.values()):.0%}" for num_bytes in held.values()]
        rows.append((name, *shares, value[name]))
    return Table(
        ("run", *OPTIONS, "you wrote"), rows, "At the fullest moment of rank 0, of the four together"
    )


WHO_EATS = match(
    "who_eats_it",
    "Which of the four eats the memory?",
    points=15,
    minutes=8,
    entry="eaters",
    noun="run",
    options=OPTIONS,
    goals=EATERS,
    hints=_HINTS,
    measure=measure_eaters,
)
