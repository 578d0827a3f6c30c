"""Lab 03: what is said about mistakes that can be made in more than one question."""

FORBIDDEN = "The task rules this collective out; it names those that you may call."
OTHER = "The values are off, in a way that fits none of the usual mistakes."
HANG = (
    "Everybody waits. Every rank must call the same collectives in the same order, and no message of yours"
    " may be left without its other end."
)
NAN = "There is a nan where every rank had numbers."
COPY = "Every rank holds rank 0's gradient: nothing was added to it."
SOME_RANKS = "Some ranks hold the mean, and others do not: write it into the gradients of every rank."
SUMMED = "These are sums over the ranks. Each rank's loss is a mean over its own rows: divide by the ranks."
TWICE = "The division by the number of ranks happened twice."
FROZEN = (
    "A frozen parameter has a gradient now: an optimizer that decays weights would move it. Leave it None."
)
PARAMETERS = (
    "A parameter itself has changed. Only gradients are averaged: equal gradients keep equal copies equal."
)
BITS = (
    "Every rank has the mean, but not with the same bits, and so the copies would drift apart: let an"
    " all-reduce add, which gives every rank the same."
)
NO_GRADIENT = "A parameter that some rank used has no gradient here: after the call it holds the mean."
WRONG_DTYPE = "The dtype of a gradient is not its parameter's: a row of numbers has to be of that dtype too."
WRONG_SHAPE = "The shape of a gradient is not its parameter's: bring each part of a row back into shape."
