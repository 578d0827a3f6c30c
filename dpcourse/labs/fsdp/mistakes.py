"""Lab 06: classes of mistakes in a unit, what each is told, and a wrong answer that must be told it."""

from dpcourse.labs.question import Mistake

_UNIT = """import torch
import torch.distributed as dist


class Unit:
    def __init__(self, whole):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.num_numbers = len(whole)
        self.shard = self.padded(whole).chunk(self.size)[self.rank].clone()
        self.whole = self.grad = None

    def padded(self, row):
        return torch.nn.functional.pad(row, (0, -len(row) % self.size))

    def before_forward(self):
        self.gather()

    def after_forward(self):
        self.whole = None

    def before_backward(self):
        self.gather()

    def after_backward(self, gradient):
        self.whole = None
        row = self.padded(gradient)
        self.grad = torch.empty_like(self.shard)
        dist.reduce_scatter_tensor(self.grad, row)
        self.grad /= self.size

    def gather(self):
        row = self.shard.new_empty(len(self.shard) * self.size)
        dist.all_gather_into_tensor(row, self.shard)
        self.whole = row[: self.num_numbers]
"""


def _but(*changes: tuple[str, str]) -> str:
    text = _UNIT
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


_AFTER_FORWARD = "    def after_forward(self):\n        self.whole = None\n"
_KEEPS = "    def after_forward(self):\n        pass\n"
_BEFORE_FORWARD = "    def before_forward(self):\n        self.gather()\n"
_BEFORE_BACKWARD = "    def before_backward(self):\n        self.gather()\n"
_NOT_AGAIN = "    def before_backward(self):\n        pass\n"
_AFTER_BACKWARD = "    def after_backward(self, gradient):\n        self.whole = None\n"
_REDUCE = (
    "        self.grad = torch.empty_like(self.shard)\n        dist.reduce_scatter_tensor(self.grad, row)\n"
)
_ALL_REDUCE = "        dist.all_reduce(row)\n        self.grad = row.chunk(self.size)[self.rank]"
_DIVIDE = "        self.grad /= self.size\n"

