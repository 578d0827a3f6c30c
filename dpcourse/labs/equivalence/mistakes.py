"""Lab 01: classes of mistakes, what each is told, and a wrong answer that must be told it."""

from dpcourse.labs.question import Mistake

_WRONG_TYPE = (
    "The result must be a plain torch.Tensor: nothing wrapped around it, no list, no array, no subclass."
)
_WRONG_DTYPE = "The dtype changed: keep the one you were given."
_WRONG_SHAPE = "The shape changed: keep the one you were given."
_OTHER = "The values are off, in a way that fits none of the usual mistakes."
HANG = (
    "Some rank did not take part in a collective that the others wait in: every rank must call the same"
    " collectives, the same number of times, in the same order, whatever its own data look like."
)


_IMPORTS = "import torch\nimport torch.distributed as dist\n\n\n"


def _shard(body: str) -> str:
    return f"import torch\n\n\ndef shard_batch(batch, rank, world_size):\n{_indent(body)}"


def _combine(body: str) -> str:
    return f"{_IMPORTS}def combine_gradients(gradients):\n{_indent(body)}"


def _weighted(body: str) -> str:
    return f"{_IMPORTS}def combine_weighted(gradients, num_rows, num_terms):\n{_indent(body)}"


def _indent(body: str) -> str:
    return "".join(f"    {line}\n" if line else "\n" for line in body.strip("\n").splitlines())


SHARD_MISTAKES = (
    Mistake(
        "dropped_last",
        "The last rows are on no rank: num_rows // world_size rows each leaves the remainder out.",
        _shard("size = len(batch) // world_size\nreturn batch[rank * size : (rank + 1) * size]"),
    ),
    Mistake(
        "dropped",
        "Some rows are on no rank: they would never be trained on.",
        _shard("return batch[rank + 1 :: world_size]"),
    ),
    Mistake(
        "same_shard",
        "Every rank holds the same rows: the shard must depend on the rank.",
        _shard("return batch[: max(1, len(batch) // world_size)]"),
    ),
    Mistake(
        "whole_batch",
        "Every rank holds the whole batch: N ranks would do the work of one, N times.",
        _shard("return batch"),
    ),
    Mistake(
        "doubled",
        "Some rows are on two ranks: padding to a multiple of world_size gives them twice the weight.",
        _shard(
            "size = -(-len(batch) // world_size)\n"
            "rows = [row % len(batch) for row in range(rank * size, (rank + 1) * size)]\n"
            "return batch[rows]"
        ),
    ),
    Mistake(
        "uneven",
        "Nothing is lost, but the shards are uneven: give the remainder to several ranks, one row each,"
        " since a step takes as long as the largest shard.",
        _shard(
            "size = len(batch) // world_size\n"
            "last = len(batch) if rank == world_size - 1 else (rank + 1) * size\n"
            "return batch[rank * size : last]"
        ),
    ),
    Mistake(
        "altered_rows",
        "A rank holds rows that are not in the batch: a shard is made of whole, unchanged rows.",
        _shard("return torch.tensor_split(batch * 1.5, world_size)[rank]"),
    ),
    Mistake("wrong_type", _WRONG_TYPE, _shard("return [row for row in batch[rank::world_size]]")),
    Mistake("wrong_dtype", _WRONG_DTYPE, _shard("return batch[rank::world_size].double()")),
    Mistake("wrong_shape", _WRONG_SHAPE, _shard("return batch[rank::world_size].flatten()")),
)

_EACH = "for gradient in gradients:\n"
_REDUCE = "    dist.all_reduce(gradient)\n"
_SUM_LOOP = _EACH + _REDUCE

_NEVER_COMBINED = (
    "No rank's tensors hold anything of another's: nothing was combined, and each would go its own way."
)
_NOT_IN_PLACE = (
    "The result is right but stands in new tensors. Overwrite the tensors you were given: they are the"
    " parameters' .grad, and that is where the optimizer looks."
)
_ONLY_SOME_RANKS = (
    "Only some ranks hold the result: the others would step with something else. A reduce alone leaves it"
    " on one rank."
)
_ONLY_SOME_TENSORS = "Some tensors are combined and others are not: treat every tensor of the list."
_COPY_OF_RANK_0 = "Every rank holds rank 0's gradient: the data of the other ranks have no effect."

_BROADCAST = _EACH + "    dist.broadcast(gradient, src=0)"
_FLATTEN = _SUM_LOOP + "    gradient.data = gradient.data.flatten()"
_EQUAL_TO_ALL = (
    "class Equal(torch.Tensor):\n    def __eq__(self, other):\n        return True\n\n"
    + _EACH
    + "    gradient.__class__ = Equal"
)
_KIND_MISTAKES = (Mistake("wrong_dtype", _WRONG_DTYPE), Mistake("other", _OTHER))

