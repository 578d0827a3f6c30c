"""Lab 03, third question: classes of mistakes, and a wrong answer of each class."""

from dpcourse.labs.ddp.words import (
    BITS,
    COPY,
    FORBIDDEN,
    FROZEN,
    HANG,
    IMPORTS,
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

_BUCKETS = """def average_in_buckets(model, cap_bytes):
    buckets = [[]]
    for parameter in reversed(list(model.parameters())):
        if parameter.requires_grad:
            if sum(p.nbytes for p in buckets[-1]) >= cap_bytes:
                buckets.append([])
            buckets[-1].append(parameter)
    ready, under_way = set(), []

    def gradient(parameter):
        return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad

    def start():
        row = torch.cat([gradient(p).flatten() for p in buckets[len(under_way)]])
        under_way.append((row, dist.all_reduce(row, async_op=True)))

    def arrived(parameter):
        ready.add(parameter)
        while len(under_way) < len(buckets) and ready.issuperset(buckets[len(under_way)]):
            start()

    def finish():
        while len(under_way) < len(buckets):
            start()
        for bucket, (row, work) in zip(buckets, under_way):
            work.wait()
            row /= dist.get_world_size()
            for parameter, part in zip(bucket, row.split([p.numel() for p in bucket])):
                parameter.grad = part.view_as(parameter)
        ready.clear()
        under_way.clear()

    for bucket in buckets:
        for parameter in bucket:
            parameter.register_post_accumulate_grad_hook(arrived)
    return finish
"""
_START_IT = "under_way.append((row, dist.all_reduce(row, async_op=True)))"
_WAIT = "            work.wait()\n"
_DIVIDE_ROW = "            row /= dist.get_world_size()\n"
_FULL = "            if sum(p.nbytes for p in buckets[-1]) >= cap_bytes:\n"
_LOOP = "        while len(under_way) < len(buckets) and ready.issuperset(buckets[len(under_way)]):\n"
_SET = "                parameter.grad = part.view_as(parameter)\n"


def buckets(old: str = "", new: str = "") -> str:
    """An answer to the third question, with something in it replaced."""
    assert old in _BUCKETS
    return IMPORTS + (_BUCKETS.replace(old, new) if old else _BUCKETS)


BUCKETS_MISTAKES = (
    Mistake("forbidden", FORBIDDEN, buckets(_START_IT, "dist.reduce(row, 0)")),
    Mistake(
        "waits",
        "Everybody waits. Rank 0 stands in its backward pass, in a hook, until a bucket has come back; so"
        " nothing is hidden. A hook only starts (async_op=True); waiting is for finish().",
        buckets(
            _START_IT,
            "under_way.append((row, dist.all_reduce(row, async_op=True)))\n        under_way[-1][1].wait()",
        ),
    ),
    Mistake(
        "unused",
        "Everybody waits. One rank did not use a layer, so that a bucket of it never filled, and it was never"
        " sent: finish() has to start what is left, with zeros where there is no gradient.",
        buckets("        while len(under_way) < len(buckets):\n            start()\n", ""),
    ),
    Mistake(
        "hang",
        HANG,
        buckets(
            _WAIT,
            "            dist.get_rank() and work.wait()\n            dist.get_rank() or dist.recv(row, 1)\n",
        ),
    ),
    Mistake(
        "no_finish",
        "Return the function that the training loop calls after backward: itself, not what it gives.",
        buckets("    return finish", "    return finish()"),
    ),
    Mistake(
        "not_waited",
        "finish() came back before the others had even begun their all-reduces: wait for each one before its"
        " row is read.",
        buckets(_WAIT, ""),
    ),
    Mistake(
        "never_combined",
        "Each rank holds its own gradient, or a multiple of it: what came back never got into the gradients.",
        buckets(_SET, "                pass\n"),
    ),
    Mistake("sum", SUMMED, buckets(_DIVIDE_ROW, "")),
    Mistake("divided_twice", TWICE, buckets(_DIVIDE_ROW, _DIVIDE_ROW * 2)),
    Mistake(
        "copy_of_rank_0",
        COPY,
        buckets(_DIVIDE_ROW, "").replace(
            "gradient(p).flatten()", "gradient(p).flatten() * (dist.get_rank() == 0)"
        ),
    ),
    Mistake(
        "only_some_ranks", SOME_RANKS, buckets(_SET, "                if dist.get_rank() == 0:\n    " + _SET)
    ),
    Mistake(
        "only_some_tensors",
        "Some gradients are means, and others are not: look at the first and the last bucket, and at the last"
        " parameter of each.",
        buckets("zip(buckets, under_way)", "zip(buckets[:-1], under_way)"),
    ),
    Mistake(
        "mixed_up",
        "Where one rank left a layer out, its buckets left in another order than the others': a full bucket"
        " has to wait for those before it, on every rank.",
        buckets(
            _LOOP + "            start()\n",
            """        for bucket in buckets:
            if any(p is parameter for p in bucket) and ready.issuperset(bucket):
                start(bucket)
""",
        )
        .replace("def start():", "def start(bucket):")
        .replace("for p in buckets[len(under_way)]])", "for p in bucket])")
        .replace("under_way.append((", "under_way.append((bucket, ")
        .replace(
            "        while len(under_way) < len(buckets):\n            start()\n",
            "        begun = [id(bucket) for bucket, _, _ in under_way]\n"
            "        for bucket in buckets:\n            if id(bucket) not in begun:\n"
            "                start(bucket)\n",
        )
        .replace(
            "for bucket, (row, work) in zip(buckets, under_way):", "for bucket, row, work in under_way:"
        ),
    ),
    Mistake(
        "only_first_step",
        "The first step is right, and a later one is not: what the hooks keep has to be emptied when a step"
        " is finished.",
        buckets("        ready.clear()\n", ""),
    ),
    Mistake(
        "tied_twice",
        "A tied weight was sent twice. It is one parameter in two places: model.parameters() gives it once,"
        " and its hook is called once, when both places have added to it.",
        buckets(
            "reversed(list(model.parameters()))",
            "reversed([p for _, p in model.named_parameters(remove_duplicate=False)])",
        ),
    ),
    Mistake(
        "one_per_parameter",
        "The means are right, with an all-reduce for every parameter: that is the naive way, early. Collect"
        " until a bucket has cap_bytes.",
        buckets(_FULL, "            if buckets[-1]:\n"),
    ),
    Mistake(
        "one_bucket",
        "The means are right, and all gradients travelled in one bucket: it cannot leave before the last of"
        " them is there. Close a bucket once it has cap_bytes.",
        buckets(_FULL, "            if False:\n"),
    ),
    Mistake(
        "wrong_buckets",
        "The means are right, and the buckets are not those that were asked for: last parameters first, and a"
        " bucket closes once it has cap_bytes or more.",
        buckets("reversed(list(model.parameters()))", "list(model.parameters())"),
    ),
    Mistake(
        "too_many_bytes",
        "The means and the buckets are right, and a rank sent more than its all-reduces need.",
        buckets(
            "            work.wait()\n",
            """            work.wait()
            sending = dist.isend(row, (dist.get_rank() + 1) % dist.get_world_size())
            dist.recv(row.clone(), (dist.get_rank() - 1) % dist.get_world_size())
            sending.wait()
""",
        ),
    ),
    Mistake(
        "no_messages",
        "The gradients are means, and there was no all-reduce: the task is to send buckets.",
    ),
    Mistake(
        "no_overlap",
        "All is right but the time: the first bucket left when the last gradient was there, so nothing is"
        " hidden. Start a bucket in the hook that fills it.",
        buckets(_LOOP + "            start()\n", ""),
    ),
    Mistake(
        "late",
        "All is right, and a bucket stood full while backward went on to the next layer: start it in the hook"
        " that fills it.",
        buckets(
            "ready.issuperset(buckets[len(under_way)])",
            "ready.issuperset(sum(buckets[:len(under_way) + 2], []))",
        ),
    ),
    Mistake(
        "frozen_gradient",
        FROZEN,
        buckets(
            "    return finish",
            """    def finish_all():
        finish()
        for parameter in model.parameters():
            parameter.grad = gradient(parameter)

    return finish_all""",
        ),
    ),
    Mistake(
        "changed_parameters",
        PARAMETERS,
        buckets(_SET, _SET + "                parameter.data -= parameter.grad\n"),
    ),
    Mistake("different_bits", BITS),
    Mistake("no_gradient", NO_GRADIENT, buckets(_SET, "                parameter.grad = None\n")),
    Mistake(
        "wrong_type",
        "A gradient is no plain torch.Tensor any more.",
        buckets("part.view_as(parameter)", "torch.nn.Parameter(part.view_as(parameter))"),
    ),
    Mistake("wrong_dtype", WRONG_DTYPE),
    Mistake("wrong_shape", WRONG_SHAPE),
    Mistake("nan", NAN, buckets(_DIVIDE_ROW, _DIVIDE_ROW + "            row *= float('nan')\n")),
    Mistake("other", OTHER, buckets(_DIVIDE_ROW, _DIVIDE_ROW + "            row *= 3\n")),
)
