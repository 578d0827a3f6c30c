"""Lab 06: where to cut a model into units, and the norm of a gradient that lies in shards."""

import math
from typing import Any

from dpcourse.labs.values import Number, WrongWay, numbers
from dpcourse.ranks.launch import launch
from dpcourse.tables import Table

# --- wrapping: what the size of a unit costs ---

NUM_BLOCKS, NUM_LAYERS, MILLIONS = 12, 4, 25  # blocks, layers in each, million parameters in a layer
_COLLECTIVES = 3  # of a unit in a step
_LAYER_GB = MILLIONS * 4 / 1000
_LAYERS = NUM_BLOCKS * NUM_LAYERS
_CUTS_GOALS = {
    "collectives_layers": _COLLECTIVES * _LAYERS,
    "collectives_blocks": _COLLECTIVES * NUM_BLOCKS,
    "whole_blocks": NUM_LAYERS * _LAYER_GB,
    "whole_model": _LAYERS * _LAYER_GB,
}
_WIDTH = 8  # of the layers that are really run: what they hold is counted as that of 25 million parameters


def measure_wrapping(value: Any, ranks: int) -> Table:
    """A model of this form, sharded and run on two real ranks with each size of unit."""
    found = {cut: launch(run_with, cut, ranks=2, device="cpu")[0] for cut in ("layers", "blocks", "model")}
    rows = [
        (
            f"a unit for {'the whole ' if cut == 'model' else 'each '}{cut.removesuffix('s')}",
            collectives,
            value.get(f"collectives_{cut}", "-"),
            round(whole_layers * _LAYER_GB, 6),
            value.get(f"whole_{cut}", "-"),
        )
        for cut, (collectives, whole_layers) in found.items()
    ]
    columns = ("", "collectives in a step", "you wrote", "GB whole at once", "you wrote")
    return Table(columns, rows, f"{_LAYERS} real layers on 2 ranks, each counted as {MILLIONS} million")


def run_with(cut: str) -> tuple[int, float]:
    """In a rank: the collectives of one step, and how many layers are whole at the fullest moment."""
    import torch
    from torch import nn

    from dpcourse.scratch import announce, fsdp

    layer_bytes = 4 * _WIDTH * _WIDTH

    def block() -> nn.Module:
        return nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(NUM_LAYERS)))

    blocks = nn.Sequential(*(block() for _ in range(NUM_BLOCKS)))
    model: Any = nn.Sequential(blocks)
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    chosen: Any = {"layers": layers, "blocks": list(blocks), "model": [blocks]}[cut]
    fsdp.shard(model, units=chosen, prefetch=False)
    rows = [row for unit in model.sharding.units for row in unit.flats]
    heard, most = [], [0]

    def note(*_: Any) -> None:
        whole = sum(row.whole.untyped_storage().nbytes() for row in rows)
        most[0] = max(most[0], whole)

    for layer in layers:
        layer.register_forward_hook(note, prepend=True)  # before its unit lets go of it
    with announce.listen(lambda collective, *_: heard.append(collective)):
        model(torch.ones(2, _WIDTH)).sum().backward()
    return len(heard), most[0] / layer_bytes


WRAPPING = numbers(
    "wrapping",
    "Where to cut",
    points=15,
    minutes=7,
    entry="cuts",
    asked=(
        Number(
            "collectives_layers",
            _CUTS_GOALS["collectives_layers"],
            "How many units are there, and how often does each speak in a step, forward and backward?",
        ),
        Number(
            "collectives_blocks",
            _CUTS_GOALS["collectives_blocks"],
            "As many for a unit as before; there are fewer units.",
        ),
        Number(
            "whole_blocks",
            _CUTS_GOALS["whole_blocks"],
            "One unit is whole at a time: a block's parameters, 4 bytes each.",
        ),
        Number(
            "whole_model",
            _CUTS_GOALS["whole_model"],
            "With a single unit everything is gathered at once: all parameters, 4 bytes each.",
        ),
    ),
    wrong_ways=(
        WrongWay(
            "one_gather",
            {"collectives_layers": 2 * _LAYERS},
            "That is one gather and one reduction for each. What forward gathered is gone when backward "
            "comes.",
        ),
        WrongWay(
            "only_units",
            {"collectives_layers": _LAYERS},
            "That is the number of units: each of them speaks more than once in a step.",
        ),
        WrongWay(
            "layers_again",
            {"collectives_blocks": _COLLECTIVES * _LAYERS},
            "A block that is a unit is gathered as one row, in one collective, however many layers it has.",
        ),
        WrongWay(
            "one_layer",
            {"whole_blocks": _LAYER_GB},
            "That is one layer (or billions of parameters: each takes 4 bytes). All layers of a unit "
            "come together.",
        ),
        WrongWay(
            "one_at_a_time",
            {"whole_model": NUM_LAYERS * _LAYER_GB},
            "A single unit around the model has no parts to be whole one after the other: nothing is saved.",
        ),
    ),
    measure=measure_wrapping,
)

