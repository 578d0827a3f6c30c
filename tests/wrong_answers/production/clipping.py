"""Script 9: a half mend or a wrong one for each mistake."""

_HEAD = "def clip(shards, max_norm):\n"
_SQUARES = "    squares = torch.stack([shard.square().sum() for shard in shards]).sum()\n"
_NORM = "    norm = squares.sqrt()\n"
_REDUCE = "    dist.all_reduce(squares)\n"
_FACTOR = "    factor = torch.clamp(max_norm / norm, max=1.0)\n"
_SCALE = "    for shard in shards:\n        shard *= factor\n    return norm\n"

CLIP = {
    "sum_of_norms": _HEAD + _SQUARES + _NORM + "    dist.all_reduce(norm)\n" + _FACTOR + _SCALE,
    "mean_of_norms": _HEAD
    + _SQUARES
    + _NORM
    + "    dist.all_reduce(norm)\n    norm /= dist.get_world_size()\n"
    + _FACTOR
    + _SCALE,
    "largest": _HEAD
    + _SQUARES
    + _NORM
    + "    dist.all_reduce(norm, op=dist.ReduceOp.MAX)\n"
    + _FACTOR
    + _SCALE,
    "fitted": _HEAD + _SQUARES + "    squares *= dist.get_world_size()\n" + _NORM + _FACTOR + _SCALE,
    "scaled_up": _HEAD + _SQUARES + _REDUCE + _NORM + "    factor = max_norm / norm\n" + _SCALE,
    "hang": _HEAD
    + "    norm = torch.zeros((), dtype=torch.float64)\n    for shard in shards:\n"
    + "        square = shard.square().sum()\n        dist.all_reduce(square)\n"
    + "        norm += square\n"
    + "    norm = norm.sqrt()\n"
    + _FACTOR
    + _SCALE,
    "other": _HEAD + _SQUARES + _REDUCE + _NORM + "    return norm\n",
}
