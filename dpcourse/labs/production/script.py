"""A broken script as a question: a short function that runs on real ranks, and that the learner mends."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpcourse.labs.question import Case, CodeQuestion, Judge, Mistake
from dpcourse.tables import Table

POINTS = 10
IMPORTS = """\
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


"""


def script(
    name: str,
    title: str,
    *,
    minutes: int,
    case: Callable[[np.random.Generator, int, bool], tuple[Any, ...]],
    call: Callable[[Callable[..., Any], Any], Any],
    judge: Judge,
    columns: tuple[str, ...],
    row: Callable[[Any, Any], Sequence[Any]],
    broken: str,
    mistakes: tuple[Mistake, ...],
    witnesses: tuple[str, ...] = (),
) -> CodeQuestion:
    """A question of 10 points about one script.

    case: each rank's own input, from a generator, the number of ranks, and whether it is the first case.
    row: what the picture says of a rank, from its input and what it sent. broken: the script as it is handed
    out, without the imports of the lab; the first of `mistakes` is its own.
    """

    def make(seed: int, size: int, is_first: bool) -> Case:
        random = np.random.default_rng([seed, size, sum(name.encode())])
        return Case(f"{size} ranks", case(random, size, is_first))

    def cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
        return tuple(make(seed, size, number == 0) for number, size in enumerate(sizes))

    def draw(drawn: Case, sent: list[Any]) -> Table:
        rows = [
            (rank, *row(own, values))
            for rank, (own, values) in enumerate(zip(drawn.inputs, sent, strict=True))
        ]
        return Table(("rank", *columns), rows, title)

    return CodeQuestion(
        name=name,
        title=title,
        points=POINTS,
        minutes=minutes,
        cases=cases,
        call=call,
        judge=judge,
        draw=draw,
        example=lambda ranks: make(0, ranks, True),
        mistakes=mistakes,
        witnesses=witnesses,
        handed_out=broken,
    )


def short(value: Any) -> str:
    """The first numbers of an array, for a picture; a dash where there is no array."""
    if type(value) is not np.ndarray:
        return "-"
    return " ".join(f"{number:.3f}" for number in value.ravel()[:3])
