"""Lab 06: a wrong unit for each mistake."""

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

UNIT = {
    "not_gathered": _but((_BEFORE_FORWARD, "    def before_forward(self):\n        pass\n")),
    "frees_before_use": _but((_BEFORE_FORWARD, f"{_BEFORE_FORWARD}        self.whole = None\n")),
    "not_gathered_again": _but((_BEFORE_BACKWARD, _NOT_AGAIN)),
    "gathers_once": _but((_AFTER_FORWARD, _KEEPS), (_BEFORE_BACKWARD, _NOT_AGAIN)),
    "never_frees": _but((_AFTER_FORWARD, _KEEPS)),
    "not_freed_in_backward": _but((_AFTER_BACKWARD, "    def after_backward(self, gradient):\n")),
    "keeps_the_whole": _but(("[self.rank].clone()", "[self.rank]")),
    "two_copies": _but(
        (
            "        self.whole = row[: self.num_numbers]\n",
            "        self.row, self.whole = row, row[: self.num_numbers].clone()\n",
        ),
        ("        self.whole = None\n", "        self.whole = self.row = None\n"),
    ),
    "keeps_gradient": _but((_REDUCE, f"{_ALL_REDUCE}\n")),
    "whole_gradient": _but((_REDUCE, "        dist.all_reduce(row)\n        self.grad = row\n")),
    "no_gradient": _but(
        (_REDUCE, _REDUCE.replace("self.grad", "grad")), (_DIVIDE, "        grad /= self.size\n")
    ),
    "wrong_gradient": _but((_DIVIDE, "        self.grad = self.grad[:-1] / self.size\n")),
    "padding": _but(("row[: self.num_numbers]", "row")),
    "wrong_shape": _but(
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
    "sum": _but((_DIVIDE, "")),
    "divided_twice": _but(("(self.grad, row)", "(self.grad, row, op=dist.ReduceOp.AVG)")),
    "own_gradient": _but(
        (_REDUCE + _DIVIDE, "        self.grad = row.chunk(self.size)[self.rank].clone()\n")
    ),
    "stale": _but(
        (
            "        self.whole = self.grad = None\n",
            "        self.whole = self.grad = None\n        self.first = self.shard.tolist()\n",
        ),
        ("(row, self.shard)", "(row, torch.tensor(self.first))"),
    ),
    "never_moved": _but(("row = self.padded(gradient)", "row = torch.zeros_like(self.padded(gradient))")),
    "wrong_shard": _but(
        (".chunk(self.size)[self.rank]", ".chunk(self.size)[(self.rank + 1) % self.size]"),
        ("row[: self.num_numbers]", "row.roll(len(self.shard))[: self.num_numbers].clone()"),
        ("row = self.padded(gradient)", "row = self.padded(gradient).roll(-len(self.shard))"),
    ),
    "all_reduced": _but((_REDUCE, f"{_ALL_REDUCE}.clone()\n")),
    "too_many_bytes": _but(
        (
            "        dist.all_gather_into_tensor(row, self.shard)\n",
            "        dist.all_gather_into_tensor(row, self.shard)\n" * 2,
        )
    ),
    "hidden": _but(
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
    "hang": _but(
        (
            "        dist.all_gather_into_tensor(row, self.shard)\n",
            "        if self.shard.any() and self.rank:\n"
            "            dist.all_gather_into_tensor(row, self.shard)\n",
        )
    ),
    "wrong_dtype": _but(
        ("[self.rank].clone()", "[self.rank].double()"),
        ("self.whole = row[: self.num_numbers]", "self.whole = row[: self.num_numbers].float()"),
        ("row = self.padded(gradient)", "row = self.padded(gradient).double()"),
    ),
    "wrong_type": _but(
        (
            "[self.rank].clone()",
            "[self.rank].clone()\n        self.shard = torch.nn.Parameter(self.shard, False)",
        )
    ),
    "other": _but((_DIVIDE, "        self.grad /= self.size + 1\n")),
}
