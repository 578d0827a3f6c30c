"""Lab 02: classes of mistakes, what each is told, and a wrong answer that must be told it."""

from dpcourse.labs.question import Mistake

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


STAR_STEP_MISTAKES = (
    Mistake(
        "forbidden",
        "The task rules this collective out: the step is made of send and receive, one rank at a time.",
        star(
            ("        dist.recv(weights, 0)\n", ""),
            ("        dist.send(weights, worker)\n", ""),
            (_SIZES, _SIZES + "    dist.broadcast(weights, 0)\n"),
        ),
    ),
    Mistake(
        "hang",
        "Everybody waits for everybody. For each message that one rank sends another one must receive just"
        " that, in the same order.",
        star(("        dist.send(gradient_of(weights, rows), 0)\n", "        gradient_of(weights, rows)\n")),
    ),
    Mistake(
        "in_turns",
        "Everybody waits, for some workers compute while others have nothing to compute with yet. Hand out"
        " rows and weights to all of them first, then collect: otherwise the cards work one after another.",
        star(
            (_SEND_ALL, ""),
            (
                "        gradient = torch.empty_like(weights)\n",
                "        dist.send(parts[worker], worker)\n        dist.send(weights, worker)\n"
                "        gradient = torch.empty_like(weights)\n",
            ),
        ),
    ),
    Mistake(
        "never_updated",
        "The main rank's weights are still those of the beginning: nobody made the step.",
        star((_UPDATE, "")),
    ),
    Mistake(
        "not_in_place",
        "The weights that you return are right, and the tensor that came in is not: change it in place.",
        star((_UPDATE, "    return weights - learning_rate * total\n")),
    ),
    Mistake(
        "workers_never_updated",
        "The first step is right. In the second the workers still compute with the weights that they began"
        " with: the main rank's new ones have to go out in every step.",
        star(("        dist.recv(weights, 0)\n", ""), ("        dist.send(weights, worker)\n", "")),
    ),
    Mistake(
        "own_lost",
        "The main rank's own gradient is missing from the sum: it computes a share of the batch like all.",
        star((f"total = {_OWN}", f"total = 0 * {_OWN}")),
    ),
    Mistake(
        "only_own",
        "The weights moved by the main rank's gradient alone: what the workers sent was not added.",
        star((f"        total += {_THEIRS}\n", "")),
    ),
    Mistake(
        "mean_of_means",
        "This is the plain mean of the ranks' gradients. Shares differ by a row, so each gradient, a mean"
        " over its own rows, counts in proportion to them.",
        star((_OWN, "gradient_of(weights, parts[0]) / size"), (_THEIRS, "gradient / size")),
    ),
    Mistake(
        "sum",
        "These are gradients added up as they are. Each is a mean over its own rows, so their sum is several"
        " times the gradient of the batch.",
        star((_OWN, "gradient_of(weights, parts[0])"), (_THEIRS, "gradient")),
    ),
    Mistake(
        "not_divided",
        "Each gradient was multiplied by its number of rows, and the sum was not divided by all rows.",
        star((_OWN, "gradient_of(weights, parts[0]) * sizes[0]"), (_THEIRS, "gradient * sizes[worker]")),
    ),
    Mistake(
        "divided_by_ranks",
        "Each gradient was multiplied by its number of rows, and the sum divided by the ranks: divide by the"
        " rows of the whole batch.",
        star(
            (_OWN, "gradient_of(weights, parts[0]) * sizes[0] / size"),
            (_THEIRS, "gradient * sizes[worker] / size"),
        ),
    ),
    Mistake(
        "uphill",
        "The step goes uphill: weights move against the gradient.",
        star((_UPDATE, "    weights += learning_rate * total\n")),
    ),
    Mistake(
        "rows_lost",
        "Some rows of the batch were computed by nobody: where it does not divide, the first ranks have one"
        " row more, as torch.tensor_split cuts.",
        star(
            (_SIZES, "    sizes = [num_rows // size] * size\n"),
            ("batch.tensor_split(size)", "batch[: num_rows // size * size].tensor_split(size)"),
        ),
    ),
    Mistake(
        "idle_workers",
        "The main rank computed, and workers did not: each rank computes the gradient of its own rows.",
        star(
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
    ),
    Mistake(
        "whole_batch",
        "The weights are right, and a rank computed more rows than its share: then nothing is gained.",
        star(
            (f"total = {_OWN}", "total = gradient_of(weights, batch)"), (f"        total += {_THEIRS}\n", "")
        ),
    ),
    Mistake(
        "not_through_main",
        "The weights are right, and a worker spoke to another one: in a star all talk to the main rank only.",
        star(
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
    ),
    Mistake(
        "too_many_bytes",
        "The weights are right, and more was sent than a step needs: each worker needs its own rows and one"
        " copy of the weights, and gives one gradient back.",
        star(
            ("sizes[rank], batch.shape[1])", "num_rows, batch.shape[1])"),
            (
                "        dist.recv(rows, 0)\n",
                "        dist.recv(rows, 0)\n        rows = rows.tensor_split(size)[rank]\n",
            ),
            ("dist.send(parts[worker], worker)", "dist.send(batch, worker)"),
        ),
    ),
    Mistake(
        "not_waited",
        "All is right but one thing: a message was started and never waited for. Until `work.wait()` has"
        " returned, the tensor is not yours to change.",
        star(("        dist.send(weights, worker)\n", "        dist.isend(weights.clone(), worker)\n")),
    ),
    Mistake(
        "nan",
        "There is a nan in the weights: a tensor was used before anything was received in it?",
        star((_UPDATE, "    weights -= learning_rate * total * float('nan')\n")),
    ),
    Mistake(
        "wrong_type",
        "The weights are no plain torch.Tensor any more.",
        star((_UPDATE, _UPDATE + "    weights.__class__ = type('Equal', (torch.Tensor,), {})\n")),
    ),
    Mistake("wrong_dtype", "The dtype of the weights changed: keep the one that came in."),
    Mistake("wrong_shape", "The shape of the weights changed: keep the one that came in."),
    Mistake(
        "other",
        "The weights are off, in a way that fits none of the usual mistakes.",
        star((_UPDATE, "    weights -= 2 * learning_rate * total\n")),
    ),
)
