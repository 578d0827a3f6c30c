"""Lab 05, second question: classes of mistakes, what each is told, and a wrong answer for each."""

from dpcourse.labs.question import Mistake

_IMPORTS = "import torch\nimport torch.distributed as dist\n\n\n"
_ANSWER = (
    _IMPORTS
    + """def on_gradient(parameter, slices):
    rank, size = dist.get_rank(), dist.get_world_size()
    row = parameter.grad.flatten()
    row = torch.nn.functional.pad(row, (0, -len(row) % size))
    own = row.new_empty(len(row) // size)
    dist.reduce_scatter_tensor(own, row)
    own /= size
    slices[parameter] = slices[parameter] + own if parameter in slices else own
    parameter.grad = None
"""
)


def _but(*changes: tuple[str, str]) -> str:
    text = _ANSWER
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


_SCATTER = "    own = row.new_empty(len(row) // size)\n    dist.reduce_scatter_tensor(own, row)\n"
_REDUCED = "    dist.all_reduce(row)\n    own = row.chunk(size)[rank]"

GRADIENT_MISTAKES = (
    Mistake(
        "keeps_gradient",
        "After your call the whole gradient is still in `.grad`: that is stage 1. Set it to None as soon as"
        " its slice has come; the next backward pass would add to it, too.",
        _but(("    parameter.grad = None\n", "")),
    ),
    Mistake(
        "holds_more",
        "The slices are right, and more than slices is held. A slice that is a view of a whole keeps the"
        " whole, and so does every list or closure that has one: keep a copy (`.clone()`) of the slice.",
        _but((_SCATTER, _REDUCED + "\n")),
    ),
    Mistake(
        "all_reduced",
        "All is right but the bytes: an all-reduce brings every rank the whole mean gradient, to keep a slice"
        " of it. A reduce-scatter is the half of it that is needed.",
        _but((_SCATTER, _REDUCED + ".clone()\n")),
    ),
    Mistake(
        "too_many_bytes",
        "All is right but the bytes: a rank sends more than a reduce-scatter in the gradient's own dtype.",
        _but(
            ("row = parameter.grad.flatten()", "row = parameter.grad.flatten().double()"),
            ("own /= size", "own = (own / size).to(parameter.dtype)"),
        ),
    ),
    Mistake(
        "whole",
        "The whole gradient is kept, on every rank. `slices[parameter]` is to hold this rank's slice only.",
        _but((_SCATTER, "    dist.all_reduce(row)\n    own = row[: parameter.numel()].clone()\n")),
    ),
    Mistake(
        "nothing_kept",
        "For a parameter there is nothing in `slices`: put this rank's slice there, under the parameter.",
        _but(("    slices[parameter] =", "    kept =")),
    ),
    Mistake(
        "sum",
        "These are slices of the sum over the ranks. Divide by their number.",
        _but(("    own /= size\n", "")),
    ),
    Mistake(
        "divided_twice",
        "The slices are too small by the number of ranks: they were divided twice. ReduceOp.AVG divides too.",
        _but(("own, row)", "own, row, op=dist.ReduceOp.AVG)")),
    ),
    Mistake(
        "not_reduced",
        "Each rank keeps a slice of its own gradient: the other ranks' have not been added.",
        _but((_SCATTER, "    own = row.chunk(size)[rank] * size\n")),
    ),
    Mistake(
        "overwrites",
        "The slices are those of the last backward pass. Between two steps slices add up, as `.grad` does.",
        _but(("slices[parameter] + own if parameter in slices else own", "own")),
    ),
    Mistake(
        "added_up",
        "The first pass counts twice: the gradient that was reduced was still there when the second pass"
        " added to it.",
        _but(
            (
                "    parameter.grad = None\n",
                "    last[parameter] = parameter.grad\n    parameter.grad = None\n",
            ),
            (
                "    row = parameter.grad.flatten()\n",
                "    row = (parameter.grad + last.get(parameter, 0)).flatten()\n",
            ),
            ("def on_gradient", "last = {}\n\n\ndef on_gradient"),
        ),
    ),
    Mistake(
        "slice_of_rank_0",
        "Every rank keeps the same slice, the first: rank r keeps slice r.",
        _but((_SCATTER, "    dist.all_reduce(row)\n    own = row.chunk(size)[0].clone()\n")),
    ),
    Mistake(
        "wrong_shape",
        "A slice has the wrong length. Every rank keeps equally many numbers, in one flat row: pad the"
        " gradient with zeros until it divides, and then cut it.",
        _but(
            ("torch.nn.functional.pad(row, (0, -len(row) % size))", "row[: len(row) // size * size]"),
        ),
    ),
    Mistake(
        "wrong_dtype",
        "A slice has another dtype than its gradient: one of the gradients here is fp64.",
        _but(("own /= size", "own = (own / size).float()")),
    ),
    Mistake(
        "wrong_type",
        "Keep a plain torch.Tensor for each parameter.",
        _but(("slices[parameter] + own if parameter in slices else own", "[own]")),
    ),
    Mistake(
        "hang",
        "Ranks wait for each other: every rank has to take part in every reduction, in the order in which"
        " backward finds the gradients.",
        _but(("    dist.reduce", "    if parameter.numel() >= size or rank:\n        dist.reduce")),
    ),
    Mistake(
        "other",
        "The slices are not those of the mean gradient, in a way that fits none of the usual mistakes.",
        _but(("own /= size", "own /= size + 1")),
    ),
)
