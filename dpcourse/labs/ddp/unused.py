"""Lab 03, fifth question: what DDP does when a layer is left out, and what find_unused_parameters does."""

from typing import Any

from dpcourse.labs.values import match
from dpcourse.ranks.errors import RankError
from dpcourse.ranks.launch import launch
from dpcourse.tables import Table

MEAN, SILENCE, ERROR, WAIT = (
    "the mean on every rank",
    "each rank its own, in silence",
    "one rank waits until the other's next forward pass raises",
    "one rank waits for ever",
)
OPTIONS = (MEAN, SILENCE, ERROR, WAIT)
GOALS = {
    "nobody uses it": SILENCE,
    "rank 0 alone uses it": ERROR,
    "rank 0 alone uses it, and rank 1 leaves the loop": WAIT,
    "rank 0 alone uses it, find_unused_parameters=True": MEAN,
}
_HINTS = {
    "nobody uses it": (
        "The bucket does not fill on either rank, so nobody sends anything, and nobody waits for anybody."
    ),
    "rank 0 alone uses it": (
        "On rank 0 the bucket is full and leaves; rank 1 never sends its part, and goes on. When does DDP"
        " look whether the last reduction was finished?"
    ),
    "rank 0 alone uses it, and rank 1 leaves the loop": (
        "The check that ended the wait before stands in rank 1's next forward pass. Here there is none."
    ),
    "rank 0 alone uses it, find_unused_parameters=True": (
        "DDP looks at the graph after forward, and counts what is missing as ready, with zeros."
    ),
}
# Of each situation who uses the layer, how many steps rank 0 and rank 1 take, and whether DDP was told.
_RUNS: dict[str, tuple[tuple[int, ...], tuple[int, int], bool]] = {
    "nobody uses it": ((), (1, 1), False),
    "rank 0 alone uses it": ((0,), (2, 2), False),
    "rank 0 alone uses it, and rank 1 leaves the loop": ((0,), (1, 1), False),
    "rank 0 alone uses it, find_unused_parameters=True": ((0,), (2, 2), True),
}


def measure_unused(value: Any, ranks: int) -> Table:
    """Each situation on two real ranks, with PyTorch's own DDP."""
    rows = [(name, outcome(*asked), value[name]) for name, asked in _RUNS.items()]
    return Table(("who uses the layer", "what happened", "you wrote"), rows, "DDP on two real ranks")


def outcome(users: tuple[int, ...], num_steps: tuple[int, int], looks: bool) -> str:
    """Which of the options a real run ends in; the gradient of a layer that both use says if it is a mean."""
    try:
        found = launch(
            _train,
            users,
            looks,
            per_rank=[(num,) for num in num_steps],
            ranks=2,
            device="cpu",
            deadline_seconds=60,
        )
    except RankError as error:
        return ERROR if error.kind == "raised" else WAIT
    return MEAN if found == [3.0, 3.0] else SILENCE


def _train(num_steps: int, users: tuple[int, ...], looks: bool) -> float:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.always, self.sometimes = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, inputs: torch.Tensor, takes_branch: bool) -> torch.Tensor:
            hidden = self.always(inputs)
            return self.sometimes(hidden) if takes_branch else hidden

    module = Branching()
    nn.init.eye_(module.sometimes.weight)
    model = DistributedDataParallel(module, find_unused_parameters=looks)
    rank = dist.get_rank()
    for _ in range(num_steps):
        model.zero_grad()
        model(torch.full((1, 2), 2.0 * (rank + 1)), rank in users).sum().backward()
    gradient = module.always.weight.grad
    assert gradient is not None
    return gradient[0, 0].item()


UNUSED_LAYER = match(
    "unused",
    "A layer that somebody leaves out",
    points=15,
    minutes=7,
    entry="unused",
    noun="situation",
    options=OPTIONS,
    goals=GOALS,
    hints=_HINTS,
    measure=measure_unused,
)
