"""Lab 02: classes of mistakes, and what each is told."""

from dpcourse.labs.question import Mistake

STAR_STEP_MISTAKES = (
    Mistake(
        "forbidden",
        "The task rules this collective out: the step is made of send and receive, one rank at a time.",
    ),
    Mistake(
        "hang",
        "Everybody waits for everybody. For each message that one rank sends another one must receive just"
        " that, in the same order.",
    ),
    Mistake(
        "in_turns",
        "Everybody waits, for some workers compute while others have nothing to compute with yet. Hand out"
        " rows and weights to all of them first, then collect: otherwise the cards work one after another.",
    ),
    Mistake(
        "never_updated",
        "The main rank's weights are still those of the beginning: nobody made the step.",
    ),
    Mistake(
        "not_in_place",
        "The weights that you return are right, and the tensor that came in is not: change it in place.",
    ),
    Mistake(
        "workers_never_updated",
        "The first step is right. In the second the workers still compute with the weights that they began"
        " with: the main rank's new ones have to go out in every step.",
    ),
    Mistake(
        "own_lost",
        "The main rank's own gradient is missing from the sum: it computes a share of the batch like all.",
    ),
    Mistake(
        "only_own",
        "The weights moved by the main rank's gradient alone: what the workers sent was not added.",
    ),
    Mistake(
        "mean_of_means",
        "This is the plain mean of the ranks' gradients. Shares differ by a row, so each gradient, a mean"
        " over its own rows, counts in proportion to them.",
    ),
    Mistake(
        "sum",
        "These are gradients added up as they are. Each is a mean over its own rows, so their sum is several"
        " times the gradient of the batch.",
    ),
    Mistake(
        "not_divided",
        "Each gradient was multiplied by its number of rows, and the sum was not divided by all rows.",
    ),
    Mistake(
        "divided_by_ranks",
        "Each gradient was multiplied by its number of rows, and the sum divided by the ranks: divide by the"
        " rows of the whole batch.",
    ),
    Mistake(
        "uphill",
        "The step goes uphill: weights move against the gradient.",
    ),
    Mistake(
        "rows_lost",
        "Some rows of the batch were computed by nobody: where it does not divide, the first ranks have one"
        " row more, as torch.tensor_split cuts.",
    ),
    Mistake(
        "idle_workers",
        "The main rank computed, and workers did not: each rank computes the gradient of its own rows.",
    ),
    Mistake(
        "whole_batch",
        "The weights are right, and a rank computed more rows than its share: then nothing is gained.",
    ),
    Mistake(
        "not_through_main",
        "The weights are right, and a worker spoke to another one: in a star all talk to the main rank only.",
    ),
    Mistake(
        "too_many_bytes",
        "The weights are right, and more was sent than a step needs: each worker needs its own rows and one"
        " copy of the weights, and gives one gradient back.",
    ),
    Mistake(
        "not_waited",
        "All is right but one thing: a message was started and never waited for. Until `work.wait()` has"
        " returned, the tensor is not yours to change.",
    ),
    Mistake(
        "nan",
        "There is a nan in the weights: a tensor was used before anything was received in it?",
    ),
    Mistake(
        "wrong_type",
        "The weights are no plain torch.Tensor any more.",
    ),
    Mistake("wrong_dtype", "The dtype of the weights changed: keep the one that came in."),
    Mistake("wrong_shape", "The shape of the weights changed: keep the one that came in."),
    Mistake(
        "other",
        "The weights are off, in a way that fits none of the usual mistakes.",
    ),
)