UNIT_MISTAKES = (
    Mistake(
        "not_gathered",
        "A layer is to compute, and `self.whole` is not there, and nothing was sent to bring it together:"
        " gather it in `before_forward`.",
        _but((_BEFORE_FORWARD, "    def before_forward(self):\n        pass\n")),
    ),
    Mistake(
        "frees_before_use",
        "The whole was gathered, and let go of again before the layer had computed with it. Free it in"
        " `after_forward` and `after_backward`, not where it is gathered.",
        _but((_BEFORE_FORWARD, f"{_BEFORE_FORWARD}        self.whole = None\n")),
    ),
    Mistake(
        "not_gathered_again",
        "In backward the whole is missing: forward let go of it, as it should, and so it has to be gathered a"
        " second time, in `before_backward`.",
        _but((_BEFORE_BACKWARD, _NOT_AGAIN)),
    ),
    Mistake(
        "gathers_once",
        "The whole is gathered once and kept from forward to backward, as SHARD_GRAD_OP does: at the end of"
        " forward all layers are there. Here a unit is to let go in `after_forward`, and gather again.",
        _but((_AFTER_FORWARD, _KEEPS), (_BEFORE_BACKWARD, _NOT_AGAIN)),
    ),
    Mistake(
        "never_frees",
        "After forward the unit's whole is still there, though it is gathered again later: set"
        " `self.whole` to None, and keep no view of it.",
        _but((_AFTER_FORWARD, _KEEPS)),
    ),
    Mistake(
        "not_freed_in_backward",
        "In backward units stay whole after their turn: let go of the whole in `after_backward` too.",
        _but((_AFTER_BACKWARD, "    def after_backward(self, gradient):\n")),
    ),
    Mistake(
        "keeps_the_whole",
        "A unit that has only just been made holds more than its shard. A shard that is a view keeps the"
        " whole row that it was cut from: take a copy, `.clone()`.",
        _but(("[self.rank].clone()", "[self.rank]")),
    ),
    Mistake(
        "two_copies",
        "While the layer computes, its whole is there twice: let go of what it was put together from.",
        _but(
            (
                "        self.whole = row[: self.num_numbers]\n",
                "        self.row, self.whole = row, row[: self.num_numbers].clone()\n",
            ),
            ("        self.whole = None\n", "        self.whole = self.row = None\n"),
        ),
    ),
    Mistake(
        "keeps_gradient",
        "After backward more than the gradient's shard is there: a gradient as long as the unit. A shard that"
        " is a view of an all-reduced row keeps the row.",
        _but((_REDUCE, f"{_ALL_REDUCE}\n")),
    ),
    Mistake(
        "whole_gradient",
        "`self.grad` is the gradient of the whole unit, and the step needs that of the shard: rank r takes"
        " shard r of the mean.",
        _but((_REDUCE, "        dist.all_reduce(row)\n        self.grad = row\n")),
    ),
    Mistake(
        "no_gradient",
        "After `after_backward` there is no `self.grad`: it has to hold the shard's gradient, as a tensor.",
        _but((_REDUCE, _REDUCE.replace("self.grad", "grad")), (_DIVIDE, "        grad /= self.size\n")),
    ),
    Mistake(
        "wrong_gradient",
        "`self.grad` has another shape than `self.shard`: both are cut in the same way, with the same "
        "zeros at"
        " the end.",
        _but((_DIVIDE, "        self.grad = self.grad[:-1] / self.size\n")),
    ),
    Mistake(
        "padding",
        "The whole has another length than the unit. Where it does not divide, the row is padded with zeros"
        " to be cut, and what comes together is cut off again at the unit's own length.",
        _but(("row[: self.num_numbers]", "row")),
    ),
    Mistake(
        "wrong_shape",
        "A shard has the wrong length: every rank keeps equally many numbers, the unit's length divided "
        "by the"
        " ranks and rounded up.",
        _but(
            ("self.padded(whole).chunk(self.size)[self.rank].clone()", "self.cut(whole)"),
            (
                "    def padded(",
                "    def cut(self, whole):\n        own = self.padded(whole).chunk(self.size)"
                "[self.rank]\n        return torch.cat([own, own[:1]])\n\n    def padded(",
            ),
            (
                "dist.all_gather_into_tensor(row, self.shard)",
                "dist.all_gather_into_tensor(row, self.shard)\n"
                "        row = row.view(self.size, -1)[:, :-1].flatten()",
            ),
            (
                "        row = self.padded(gradient)\n",
                "        row = self.padded(gradient).view(self.size, -1)\n"
                "        row = torch.cat([row, row[:, :1]], 1).flatten()\n",
            ),
        ),
    ),
    Mistake(
        "sum",
        "The shards moved by the sum of the ranks' gradients: a reduce-scatter adds up, so divide by the"
        " number of ranks.",
        _but((_DIVIDE, "")),
    ),
    Mistake(
        "divided_twice",
        "The gradients are too small by the number of ranks: they were divided twice. ReduceOp.AVG divides"
        " too.",
        _but(("(self.grad, row)", "(self.grad, row, op=dist.ReduceOp.AVG)")),
    ),
    Mistake(
        "own_gradient",
        "Every shard follows the gradient of the rank that keeps it, which has seen its own samples only: the"
        " gradients have to be added up over the ranks.",
        _but((_REDUCE + _DIVIDE, "        self.grad = row.chunk(self.size)[self.rank].clone()\n")),
    ),
    Mistake(
        "stale",
        "The second step computed with the weights of the first: the shards have moved, and what is gathered"
        " has to be `self.shard` as it is now.",
        _but(
            (
                "        self.whole = self.grad = None\n",
                "        self.whole = self.grad = None\n        self.first = self.shard.tolist()\n",
            ),
            ("(row, self.shard)", "(row, torch.tensor(self.first))"),
        ),
    ),
    Mistake(
        "never_moved",
        "The shards are what they were: `self.grad` is all zeros. It is the gradient that was handed to"
        " `after_backward` that has to be reduced.",
        _but(("row = self.padded(gradient)", "row = torch.zeros_like(self.padded(gradient))")),
    ),
    Mistake(
        "wrong_shard",
        "Each rank keeps a neighbour's shard: rank r keeps shard r, and the gather joins them in order of"
        " rank.",
        _but(
            (".chunk(self.size)[self.rank]", ".chunk(self.size)[(self.rank + 1) % self.size]"),
            ("row[: self.num_numbers]", "row.roll(len(self.shard))[: self.num_numbers].clone()"),
            ("row = self.padded(gradient)", "row = self.padded(gradient).roll(-len(self.shard))"),
        ),
    ),
    Mistake(
        "all_reduced",
        "All is right but the bytes: an all-reduce gives every rank the whole mean gradient, to be "
        "thrown away"
        " but for a shard. A reduce-scatter is the half of it that is needed.",
        _but((_REDUCE, f"{_ALL_REDUCE}.clone()\n")),
    ),
    Mistake(
        "too_many_bytes",
        "All is right but the bytes: more is sent than two gathers and a reduce-scatter.",
        _but(
            (
                "        dist.all_gather_into_tensor(row, self.shard)\n",
                "        dist.all_gather_into_tensor(row, self.shard)\n" * 2,
            )
        ),
    ),
    Mistake(
        "hidden",
        "The numbers are right, and for backward nothing was sent: the whole was kept out of sight, or "
        "gathered"
        " at another time. It has to be gathered in `before_backward`.",
        _but(
            (
                _AFTER_FORWARD,
                "    def after_forward(self):\n        self.kept = self.whole.tolist()\n"
                "        self.whole = None\n",
            ),
            (
                _BEFORE_BACKWARD,
                "    def before_backward(self):\n        self.whole = torch.tensor(self.kept)\n",
            ),
        ),
    ),
    Mistake(
        "hang",
        "Ranks wait for each other: every rank has to take part in every gather and every reduction, "
        "also with a"
        " shard of zeros.",
        _but(
            (
                "        dist.all_gather_into_tensor(row, self.shard)\n",
                "        if self.shard.any() and self.rank:\n"
                "            dist.all_gather_into_tensor(row, self.shard)\n",
            )
        ),
    ),
    Mistake(
        "wrong_dtype",
        "A shard has another dtype than the unit: it was fp32.",
        _but(
            ("[self.rank].clone()", "[self.rank].double()"),
            ("self.whole = row[: self.num_numbers]", "self.whole = row[: self.num_numbers].float()"),
            ("row = self.padded(gradient)", "row = self.padded(gradient).double()"),
        ),
    ),
    Mistake(
        "wrong_type",
        "`self.shard` has to be a plain torch.Tensor, flat.",
        _but(
            (
                "[self.rank].clone()",
                "[self.rank].clone()\n        self.shard = torch.nn.Parameter(self.shard, False)",
            )
        ),
    ),
    Mistake(
        "other",
        "The shards are not those of a training on one process, in a way that fits none of the usual "
        "mistakes.",
        _but((_DIVIDE, "        self.grad /= self.size + 1\n")),
    ),
)
