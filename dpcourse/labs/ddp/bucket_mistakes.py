"""Lab 03, third question: classes of mistakes, and what each is told."""

from dpcourse.labs.ddp.words import (
    BITS,
    COPY,
    FORBIDDEN,
    FROZEN,
    HANG,
    NAN,
    NO_GRADIENT,
    OTHER,
    PARAMETERS,
    SOME_RANKS,
    SUMMED,
    TWICE,
    WRONG_DTYPE,
    WRONG_SHAPE,
)
from dpcourse.labs.question import Mistake

BUCKETS_MISTAKES = (
    Mistake("forbidden", FORBIDDEN),
    Mistake(
        "waits",
        "Everybody waits. Rank 0 stands in its backward pass, in a hook, until a bucket has come back; so"
        " nothing is hidden. A hook only starts (async_op=True); waiting is for finish().",
    ),
    Mistake(
        "unused",
        "Everybody waits. One rank did not use a layer, so that a bucket of it never filled, and it was never"
        " sent: finish() has to start what is left, with zeros where there is no gradient.",
    ),
    Mistake(
        "hang",
        HANG,
    ),
    Mistake(
        "no_finish",
        "Return the function that the training loop calls after backward: itself, not what it gives.",
    ),
    Mistake(
        "not_waited",
        "finish() came back before the others had even begun their all-reduces: wait for each one before its"
        " row is read.",
    ),
    Mistake(
        "never_combined",
        "Each rank holds its own gradient, or a multiple of it: what came back never got into the gradients.",
    ),
    Mistake("sum", SUMMED),
    Mistake("divided_twice", TWICE),
    Mistake(
        "copy_of_rank_0",
        COPY,
    ),
    Mistake("only_some_ranks", SOME_RANKS),
    Mistake(
        "only_some_tensors",
        "Some gradients are means, and others are not: look at the first and the last bucket, and at the last"
        " parameter of each.",
    ),
    Mistake(
        "mixed_up",
        "Where one rank left a layer out, its buckets left in another order than the others': a full bucket"
        " has to wait for those before it, on every rank.",
    ),
    Mistake(
        "only_first_step",
        "The first step is right, and a later one is not: what the hooks keep has to be emptied when a step"
        " is finished.",
    ),
    Mistake(
        "tied_twice",
        "A tied weight was sent twice. It is one parameter in two places: model.parameters() gives it once,"
        " and its hook is called once, when both places have added to it.",
    ),
    Mistake(
        "one_per_parameter",
        "The means are right, with an all-reduce for every parameter: that is the naive way, early. Collect"
        " until a bucket has cap_bytes.",
    ),
    Mistake(
        "one_bucket",
        "The means are right, and all gradients travelled in one bucket: it cannot leave before the last of"
        " them is there. Close a bucket once it has cap_bytes.",
    ),
    Mistake(
        "wrong_buckets",
        "The means are right, and the buckets are not those that were asked for: last parameters first, and a"
        " bucket closes once it has cap_bytes or more.",
    ),
    Mistake(
        "too_many_bytes",
        "The means and the buckets are right, and a rank sent more than its all-reduces need.",
    ),
    Mistake(
        "no_messages",
        "The gradients are means, and there was no all-reduce: the task is to send buckets.",
    ),
    Mistake(
        "no_overlap",
        "All is right but the time: the first bucket left when the last gradient was there, so nothing is"
        " hidden. Start a bucket in the hook that fills it.",
    ),
    Mistake(
        "late",
        "All is right, and a bucket stood full while backward went on to the next layer: start it in the hook"
        " that fills it.",
    ),
    Mistake(
        "frozen_gradient",
        FROZEN,
    ),
    Mistake(
        "changed_parameters",
        PARAMETERS,
    ),
    Mistake("different_bits", BITS),
    Mistake("no_gradient", NO_GRADIENT),
    Mistake(
        "wrong_type",
        "A gradient is no plain torch.Tensor any more.",
    ),
    Mistake("wrong_dtype", WRONG_DTYPE),
    Mistake("wrong_shape", WRONG_SHAPE),
    Mistake("nan", NAN),
    Mistake("other", OTHER),
)
