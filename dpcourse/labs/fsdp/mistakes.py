"""Lab 06: classes of mistakes in a unit, and what each is told."""

from dpcourse.labs.question import Mistake

UNIT_MISTAKES = (
    Mistake(
        "not_gathered",
        "A layer is to compute, and `self.whole` is not there, and nothing was sent to bring it together:"
        " gather it in `before_forward`.",
    ),
    Mistake(
        "frees_before_use",
        "The whole was gathered, and let go of again before the layer had computed with it. Free it in"
        " `after_forward` and `after_backward`, not where it is gathered.",
    ),
    Mistake(
        "not_gathered_again",
        "In backward the whole is missing: forward let go of it, as it should, and so it has to be gathered a"
        " second time, in `before_backward`.",
    ),
    Mistake(
        "gathers_once",
        "The whole is gathered once and kept from forward to backward, as SHARD_GRAD_OP does: at the end of"
        " forward all layers are there. Here a unit is to let go in `after_forward`, and gather again.",
    ),
    Mistake(
        "never_frees",
        "After forward the unit's whole is still there, though it is gathered again later: set"
        " `self.whole` to None, and keep no view of it.",
    ),
    Mistake(
        "not_freed_in_backward",
        "In backward units stay whole after their turn: let go of the whole in `after_backward` too.",
    ),
    Mistake(
        "keeps_the_whole",
        "A unit that has only just been made holds more than its shard. A shard that is a view keeps the"
        " whole row that it was cut from: take a copy, `.clone()`.",
    ),
    Mistake(
        "two_copies",
        "While the layer computes, its whole is there twice: let go of what it was put together from.",
    ),
    Mistake(
        "keeps_gradient",
        "After backward more than the gradient's shard is there: a gradient as long as the unit. A shard that"
        " is a view of an all-reduced row keeps the row.",
    ),
    Mistake(
        "whole_gradient",
        "`self.grad` is the gradient of the whole unit, and the step needs that of the shard: rank r takes"
        " shard r of the mean.",
    ),
    Mistake(
        "no_gradient",
        "After `after_backward` there is no `self.grad`: it has to hold the shard's gradient, as a tensor.",
    ),
    Mistake(
        "wrong_gradient",
        "`self.grad` has another shape than `self.shard`: both are cut in the same way, with the same zeros "
        "at the end.",
    ),
    Mistake(
        "padding",
        "The whole has another length than the unit. Where it does not divide, the row is padded with zeros"
        " to be cut, and what comes together is cut off again at the unit's own length.",
    ),
    Mistake(
        "wrong_shape",
        "A shard has the wrong length: every rank keeps equally many numbers, the unit's length divided by "
        "the ranks and rounded up.",
    ),
    Mistake(
        "sum",
        "The shards moved by the sum of the ranks' gradients: a reduce-scatter adds up, so divide by the"
        " number of ranks.",
    ),
    Mistake(
        "divided_twice",
        "The gradients are too small by the number of ranks: they were divided twice. ReduceOp.AVG divides"
        " too.",
    ),
    Mistake(
        "own_gradient",
        "Every shard follows the gradient of the rank that keeps it, which has seen its own samples only: the"
        " gradients have to be added up over the ranks.",
    ),
    Mistake(
        "stale",
        "The second step computed with the weights of the first: the shards have moved, and what is gathered"
        " has to be `self.shard` as it is now.",
    ),
    Mistake(
        "never_moved",
        "The shards are what they were: `self.grad` is all zeros. It is the gradient that was handed to"
        " `after_backward` that has to be reduced.",
    ),
    Mistake(
        "wrong_shard",
        "Each rank keeps a neighbour's shard: rank r keeps shard r, and the gather joins them in order of"
        " rank.",
    ),
    Mistake(
        "all_reduced",
        "All is right but the bytes: an all-reduce gives every rank the whole mean gradient, to be thrown "
        "away but for a shard. A reduce-scatter is the half of it that is needed.",
    ),
    Mistake(
        "too_many_bytes",
        "All is right but the bytes: more is sent than two gathers and a reduce-scatter.",
    ),
    Mistake(
        "hidden",
        "The numbers are right, and for backward nothing was sent: the whole was kept out of sight, or "
        "gathered at another time. It has to be gathered in `before_backward`.",
    ),
    Mistake(
        "hang",
        "Ranks wait for each other: every rank has to take part in every gather and every reduction, also "
        "with a shard of zeros.",
    ),
    Mistake(
        "wrong_dtype",
        "A shard has another dtype than the unit: it was fp32.",
    ),
    Mistake(
        "wrong_type",
        "`self.shard` has to be a plain torch.Tensor, flat.",
    ),
    Mistake(
        "other",
        "The shards are not those of a training on one process, in a way that fits none of the usual "
        "mistakes.",
    ),
)
