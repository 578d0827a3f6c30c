"""Lab 05, second question: classes of mistakes, and what each is told."""

from dpcourse.labs.question import Mistake

GRADIENT_MISTAKES = (
    Mistake(
        "keeps_gradient",
        "After your call the whole gradient is still in `.grad`: that is stage 1. Set it to None as soon as"
        " its slice has come; the next backward pass would add to it, too.",
    ),
    Mistake(
        "holds_more",
        "The slices are right, and more than slices is held. A slice that is a view of a whole keeps the"
        " whole, and so does every list or closure that has one: keep a copy (`.clone()`) of the slice.",
    ),
    Mistake(
        "all_reduced",
        "All is right but the bytes: an all-reduce brings every rank the whole mean gradient, to keep a slice"
        " of it. A reduce-scatter is the half of it that is needed.",
    ),
    Mistake(
        "too_many_bytes",
        "All is right but the bytes: a rank sends more than a reduce-scatter in the gradient's own dtype.",
    ),
    Mistake(
        "whole",
        "The whole gradient is kept, on every rank. `slices[parameter]` is to hold this rank's slice only.",
    ),
    Mistake(
        "nothing_kept",
        "For a parameter there is nothing in `slices`: put this rank's slice there, under the parameter.",
    ),
    Mistake(
        "sum",
        "These are slices of the sum over the ranks. Divide by their number.",
    ),
    Mistake(
        "divided_twice",
        "The slices are too small by the number of ranks: they were divided twice. ReduceOp.AVG divides too.",
    ),
    Mistake(
        "not_reduced",
        "Each rank keeps a slice of its own gradient: the other ranks' have not been added.",
    ),
    Mistake(
        "overwrites",
        "The slices are those of the last backward pass. Between two steps slices add up, as `.grad` does.",
    ),
    Mistake(
        "added_up",
        "The first pass counts twice: the gradient that was reduced was still there when the second pass"
        " added to it.",
    ),
    Mistake(
        "slice_of_rank_0",
        "Every rank keeps the same slice, the first: rank r keeps slice r.",
    ),
    Mistake(
        "wrong_shape",
        "A slice has the wrong length. Every rank keeps equally many numbers, in one flat row: pad the"
        " gradient with zeros until it divides, and then cut it.",
    ),
    Mistake(
        "wrong_dtype",
        "A slice has another dtype than its gradient: one of the gradients here is fp64.",
    ),
    Mistake(
        "wrong_type",
        "Keep a plain torch.Tensor for each parameter.",
    ),
    Mistake(
        "hang",
        "Ranks wait for each other: every rank has to take part in every reduction, in the order in which"
        " backward finds the gradients.",
    ),
    Mistake(
        "other",
        "The slices are not those of the mean gradient, in a way that fits none of the usual mistakes.",
    ),
)