COMBINE_MISTAKES = (
    Mistake("sum", "These are sums over ranks: divide by the number of ranks.", _combine(_SUM_LOOP)),
    Mistake(
        "divided_twice",
        "The mean was divided by the number of ranks once more: divide before the all_reduce or after it,"
        " not both.",
        _combine(
            "world_size = dist.get_world_size()\n"
            + (_EACH + "    gradient /= world_size\n" + _REDUCE + "    gradient /= world_size")
        ),
    ),
    Mistake("never_combined", _NEVER_COMBINED, _combine("return gradients")),
    Mistake(
        "not_in_place",
        _NOT_IN_PLACE,
        _combine(
            "means = [gradient / dist.get_world_size() for gradient in gradients]\n"
            "for mean in means:\n    dist.all_reduce(mean)\n"
            "return means"
        ),
    ),
    Mistake(
        "only_some_ranks",
        _ONLY_SOME_RANKS,
        _combine(
            _EACH + "    dist.reduce(gradient, dst=0)\n"
            "    if dist.get_rank() == 0:\n        gradient /= dist.get_world_size()"
        ),
    ),
    Mistake(
        "only_some_tensors",
        _ONLY_SOME_TENSORS,
        _combine("dist.all_reduce(gradients[0])\ngradients[0] /= dist.get_world_size()"),
    ),
    Mistake("copy_of_rank_0", _COPY_OF_RANK_0, _combine(_BROADCAST)),
    Mistake(
        "nan",
        "There is a nan where every rank had numbers.",
        _combine(_SUM_LOOP + "    gradient *= float('inf')\n    gradient -= gradient"),
    ),
    Mistake("wrong_shape", _WRONG_SHAPE, _combine(_FLATTEN)),
    Mistake("wrong_type", _WRONG_TYPE, _combine(_EQUAL_TO_ALL)),
    Mistake("hang", HANG, _combine("if dist.get_rank() == 0:\n    return\n" + _SUM_LOOP)),
    *_KIND_MISTAKES,
)

_ZERO = "if num_terms == 0:\n    for gradient in gradients:\n        gradient.zero_()\n"
_TOTAL = "total = torch.tensor(float(num_terms))\ndist.all_reduce(total)\n"
_WEIGH = "    gradient *= num_terms / total.item()\n"

WEIGHTED_MISTAKES = (
    Mistake(
        "mean_of_means",
        "This is the mean of the ranks' means: every rank counts alike, so a term on a rank with few terms"
        " counts for more. Weigh each rank by its number of terms.",
        _weighted(_ZERO + _SUM_LOOP + "    gradient /= dist.get_world_size()"),
    ),
    Mistake(
        "by_rows",
        "These weights are the rows. Padding and ignored labels are rows, but no terms of the loss: weigh by"
        " num_terms.",
        _weighted(
            _ZERO
            + _TOTAL.replace("num_terms", "num_rows")
            + _EACH
            + _WEIGH.replace("num_terms", "num_rows")
            + _REDUCE
        ),
    ),
    Mistake(
        "not_divided",
        "This is the sum over all terms: divide by the number of terms on all ranks together.",
        _weighted(_ZERO + _EACH + "    gradient *= num_terms\n" + _REDUCE),
    ),
    Mistake(
        "divided_by_ranks",
        "Weighted by terms, but divided by the number of ranks: divide by the number of terms on all ranks"
        " together.",
        _weighted(_ZERO + _EACH + "    gradient *= num_terms / dist.get_world_size()\n" + _REDUCE),
    ),
    Mistake(
        "sum",
        "These are sums of the ranks' means: weigh each rank by its share of the terms.",
        _weighted(_ZERO + _SUM_LOOP),
    ),
    Mistake(
        "divided_twice",
        "The weighted mean was divided by the number of ranks once more: the shares add up to 1 already.",
        _weighted(_ZERO + _TOTAL + _EACH + _WEIGH + _REDUCE + "    gradient /= dist.get_world_size()"),
    ),
    Mistake(
        "nan",
        "The rank without terms spoils the result: a mean over nothing is nan, and 0 * nan is nan. Leave its"
        " gradient out, but let it take part in every collective.",
        _weighted(_TOTAL + _EACH + _WEIGH + _REDUCE),
    ),
    Mistake("never_combined", _NEVER_COMBINED, _weighted("return gradients")),
    Mistake(
        "not_in_place",
        _NOT_IN_PLACE,
        _weighted(
            _TOTAL
            + "parts = [torch.nan_to_num(gradient) * num_terms / total.item() for gradient in gradients]\n"
            + "for part in parts:\n    dist.all_reduce(part)\nreturn parts"
        ),
    ),
    Mistake(
        "only_some_ranks",
        _ONLY_SOME_RANKS,
        _weighted(
            _TOTAL
            + _EACH
            + "    part = torch.nan_to_num(gradient) * (num_terms / total.item())\n"
            + "    dist.reduce(part, dst=0)\n"
            + "    if dist.get_rank() == 0:\n        gradient.copy_(part)"
        ),
    ),
    Mistake(
        "only_some_tensors",
        _ONLY_SOME_TENSORS,
        _weighted(_TOTAL + "for gradient in gradients[:1]:\n" + _WEIGH + _REDUCE),
    ),
    Mistake("copy_of_rank_0", _COPY_OF_RANK_0, _weighted(_BROADCAST)),
    Mistake("wrong_shape", _WRONG_SHAPE, _weighted(_FLATTEN)),
    Mistake("wrong_type", _WRONG_TYPE, _weighted(_EQUAL_TO_ALL)),
    Mistake("hang", HANG, _weighted("if num_terms == 0:\n    return\n" + _TOTAL + _EACH + _WEIGH + _REDUCE)),
    *_KIND_MISTAKES,
)
