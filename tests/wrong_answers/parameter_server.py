"""Lab 02: a wrong answer for each mistake."""

_STAR = """import torch
import torch.distributed as dist


def star_step(weights, batch, num_rows, gradient_of, learning_rate):
    rank, size = dist.get_rank(), dist.get_world_size()
    sizes = [len(part) for part in torch.arange(num_rows).tensor_split(size)]
    if rank != 0:
        rows = batch.new_empty(sizes[rank], batch.shape[1])
        dist.recv(rows, 0)
        dist.recv(weights, 0)
        dist.send(gradient_of(weights, rows), 0)
        return
    parts = batch.tensor_split(size)
    for worker in range(1, size):
        dist.send(parts[worker], worker)
        dist.send(weights, worker)
    total = gradient_of(weights, parts[0]) * sizes[0] / num_rows
    for worker in range(1, size):
        gradient = torch.empty_like(weights)
        dist.recv(gradient, worker)
        total += gradient * sizes[worker] / num_rows
    weights -= learning_rate * total
"""
_OWN = "gradient_of(weights, parts[0]) * sizes[0] / num_rows"
_THEIRS = "gradient * sizes[worker] / num_rows"
_UPDATE = "    weights -= learning_rate * total\n"
# A step further on the odd weights would be an error.
_IN_THE_LAST_STEP = """    steps = globals().setdefault("steps", [])
    steps.append(0)
    if len(steps) == 2:
        weights.data = weights.data.{}
"""
_SEND_ALL = """    for worker in range(1, size):
        dist.send(parts[worker], worker)
        dist.send(weights, worker)
"""
_SIZES = "    sizes = [len(part) for part in torch.arange(num_rows).tensor_split(size)]\n"


def star(*changes: tuple[str, str]) -> str:
    """An answer to the first question, with some things in it replaced."""
    source = _STAR
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source


STAR_STEP = {
    "forbidden": star(
        ("        dist.recv(weights, 0)\n", ""),
        ("        dist.send(weights, worker)\n", ""),
        (_SIZES, _SIZES + "    dist.broadcast(weights, 0)\n"),
    ),
    "hang": star(
        ("        dist.send(gradient_of(weights, rows), 0)\n", "        gradient_of(weights, rows)\n")
    ),
    "in_turns": star(
        (_SEND_ALL, ""),
        (
            "        gradient = torch.empty_like(weights)\n",
            "        dist.send(parts[worker], worker)\n        dist.send(weights, worker)\n"
            "        gradient = torch.empty_like(weights)\n",
        ),
    ),
    "wrong_dtype": star((_UPDATE, _UPDATE + _IN_THE_LAST_STEP.format("half()"))),
    "wrong_shape": star((_UPDATE, _UPDATE + _IN_THE_LAST_STEP.format("view(2, 2)"))),
    "never_updated": star((_UPDATE, "")),
    "not_in_place": star((_UPDATE, "    return weights - learning_rate * total\n")),
    "workers_never_updated": star(
        ("        dist.recv(weights, 0)\n", ""), ("        dist.send(weights, worker)\n", "")
    ),
    "own_lost": star((f"total = {_OWN}", f"total = 0 * {_OWN}")),
    "only_own": star((f"        total += {_THEIRS}\n", "")),
    "mean_of_means": star((_OWN, "gradient_of(weights, parts[0]) / size"), (_THEIRS, "gradient / size")),
    "sum": star((_OWN, "gradient_of(weights, parts[0])"), (_THEIRS, "gradient")),
    "not_divided": star(
        (_OWN, "gradient_of(weights, parts[0]) * sizes[0]"), (_THEIRS, "gradient * sizes[worker]")
    ),
    "divided_by_ranks": star(
        (_OWN, "gradient_of(weights, parts[0]) * sizes[0] / size"),
        (_THEIRS, "gradient * sizes[worker] / size"),
    ),
    "uphill": star((_UPDATE, "    weights += learning_rate * total\n")),
    "rows_lost": star(
        (_SIZES, "    sizes = [num_rows // size] * size\n"),
        ("batch.tensor_split(size)", "batch[: num_rows // size * size].tensor_split(size)"),
    ),
    "idle_workers": star(
        (_SEND_ALL, ""),
        ("        rows = batch.new_empty(sizes[rank], batch.shape[1])\n", ""),
        ("        dist.recv(rows, 0)\n", ""),
        ("        dist.recv(weights, 0)\n", ""),
        ("        dist.send(gradient_of(weights, rows), 0)\n", ""),
        (
            "        gradient = torch.empty_like(weights)\n        dist.recv(gradient, worker)\n",
            "        gradient = gradient_of(weights, parts[worker])\n",
        ),
    ),
    "whole_batch": star(
        (f"total = {_OWN}", "total = gradient_of(weights, batch)"), (f"        total += {_THEIRS}\n", "")
    ),
    "not_through_main": star(
        (
            "        dist.send(gradient_of(weights, rows), 0)\n",
            """        gradient = gradient_of(weights, rows)
        dist.send(gradient, 0)
        if rank == 1 < size - 1:
            dist.send(gradient, 2)
        if rank == 2:
            dist.recv(gradient.clone(), 1)
""",
        )
    ),
    "too_many_bytes": star(
        ("sizes[rank], batch.shape[1])", "num_rows, batch.shape[1])"),
        (
            "        dist.recv(rows, 0)\n",
            "        dist.recv(rows, 0)\n        rows = rows.tensor_split(size)[rank]\n",
        ),
        ("dist.send(parts[worker], worker)", "dist.send(batch, worker)"),
    ),
    "not_waited": star(
        ("        dist.send(weights, worker)\n", "        dist.isend(weights.clone(), worker)\n")
    ),
    "nan": star((_UPDATE, "    weights -= learning_rate * total * float('nan')\n")),
    "wrong_type": star((_UPDATE, _UPDATE + "    weights.__class__ = type('Equal', (torch.Tensor,), {})\n")),
    "other": star((_UPDATE, "    weights -= 2 * learning_rate * total\n")),
}
