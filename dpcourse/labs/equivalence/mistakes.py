"""Lab 01: classes of mistakes, and what each is told."""

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


SHARD_MISTAKES = (
    Mistake(
        "dropped_last",
        "The last rows are on no rank: num_rows // world_size rows each leaves the remainder out.",
    ),
    Mistake(
        "dropped",
        "Some rows are on no rank: they would never be trained on.",
    ),
    Mistake(
        "same_shard",
        "Every rank holds the same rows: the shard must depend on the rank.",
    ),
    Mistake(
        "whole_batch",
        "Every rank holds the whole batch: N ranks would do the work of one, N times.",
    ),
    Mistake(
        "doubled",
        "Some rows are on two ranks: padding to a multiple of world_size gives them twice the weight.",
    ),
    Mistake(
        "uneven",
        "Nothing is lost, but the shards are uneven: give the remainder to several ranks, one row each,"
        " since a step takes as long as the largest shard.",
    ),
    Mistake(
        "altered_rows",
        "A rank holds rows that are not in the batch: a shard is made of whole, unchanged rows.",
    ),
    Mistake("wrong_type", _WRONG_TYPE),
    Mistake("wrong_dtype", _WRONG_DTYPE),
    Mistake("wrong_shape", _WRONG_SHAPE),
)

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
_KIND_MISTAKES = (Mistake("wrong_dtype", _WRONG_DTYPE), Mistake("other", _OTHER))

COMBINE_MISTAKES = (
    Mistake("sum", "These are sums over ranks: divide by the number of ranks."),
    Mistake(
        "divided_twice",
        "The mean was divided by the number of ranks once more: divide before the all_reduce or after it,"
        " not both.",
    ),
    Mistake("never_combined", _NEVER_COMBINED),
    Mistake(
        "not_in_place",
        _NOT_IN_PLACE,
    ),
    Mistake(
        "only_some_ranks",
        _ONLY_SOME_RANKS,
    ),
    Mistake(
        "only_some_tensors",
        _ONLY_SOME_TENSORS,
    ),
    Mistake("copy_of_rank_0", _COPY_OF_RANK_0),
    Mistake(
        "nan",
        "There is a nan where every rank had numbers.",
    ),
    Mistake("wrong_shape", _WRONG_SHAPE),
    Mistake("wrong_type", _WRONG_TYPE),
    Mistake("hang", HANG),
    *_KIND_MISTAKES,
)

WEIGHTED_MISTAKES = (
    Mistake(
        "mean_of_means",
        "This is the mean of the ranks' means: every rank counts alike, so a term on a rank with few terms"
        " counts for more. Weigh each rank by its number of terms.",
    ),
    Mistake(
        "by_rows",
        "These weights are the rows. Padding and ignored labels are rows, but no terms of the loss: weigh by"
        " num_terms.",
    ),
    Mistake(
        "not_divided",
        "This is the sum over all terms: divide by the number of terms on all ranks together.",
    ),
    Mistake(
        "divided_by_ranks",
        "Weighted by terms, but divided by the number of ranks: divide by the number of terms on all ranks"
        " together.",
    ),
    Mistake(
        "sum",
        "These are sums of the ranks' means: weigh each rank by its share of the terms.",
    ),
    Mistake(
        "divided_twice",
        "The weighted mean was divided by the number of ranks once more: the shares add up to 1 already.",
    ),
    Mistake(
        "nan",
        "The rank without terms spoils the result: a mean over nothing is nan, and 0 * nan is nan. Leave its"
        " gradient out, but let it take part in every collective.",
    ),
    Mistake("never_combined", _NEVER_COMBINED),
    Mistake(
        "not_in_place",
        _NOT_IN_PLACE,
    ),
    Mistake(
        "only_some_ranks",
        _ONLY_SOME_RANKS,
    ),
    Mistake(
        "only_some_tensors",
        _ONLY_SOME_TENSORS,
    ),
    Mistake("copy_of_rank_0", _COPY_OF_RANK_0),
    Mistake("wrong_shape", _WRONG_SHAPE),
    Mistake("wrong_type", _WRONG_TYPE),
    Mistake("hang", HANG),
    *_KIND_MISTAKES,
)
