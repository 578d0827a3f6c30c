"""Lab 03, first two questions: classes of mistakes, and what each is told."""

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

START_MISTAKES = (
    Mistake("forbidden", FORBIDDEN),
    Mistake(
        "hang",
        "The ranks wait for each other. A collective is called by every rank, also by the one that sends: no"
        " `if rank == 0` around it.",
    ),
    Mistake(
        "never_sent",
        "Each rank still has its own numbers. Averaged gradients keep copies equal only if they were equal at"
        " the start.",
    ),
    Mistake(
        "not_in_place",
        "The model shows the right numbers, in new parameters. Overwrite the tensors that are there: an"
        " optimizer, a hook or a tied layer holds on to them.",
    ),
    Mistake(
        "from_another_rank",
        "All ranks agree, on another rank's numbers: rank 0 is the source.",
    ),
    Mistake(
        "rank_0_changed",
        "Rank 0's own numbers have changed: nothing is added or averaged here, they are only copied.",
    ),
    Mistake(
        "buffers_left",
        "Parameters are right, and buffers are not: a batch norm's running statistics belong to the model"
        " too, see model.buffers().",
    ),
    Mistake(
        "frozen_left",
        "A frozen parameter still differs from rank to rank. It gets no gradient, and takes part in forward"
        " all the same.",
    ),
    Mistake(
        "only_some_ranks",
        "Some ranks have rank 0's numbers, and others keep their own.",
    ),
    Mistake(
        "wrong_dtype",
        "The dtype of a tensor changed: copy the numbers as they are.",
    ),
    Mistake(
        "wrong_shape",
        "The shape of a tensor changed: copy into the one that is there.",
    ),
    Mistake("other", OTHER),
)


_UNUSED = (
    "Everybody waits. One rank did not use a layer, has no gradient of it, and made fewer all-reduces than"
    " the others: let it give zeros, so that all ranks make the same calls."
)
_MIXED_UP = (
    "Where one rank left a layer out, unlike things were added up: an all-reduce adds whatever the ranks"
    " bring to it, so each must bring the same parameters, in the same order, with zeros where it has none."
)
_SOME_TENSORS = "Some gradients are means, and others are not: go through all of model.parameters()."

AVERAGE_MISTAKES = (
    Mistake("forbidden", FORBIDDEN),
    Mistake(
        "unused",
        _UNUSED,
    ),
    Mistake("hang", HANG),
    Mistake(
        "never_combined",
        "Each rank holds its own gradient, or a multiple of it: nothing of the others came in.",
    ),
    Mistake("sum", SUMMED),
    Mistake("divided_twice", TWICE),
    Mistake("copy_of_rank_0", COPY),
    Mistake(
        "only_some_ranks",
        SOME_RANKS,
    ),
    Mistake("only_some_tensors", _SOME_TENSORS),
    Mistake(
        "mixed_up",
        _MIXED_UP,
    ),
    Mistake(
        "frozen_gradient",
        FROZEN,
    ),
    Mistake("changed_parameters", PARAMETERS),
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
