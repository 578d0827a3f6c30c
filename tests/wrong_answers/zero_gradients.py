"""Lab 05, the gradients: a wrong answer for each mistake."""

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

SHARDED_GRADIENTS = {
    "keeps_gradient": _but(("    parameter.grad = None\n", "")),
    "holds_more": _but((_SCATTER, _REDUCED + "\n")),
    "all_reduced": _but((_SCATTER, _REDUCED + ".clone()\n")),
    "too_many_bytes": _but(
        ("row = parameter.grad.flatten()", "row = parameter.grad.flatten().double()"),
        ("own /= size", "own = (own / size).to(parameter.dtype)"),
    ),
    "whole": _but((_SCATTER, "    dist.all_reduce(row)\n    own = row[: parameter.numel()].clone()\n")),
    "nothing_kept": _but(("    slices[parameter] =", "    kept =")),
    "sum": _but(("    own /= size\n", "")),
    "divided_twice": _but(("own, row)", "own, row, op=dist.ReduceOp.AVG)")),
    "not_reduced": _but((_SCATTER, "    own = row.chunk(size)[rank] * size\n")),
    "overwrites": _but(("slices[parameter] + own if parameter in slices else own", "own")),
    "added_up": _but(
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
    "slice_of_rank_0": _but((_SCATTER, "    dist.all_reduce(row)\n    own = row.chunk(size)[0].clone()\n")),
    "wrong_shape": _but(
        ("torch.nn.functional.pad(row, (0, -len(row) % size))", "row[: len(row) // size * size]"),
    ),
    "wrong_dtype": _but(("own /= size", "own = (own / size).float()")),
    "wrong_type": _but(("slices[parameter] + own if parameter in slices else own", "[own]")),
    "hang": _but(("    dist.reduce", "    if parameter.numel() >= size or rank:\n        dist.reduce")),
    "other": _but(("own /= size", "own /= size + 1")),
}
