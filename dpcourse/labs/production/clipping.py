"""Script 9: a gradient in shards, clipped by the norm of one shard."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.production.outcomes import Outcomes
from dpcourse.labs.production.script import script, short
from dpcourse.labs.question import Case, Finding, Mistake

MAX_NORM = 1.0
Gradient = list[np.ndarray]
Share = tuple[Gradient, Gradient]  # one that is too long, one that is short enough


def _case(random: np.random.Generator, size: int, is_first: bool) -> tuple[Share, ...]:
    # Unlike lengths and numbers of shards, one of them empty: parameters seldom divide by the ranks.
    shapes = [[(4 + rank,), (0,), (2, 3)][: 2 + rank % 2] for rank in range(size)]
    long = [[random.standard_normal(shape) for shape in own] for own in shapes]
    short_one = [[0.5 / size * gradient / _norm(own) for gradient in own] for own in long]
    return tuple(zip(long, short_one, strict=True))


def _norm(shards: Gradient) -> float:
    return float(np.sqrt(sum(np.sum(shard**2) for shard in shards)))


def call(answer: Callable[..., Any], share: Share) -> dict[str, Any]:
    """In a rank: the numbers of its shards after the call, one after another, and the norm it gives."""
    import torch

    sent: dict[str, Any] = {}
    for name, gradient in zip(("long", "short"), share, strict=True):
        shards = [torch.from_numpy(shard.copy()) for shard in gradient]
        norm = answer(shards, MAX_NORM)
        sent[name] = torch.cat([shard.flatten() for shard in shards])
        sent[f"norm of {name}"] = float(norm)
    return sent


def judge(case: Case, sent: list[Any]) -> Finding:
    """All shards by one factor, from the norm of the whole gradient; one that is short enough stays."""
    norms = [[_norm(gradient) for gradient in share] for share in case.inputs]
    columns = [np.array(column) for column in zip(*norms, strict=True)]
    size = case.world_size
    ways: dict[str, list[list[float]]] = {
        "local": norms,
        "sum_of_norms": [[float(column.sum()) for column in columns]] * size,
        "mean_of_norms": [[float(column.mean()) for column in columns]] * size,
        "largest": [[float(column.max()) for column in columns]] * size,
        "fitted": [[float(norm * np.sqrt(size)) for norm in own] for own in norms],
    }
    whole = [[float(np.sqrt(np.sum(column**2))) for column in columns]] * size
    outcomes = {name: _clipped(case, way) for name, way in ways.items()}
    scaled_up = {"scaled_up": _clipped(case, whole, is_limit=False)}
    return Outcomes(_clipped(case, whole), {**outcomes, **scaled_up}).judge(case.title, sent)


def _clipped(case: Case, norms: list[list[float]], is_limit: bool = True) -> list[dict[str, Any]]:
    """What each rank holds if it clips by these norms."""
    held = []
    for share, own_norms in zip(case.inputs, norms, strict=True):
        values: dict[str, Any] = {}
        for name, gradient, norm in zip(("long", "short"), share, own_norms, strict=True):
            factor = min(1.0, MAX_NORM / norm) if is_limit else MAX_NORM / norm
            values[name] = factor * np.concatenate([shard.ravel() for shard in gradient])
            values[f"norm of {name}"] = norm
        held.append(values)
    return held


def _row(share: Share, values: Any) -> tuple[Any, ...]:
    return short(share[0][0]), short(values["long"]), values["norm of long"]


_BROKEN = """\
def clip(shards, max_norm):
    squares = torch.stack([shard.square().sum() for shard in shards]).sum()
    norm = squares.sqrt()
    factor = torch.clamp(max_norm / norm, max=1.0)
    for shard in shards:
        shard *= factor
    return norm
"""

CLIP = script(
    "clip",
    "A gradient in shards, clipped to 1",
    minutes=5,
    case=_case,
    call=call,
    judge=judge,
    columns=("three numbers of its shard", "after the call", "the norm it gives"),
    row=_row,
    broken=_BROKEN,
    mistakes=(
        Mistake(
            "local",
            "Each rank took the norm of its own shard: the factors differ, and the gradient's direction with"
            " them. A norm is over the whole gradient.",
        ),
        Mistake(
            "sum_of_norms",
            "Norms do not add up: shards of norm 3 and 4 make a gradient of norm 5. Add up the squares, and"
            " take the root afterwards.",
        ),
        Mistake(
            "mean_of_norms",
            "The ranks agree on the mean of their norms: equal on all, and shorter than the norm of the"
            " whole.",
        ),
        Mistake(
            "largest",
            "The ranks agree on the largest of their norms: the whole gradient is longer than its longest"
            " shard.",
        ),
        Mistake(
            "fitted",
            "The root of the number of ranks makes up for the missing shards only where all are equally"
            " long: the factors still differ from rank to rank.",
        ),
        Mistake(
            "scaled_up",
            "A gradient that was short enough was made longer: a clip only ever shortens.",
        ),
        Mistake(
            "hang",
            "Ranks hold different numbers of shards, so a collective for each shard does not come out even:"
            " bring one number for each rank.",
        ),
        Mistake(
            "other",
            "The shards are not the whole gradient's, shortened to the largest norm allowed.",
        ),
    ),
)
