"""Lab 05: classes of mistakes, and what each is told."""

from dpcourse.labs.question import Mistake

OPTIMIZER_MISTAKES = (
    Mistake(
        "unsharded",
        "The numbers are right, and every rank holds masters and both of Adam's means for all of them: this"
        " is DDP. Build AdamW over this rank's slice alone, so that it never makes states for the others'.",
    ),
    Mistake(
        "masters_whole",
        "Adam's two means are in slices, the fp32 masters are not: 8 of 12 bytes are shared out. A slice that"
        " is a view keeps the whole that it was cut from: cut first, then make fp32 of it."
        " (On two ranks an fp32 gradient of the slice takes as much: is one left in `.grad`?)",
    ),
    Mistake(
        "moments_whole",
        "The masters are in slices, and Adam's two means are there for all numbers, 8 bytes for each: make"
        " them as long as the slice.",
    ),
    Mistake(
        "holds_more",
        "More bytes stay after a step than a slice's masters and means: a row that gradients or parameters"
        " were gathered in, or a gradient. Let go of it at the end of the step.",
    ),
    Mistake(
        "holds_less",
        "Fewer bytes are held in tensors than AdamW needs for a slice, and yet the numbers are right: the"
        " states live somewhere else. Keep them in tensors, where they can be counted.",
    ),
    Mistake(
        "hidden",
        "The tensors are as small as they should be, and the process has grown by far more: something is kept"
        " outside of tensors, or beside them.",
    ),
    Mistake(
        "all_reduced",
        "All is right but the bytes: after an all-reduce every rank has the whole mean gradient, and uses a"
        " slice of it. A reduce-scatter gives it that slice for half the bytes.",
    ),
    Mistake(
        "too_many_bytes",
        "All is right but the bytes. Gradients and parameters travel in bf16, two bytes a number, and once"
        " round the ring each: make fp32 of them after they have come.",
    ),
    Mistake(
        "no_gather",
        "Each rank has its own slice right, and the others' as they were: hand the new slices round with an"
        " all-gather, or the ranks train different models.",
    ),
    Mistake(
        "ranks_differ",
        "The ranks hold different parameters. Every rank has to end the step with the same ones, bit by bit:"
        " what one rank rounds, all have to take from it.",
    ),
    Mistake(
        "sum",
        "AdamW was given the sum of the ranks' gradients: divide by their number. With a small eps Adam"
        " hardly shows it; here eps is large.",
    ),
    Mistake(
        "own_gradient",
        "Each slice follows the gradient of the rank that owns it, which has seen its own samples only: every"
        " slice needs the mean over all ranks.",
    ),
    Mistake(
        "forgets",
        "Each step is AdamW's first: the states are made anew every time. Build the optimizer once, in"
        " `__init__`.",
    ),
    Mistake(
        "never_moved",
        "Some numbers stay where they were, and all others are right: a slice, or what is left over where the"
        " length does not divide, is nobody's. Pad the row with zeros before you cut it.",
    ),
    Mistake(
        "lost_steps",
        "Large numbers stand still and small ones move: the steps are added in bf16, where a thousandth is"
        " lost beside one. AdamW has to work on an fp32 copy of the slice.",
    ),
    Mistake(
        "not_in_place",
        "The parameters are as they were. Write the new numbers into the tensors you were given:"
        " `parameter.copy_(...)`, under `torch.no_grad()`.",
    ),
    Mistake(
        "frozen_moved",
        "A parameter with `requires_grad=False` has moved: it has no gradient, and no states either."
        " Leave it out of the row.",
    ),
    Mistake(
        "hang",
        "Ranks wait for each other: all have to call the same collectives in the same order, whether or not"
        " there is something in their slice.",
    ),
    Mistake(
        "other",
        "The parameters are not those of AdamW, in a way that fits none of the usual mistakes.",
    ),
    Mistake(
        "wrong_dtype",
        "The parameters came as bf16 and have to stay that: only the masters are fp32.",
    ),
    Mistake(
        "wrong_shape",
        "A parameter has another shape than before: bring its part of the row into the"
        " parameter's own shape.",
    ),
)