# --- clipping: the norm of the whole, from norms of shards ---

NORMS, MAX_NORM = (2.0, 4.0, 5.0, 6.0), 3.0
_NORM = math.sqrt(sum(norm**2 for norm in NORMS))
_CLIPPED_ALONE = math.sqrt(sum(min(norm, MAX_NORM) ** 2 for norm in NORMS))
_CLIP_GOALS = {
    "norm": _NORM,
    "factor": MAX_NORM / _NORM,
    "factor_alone": MAX_NORM / NORMS[-1],
    "norm_alone": _CLIPPED_ALONE,
}


def measure_clipping(value: Any, ranks: int) -> Table:
    """Gradients of these norms on four real ranks, clipped by PyTorch's FSDP2, and by each rank alone."""
    by_rank = launch(clipped, ranks=len(NORMS), device="cpu")
    together = by_rank[0][0]
    alone = [rank[1] for rank in by_rank]
    found = {
        "norm": together,
        "factor": by_rank[-1][2],
        "factor_alone": alone[-1] / NORMS[-1],
        "norm_alone": math.sqrt(sum(norm**2 for norm in alone)),
    }
    rows = [(name, round(number, 4), value[name]) for name, number in found.items()]
    return Table(("number", "measured", "you wrote"), rows, "A gradient in shards on four real ranks")


def clipped() -> tuple[float, float, float]:
    """In a rank: the norm that FSDP2 finds, the shard's if it is clipped alone, and FSDP2's factor."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    model: Any = fully_shard(nn.Linear(1, len(NORMS), bias=False))
    model(torch.ones(1, 1)).sum().backward()
    own = NORMS[dist.get_rank()]
    shard = model.weight.grad.to_local().fill_(own)
    alone = nn.Parameter(torch.zeros(1))
    alone.grad = torch.full((1,), own)
    nn.utils.clip_grad_norm_([alone], MAX_NORM)
    norm: Any = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    return float(norm.full_tensor()), float(alone.grad), float(shard) / own


CLIPPING = numbers(
    "clipping",
    "The norm of a gradient in shards",
    points=20,
    minutes=8,
    entry="clipping",
    asked=(
        Number(
            "norm",
            _CLIP_GOALS["norm"],
            "Squares add up, norms do not: the root of the sum of the shards' squares.",
        ),
        Number(
            "factor",
            _CLIP_GOALS["factor"],
            "Clipping multiplies by what takes the norm of the whole to the largest that is allowed.",
        ),
        Number(
            "factor_alone",
            _CLIP_GOALS["factor_alone"],
            "A rank that sees its shard alone takes the shard's norm for the whole's.",
        ),
        Number(
            "norm_alone",
            _CLIP_GOALS["norm_alone"],
            "Each shard by itself is brought down to the largest norm, where it is above it; then squares "
            "add up again.",
        ),
    ),
    wrong_ways=(
        WrongWay(
            "sum_of_norms",
            {"norm": sum(NORMS)},
            "That is the sum of the norms. Shards are at right angles to each other: add squares.",
        ),
        WrongWay("squares", {"norm": _NORM**2}, "That is the sum of the squares: its root is missing."),
        WrongWay(
            "root_of_sum",
            {"norm": math.sqrt(sum(NORMS))},
            "That is the root of the sum of norms: square each of them first.",
        ),
        WrongWay(
            "mean_norm",
            {"norm": sum(NORMS) / len(NORMS)},
            "That is the mean of the norms: no rank's part may be averaged away.",
        ),
        WrongWay(
            "inverse",
            {"factor": _NORM / MAX_NORM},
            "That is what one divides by: a gradient becomes smaller.",
        ),
        WrongWay(
            "all_clipped",
            {"norm_alone": MAX_NORM * math.sqrt(len(NORMS))},
            "One of the shards is below the largest norm, and clipping never makes a gradient longer.",
        ),
        WrongWay(
            "as_allowed",
            {"norm_alone": MAX_NORM},
            "It would be, if they had added their squares up. Each has brought its own shard down to that.",
        ),
    ),
    measure=measure_clipping,
)
