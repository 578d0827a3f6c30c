"""Lab 04: classes of mistakes, and what each is told."""

from dpcourse.labs.question import Mistake

_NO_LIBRARY = (
    "The task rules this collective out. A ring is made of send and receive: that is the whole exercise, and"
    " the check sees every call."
)
_HANG = (
    "Everybody waits for everybody. When all ranks send first and receive afterwards, nobody is there to"
    " receive: start the one (isend), do the other, then wait for the first."
)
_TOO_MANY_BYTES = (
    "The numbers are right, and a rank sends more than a ring does: pass one piece on at each step, not whole"
    " tensors."
)
_NOT_NEIGHBOURS = (
    "The numbers and the bytes are right, and a rank speaks to several others. In a ring it sends to its "
    "right neighbour only, and hears from its left one."
)
_TOO_MANY_MESSAGES = (
    "The bytes are right, and come in more messages than steps: each costs a latency. Send a piece as "
    "one tensor."
)
_NOT_WAITED = (
    "All is right but one thing: a message was started and never waited for. Until `work.wait()` has "
    "returned the tensor is not yours to change or to let go of, and here it only happened to go well."
)
_NO_MESSAGES = (
    "The ranks did not send each other anything: what they hold cannot come from the ring that was asked for."
)
_OTHER = "The values are off, in a way that fits none of the usual mistakes."
_WRONG_TYPE = "Return a plain torch.Tensor: nothing wrapped around it, no list, no array, no subclass."
_WRONG_DTYPE = "The dtype changed: keep that of the tensor you were given, on the way too."

REDUCE_SCATTER_MISTAKES = (
    Mistake(
        "forbidden",
        _NO_LIBRARY,
    ),
    Mistake(
        "hang",
        _HANG,
    ),
    Mistake(
        "not_summed",
        "Each rank holds its own piece of its own tensor: nobody's numbers have been added to it.",
    ),
    Mistake(
        "whole_sum",
        "Each rank holds the whole sum. A reduce-scatter leaves a rank with its own piece of it, and costs "
        "half as much.",
    ),
    Mistake(
        "wrong_piece",
        "Each rank holds a piece of the sum, complete, but not its own: rank k is to end with piece k. A "
        "piece is complete where its way ends, so piece k must set out from rank k + 1.",
    ),
    Mistake(
        "mean",
        "These are means. A reduce-scatter adds up; who wants the mean divides by the number of ranks "
        "afterwards.",
    ),
    Mistake(
        "own_lost",
        "Each rank's own numbers are missing from its piece: add them before the piece is handed back, too.",
    ),
    Mistake(
        "own_twice",
        "Each rank's own numbers are in its piece twice: the piece that sets out is another rank's, and its "
        "own comes last.",
    ),
    Mistake(
        "changed_input",
        "The tensor that came in has changed. Add into a copy: a piece that tensor_split gives is a window "
        "on the tensor.",
    ),
    Mistake(
        "too_many_bytes",
        _TOO_MANY_BYTES,
    ),
    Mistake("not_neighbours", _NOT_NEIGHBOURS),
    Mistake(
        "too_many_messages",
        _TOO_MANY_MESSAGES,
    ),
    Mistake("not_waited", _NOT_WAITED),
    Mistake("no_messages", _NO_MESSAGES),
    Mistake("wrong_type", _WRONG_TYPE),
    Mistake("wrong_dtype", _WRONG_DTYPE),
    Mistake(
        "wrong_shape",
        "The piece is not as long as torch.tensor_split makes it: the first pieces have one number more "
        "where the length does not divide.",
    ),
    Mistake("other", _OTHER),
)

ALL_GATHER_MISTAKES = (
    Mistake(
        "forbidden",
        _NO_LIBRARY,
    ),
    Mistake(
        "hang",
        _HANG,
    ),
    Mistake(
        "only_own_piece",
        "Each rank holds its own piece and nothing of the others: nothing has been handed round.",
    ),
    Mistake(
        "some_pieces",
        "Some pieces have arrived and others have not: it takes one step fewer than there are ranks, and at "
        "each step a rank passes on what it has just received.",
    ),
    Mistake(
        "rotated",
        "Every rank has all pieces, in an order that begins with its own: put them in order of rank.",
    ),
    Mistake(
        "too_many_bytes",
        _TOO_MANY_BYTES,
    ),
    Mistake("not_neighbours", _NOT_NEIGHBOURS),
    Mistake(
        "too_many_messages",
        _TOO_MANY_MESSAGES,
    ),
    Mistake("not_waited", _NOT_WAITED),
    Mistake("no_messages", _NO_MESSAGES),
    Mistake("wrong_type", _WRONG_TYPE),
    Mistake("wrong_dtype", _WRONG_DTYPE),
    Mistake(
        "wrong_shape",
        "The whole is not num_elements numbers in one row.",
    ),
    Mistake("other", _OTHER),
)

ALL_REDUCE_MISTAKES = (
    Mistake("forbidden", _NO_LIBRARY),
    Mistake(
        "hang",
        _HANG,
    ),
    Mistake(
        "never_combined",
        "The ranks' tensors hold nothing of one another: the result never got into them.",
    ),
    Mistake(
        "not_in_place",
        "What you return is right, and the tensor is not: overwrite the tensor that came in, also where its"
        " numbers do not lie in a row.",
    ),
    Mistake(
        "mean",
        "These are means: an all-reduce adds up, and who wants the mean divides.",
    ),
    Mistake(
        "only_some_ranks",
        "Only some ranks hold the sum: after the all-gather every rank must write it into its tensor.",
    ),
    Mistake(
        "different_bits",
        "Every rank has the sum, but not with the same bits: each added up in an order of its own. Let each "
        "piece be summed in one place only, and hand out what came out there.",
    ),
    Mistake(
        "too_many_bytes",
        _TOO_MANY_BYTES,
    ),
    Mistake(
        "not_neighbours",
        _NOT_NEIGHBOURS,
    ),
    Mistake(
        "too_many_messages",
        _TOO_MANY_MESSAGES,
    ),
    Mistake("not_waited", _NOT_WAITED),
    Mistake("no_messages", _NO_MESSAGES),
    Mistake(
        "nan",
        "There is a nan where every rank had numbers.",
    ),
    Mistake(
        "copy_of_rank_0",
        "Every rank holds rank 0's tensor: nothing was added to it.",
    ),
    Mistake(
        "wrong_type",
        _WRONG_TYPE,
    ),
    Mistake("wrong_dtype", _WRONG_DTYPE),
    Mistake(
        "wrong_shape",
        "The shape changed: keep the one that came in.",
    ),
    Mistake("other", _OTHER),
)
