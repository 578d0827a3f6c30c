"""Lab 01: a wrong answer for each mistake."""

_IMPORTS = "import torch\nimport torch.distributed as dist\n\n\n"


def _shard(body: str) -> str:
    return f"import torch\n\n\ndef shard_batch(batch, rank, world_size):\n{_indent(body)}"


def _combine(body: str) -> str:
    return f"{_IMPORTS}def combine_gradients(gradients):\n{_indent(body)}"


def _weighted(body: str) -> str:
    return f"{_IMPORTS}def combine_weighted(gradients, num_rows, num_terms):\n{_indent(body)}"


def _indent(body: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in body.strip("\n").splitlines())


SHARD_BATCH = {
    "dropped_last": _shard("size = len(batch) // world_size\nreturn batch[rank * size : (rank + 1) * size]"),
    "dropped": _shard("return batch[rank + 1 :: world_size]"),
    "same_shard": _shard("return batch[: max(1, len(batch) // world_size)]"),
    "whole_batch": _shard("return batch"),
    "doubled": _shard(
        "size = -(-len(batch) // world_size)\n"
        "rows = [row % len(batch) for row in range(rank * size, (rank + 1) * size)]\n"
        "return batch[rows]"
    ),
    "uneven": _shard(
        "size = len(batch) // world_size\n"
        "last = len(batch) if rank == world_size - 1 else (rank + 1) * size\n"
        "return batch[rank * size : last]"
    ),
    "altered_rows": _shard("return torch.tensor_split(batch * 1.5, world_size)[rank]"),
    "wrong_type": _shard("return [row for row in batch[rank::world_size]]"),
    "wrong_dtype": _shard("return batch[rank::world_size].double()"),
    "wrong_shape": _shard("return batch[rank::world_size].flatten()"),
}

_EACH = "for gradient in gradients:\n"
_REDUCE = "    dist.all_reduce(gradient)\n"
_SUM_LOOP = _EACH + _REDUCE

_BROADCAST = _EACH + "    dist.broadcast(gradient, src=0)"
_FLATTEN = _SUM_LOOP + "    gradient.data = gradient.data.flatten()"
_DOUBLE = _SUM_LOOP + "    gradient.data = gradient.data.double()"
_EQUAL_TO_ALL = (
    "class Equal(torch.Tensor):\n    def __eq__(self, other):\n        return True\n\n"
    + _EACH
    + "    gradient.__class__ = Equal"
)

COMBINE_GRADIENTS = {
    "sum": _combine(_SUM_LOOP),
    "divided_twice": _combine(
        "world_size = dist.get_world_size()\n"
        + (_EACH + "    gradient /= world_size\n" + _REDUCE + "    gradient /= world_size")
    ),
    "never_combined": _combine("return gradients"),
    "not_in_place": _combine(
        "means = [gradient / dist.get_world_size() for gradient in gradients]\n"
        "for mean in means:\n    dist.all_reduce(mean)\n"
        "return means"
    ),
    "only_some_ranks": _combine(
        _EACH + "    dist.reduce(gradient, dst=0)\n"
        "    if dist.get_rank() == 0:\n        gradient /= dist.get_world_size()"
    ),
    "only_some_tensors": _combine("dist.all_reduce(gradients[0])\ngradients[0] /= dist.get_world_size()"),
    "copy_of_rank_0": _combine(_BROADCAST),
    "nan": _combine(_SUM_LOOP + "    gradient *= float('inf')\n    gradient -= gradient"),
    "wrong_dtype": _combine(_DOUBLE),
    "wrong_shape": _combine(_FLATTEN),
    "other": _combine(_SUM_LOOP + "    gradient *= 3 / dist.get_world_size()"),
    "wrong_type": _combine(_EQUAL_TO_ALL),
    "hang": _combine("if dist.get_rank() == 0:\n    return\n" + _SUM_LOOP),
}

_ZERO = "if num_terms == 0:\n    for gradient in gradients:\n        gradient.zero_()\n"
_TOTAL = "total = torch.tensor(float(num_terms))\ndist.all_reduce(total)\n"
_WEIGH = "    gradient *= num_terms / total.item()\n"

COMBINE_WEIGHTED = {
    "mean_of_means": _weighted(_ZERO + _SUM_LOOP + "    gradient /= dist.get_world_size()"),
    "by_rows": _weighted(
        _ZERO
        + _TOTAL.replace("num_terms", "num_rows")
        + _EACH
        + _WEIGH.replace("num_terms", "num_rows")
        + _REDUCE
    ),
    "not_divided": _weighted(_ZERO + _EACH + "    gradient *= num_terms\n" + _REDUCE),
    "divided_by_ranks": _weighted(
        _ZERO + _EACH + "    gradient *= num_terms / dist.get_world_size()\n" + _REDUCE
    ),
    "sum": _weighted(_ZERO + _SUM_LOOP),
    "divided_twice": _weighted(
        _ZERO + _TOTAL + _EACH + _WEIGH + _REDUCE + "    gradient /= dist.get_world_size()"
    ),
    "nan": _weighted(_TOTAL + _EACH + _WEIGH + _REDUCE),
    "never_combined": _weighted("return gradients"),
    "not_in_place": _weighted(
        _TOTAL
        + "parts = [torch.nan_to_num(gradient) * num_terms / total.item() for gradient in gradients]\n"
        + "for part in parts:\n    dist.all_reduce(part)\nreturn parts"
    ),
    "only_some_ranks": _weighted(
        _TOTAL
        + _EACH
        + "    part = torch.nan_to_num(gradient) * (num_terms / total.item())\n"
        + "    dist.reduce(part, dst=0)\n"
        + "    if dist.get_rank() == 0:\n        gradient.copy_(part)"
    ),
    "only_some_tensors": _weighted(_TOTAL + "for gradient in gradients[:1]:\n" + _WEIGH + _REDUCE),
    "copy_of_rank_0": _weighted(_BROADCAST),
    "wrong_dtype": _weighted(_DOUBLE),
    "wrong_shape": _weighted(_FLATTEN),
    "other": _weighted(_ZERO + _TOTAL + _EACH + _WEIGH + _REDUCE + "    gradient *= 7"),
    "wrong_type": _weighted(_EQUAL_TO_ALL),
    "hang": _weighted("if num_terms == 0:\n    return\n" + _TOTAL + _EACH + _WEIGH + _REDUCE),
}
