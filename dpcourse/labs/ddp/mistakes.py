"""Lab 03: classes of mistakes, what each is told, and a wrong answer that must be told it."""

from dpcourse.labs.question import Mistake

_IMPORTS = "import torch\nimport torch.distributed as dist\n\n\n"
_FORBIDDEN = "The task rules this collective out; it names those that you may call."
_OTHER = "The values are off, in a way that fits none of the usual mistakes."

# --- same_start ---

_START = """def same_start(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
"""


def start(old: str = "", new: str = "") -> str:
    """An answer to the first question, with something in it replaced."""
    assert old in _START
    return _IMPORTS + (_START.replace(old, new) if old else _START)


START_MISTAKES = (
    Mistake("forbidden", _FORBIDDEN, start("dist.broadcast(tensor.detach(), src=0)", "dist.barrier()")),
    Mistake(
        "hang",
        "The ranks wait for each other. A collective is called by every rank, also by the one that sends: no"
        " `if rank == 0` around it.",
        start(
            "        dist.broadcast(tensor.detach(), src=0)",
            "        dist.get_rank() or dist.broadcast(tensor.detach(), src=0)",
        ),
    ),
    Mistake(
        "never_sent",
        "Each rank still has its own numbers. Averaged gradients keep copies equal only if they were equal at"
        " the start.",
        start("dist.broadcast(tensor.detach(), src=0)", "pass"),
    ),
    Mistake(
        "not_in_place",
        "The model shows the right numbers, in new parameters. Overwrite the tensors that are there: an"
        " optimizer, a hook or a tied layer holds on to them.",
        _IMPORTS + "def same_start(model):\n"
        "    for module in model.modules():\n"
        "        for kind in (module._parameters, module._buffers):\n"
        "            for name, tensor in kind.items():\n"
        "                came = tensor.detach().clone()\n"
        "                dist.broadcast(came, src=0)\n"
        "                is_buffer = kind is module._buffers\n"
        "                kind[name] = came if is_buffer else torch.nn.Parameter(came, False)\n",
    ),
    Mistake(
        "from_another_rank",
        "All ranks agree, on another rank's numbers: rank 0 is the source.",
        start("src=0", "src=dist.get_world_size() - 1"),
    ),
    Mistake(
        "rank_0_changed",
        "Rank 0's own numbers have changed: nothing is added or averaged here, they are only copied.",
        start("dist.broadcast(tensor.detach(), src=0)", "dist.all_reduce(tensor.detach())"),
    ),
    Mistake(
        "buffers_left",
        "Parameters are right, and buffers are not: a batch norm's running statistics belong to the model"
        " too, see model.buffers().",
        start("[*model.parameters(), *model.buffers()]", "model.parameters()"),
    ),
    Mistake(
        "frozen_left",
        "A frozen parameter still differs from rank to rank. It gets no gradient, and takes part in forward"
        " all the same.",
        start(
            "[*model.parameters(), *model.buffers()]",
            "[*(p for p in model.parameters() if p.requires_grad), *model.buffers()]",
        ),
    ),
    Mistake(
        "only_some_ranks",
        "Some ranks have rank 0's numbers, and others keep their own.",
        start(
            "dist.broadcast(tensor.detach(), src=0)",
            "came = tensor.detach().clone()\n        dist.broadcast(came, src=0)\n"
            "        dist.get_rank() == 1 or tensor.detach().copy_(came)",
        ).replace("dist.get_rank() == 1", "dist.get_rank() == dist.get_world_size() - 1 > 1"),
    ),
    Mistake(
        "wrong_dtype",
        "The dtype of a tensor changed: copy the numbers as they are.",
        start(
            "dist.broadcast(tensor.detach(), src=0)",
            "dist.broadcast(tensor.detach(), src=0)\n        tensor.data = tensor.data.half()",
        ),
    ),
    Mistake(
        "wrong_shape",
        "The shape of a tensor changed: copy into the one that is there.",
        start(
            "dist.broadcast(tensor.detach(), src=0)",
            "dist.broadcast(tensor.detach(), src=0)\n        tensor.data = tensor.data[None]",
        ),
    ),
    Mistake("other", _OTHER, start("src=0)", "src=0)\n        dist.get_rank() and tensor.data.neg_()")),
)

# --- average_gradients ---

_AVERAGE = """def average_gradients(model):
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
"""
_SUM = "dist.all_reduce(parameter.grad)"
_DIVIDE = "            parameter.grad /= dist.get_world_size()\n"


def average(old: str = "", new: str = "") -> str:
    """An answer to the second question, with something in it replaced."""
    assert old in _AVERAGE
    return _IMPORTS + (_AVERAGE.replace(old, new) if old else _AVERAGE)


_UNUSED = (
    "Everybody waits. One rank did not use a layer, has no gradient of it, and made fewer all-reduces than"
    " the others: let it give zeros, so that all ranks make the same calls."
)
_HANG = (
    "Everybody waits. Every rank must call the same collectives in the same order, and no message of yours"
    " may be left without its other end."
)
_MIXED_UP = (
    "Where one rank left a layer out, unlike things were added up: an all-reduce adds whatever the ranks"
    " bring to it, so each must bring the same parameters, in the same order, with zeros where it has none."
)
_NAN = "There is a nan where every rank had numbers."
_COPY = "Every rank holds rank 0's gradient: nothing was added to it."
_SOME_RANKS = "Some ranks hold the mean, and others do not: write it into the gradients of every rank."
_SOME_TENSORS = "Some gradients are means, and others are not: go through all of model.parameters()."
_SUMMED = "These are sums over the ranks. Each rank's loss is a mean over its own rows: divide by the ranks."
_TWICE = "The division by the number of ranks happened twice."
_FROZEN = (
    "A frozen parameter has a gradient now: an optimizer that decays weights would move it. Leave it None."
)
_PARAMETERS = (
    "A parameter itself has changed. Only gradients are averaged: equal gradients keep equal copies equal."
)
_BITS = (
    "Every rank has the mean, but not with the same bits, and so the copies would drift apart: let an"
    " all-reduce add, which gives every rank the same."
)
_NO_GRADIENT = "A parameter that some rank used has no gradient here: after the call it holds the mean."
_WRONG_DTYPE = "The dtype of a gradient is not its parameter's: a row of numbers has to be of that dtype too."
_WRONG_SHAPE = "The shape of a gradient is not its parameter's: bring each part of a row back into shape."
_DIRECTLY = """rank, size = dist.get_rank(), dist.get_world_size()
            parameter.grad /= size
            mine = parameter.grad.clone()
            sends = [dist.isend(mine, peer) for peer in range(size) if peer != rank]
            for step in range(1, size):
                came = torch.empty_like(mine)
                dist.recv(came, (rank + step) % size)
                parameter.grad += came
            for send in sends:
                send.wait()
"""

AVERAGE_MISTAKES = (
    Mistake("forbidden", _FORBIDDEN, average(_SUM, "dist.reduce(parameter.grad, 0)")),
    Mistake(
        "unused",
        _UNUSED,
        average(
            "            if parameter.grad is None:\n"
            "                parameter.grad = torch.zeros_like(parameter)\n",
            "            if parameter.grad is None:\n                continue\n",
        ),
    ),
    Mistake("hang", _HANG, average(_SUM, "dist.get_rank() or " + _SUM)),
    Mistake(
        "never_combined",
        "Each rank holds its own gradient, or a multiple of it: nothing of the others came in.",
        average(_SUM, "pass"),
    ),
    Mistake("sum", _SUMMED, average(_DIVIDE, "")),
    Mistake("divided_twice", _TWICE, average(_DIVIDE, _DIVIDE * 2)),
    Mistake("copy_of_rank_0", _COPY, average(_SUM, "dist.broadcast(parameter.grad, 0)").replace(_DIVIDE, "")),
    Mistake(
        "only_some_ranks",
        _SOME_RANKS,
        average(_DIVIDE, "    " + _DIVIDE).replace(_SUM, _SUM + "\n            if dist.get_rank() == 0:"),
    ),
    Mistake(
        "only_some_tensors", _SOME_TENSORS, average("model.parameters()", "list(model.parameters())[:3]")
    ),
    Mistake(
        "mixed_up",
        _MIXED_UP,
        _IMPORTS
        + """def average_gradients(model):
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    row = torch.cat([g.flatten() for g in gradients] + [gradients[0].new_zeros(200)])[:200]
    dist.all_reduce(row)
    for gradient in gradients:
        gradient.copy_(row[:gradient.numel()].view_as(gradient) / dist.get_world_size())
        row = row[gradient.numel():]
    for p in model.parameters():
        if p.requires_grad and p.grad is None:
            p.grad = torch.zeros_like(p)
""",
    ),
    Mistake(
        "frozen_gradient",
        _FROZEN,
        average("if parameter.requires_grad:", "if True:"),
    ),
    Mistake("changed_parameters", _PARAMETERS, average(_SUM, _SUM + "; dist.all_reduce(parameter.data)")),
    Mistake("different_bits", _BITS, average(_SUM + "\n" + _DIVIDE, _DIRECTLY)),
    Mistake("no_gradient", _NO_GRADIENT, average(_DIVIDE, _DIVIDE + "            parameter.grad = None\n")),
    Mistake(
        "wrong_type",
        "A gradient is no plain torch.Tensor any more.",
        average(_DIVIDE, _DIVIDE + "            parameter.grad = torch.nn.Parameter(parameter.grad)\n"),
    ),
    Mistake("wrong_dtype", _WRONG_DTYPE),
    Mistake("wrong_shape", _WRONG_SHAPE),
    Mistake("nan", _NAN, average(_DIVIDE, _DIVIDE + "            parameter.grad *= float('nan')\n")),
    Mistake("other", _OTHER, average(_DIVIDE, _DIVIDE + "            parameter.grad *= 3\n")),
)

# --- buckets ---

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
    return _IMPORTS + (_BUCKETS.replace(old, new) if old else _BUCKETS)


BUCKETS_MISTAKES = (
    Mistake("forbidden", _FORBIDDEN, buckets(_START_IT, "dist.reduce(row, 0)")),
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
        _HANG,
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
    Mistake("sum", _SUMMED, buckets(_DIVIDE_ROW, "")),
    Mistake("divided_twice", _TWICE, buckets(_DIVIDE_ROW, _DIVIDE_ROW * 2)),
    Mistake(
        "copy_of_rank_0",
        _COPY,
        buckets(_DIVIDE_ROW, "").replace(
            "gradient(p).flatten()", "gradient(p).flatten() * (dist.get_rank() == 0)"
        ),
    ),
    Mistake(
        "only_some_ranks", _SOME_RANKS, buckets(_SET, "                if dist.get_rank() == 0:\n    " + _SET)
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
        _FROZEN,
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
        _PARAMETERS,
        buckets(_SET, _SET + "                parameter.data -= parameter.grad\n"),
    ),
    Mistake("different_bits", _BITS),
    Mistake("no_gradient", _NO_GRADIENT, buckets(_SET, "                parameter.grad = None\n")),
    Mistake(
        "wrong_type",
        "A gradient is no plain torch.Tensor any more.",
        buckets("part.view_as(parameter)", "torch.nn.Parameter(part.view_as(parameter))"),
    ),
    Mistake("wrong_dtype", _WRONG_DTYPE),
    Mistake("wrong_shape", _WRONG_SHAPE),
    Mistake("nan", _NAN, buckets(_DIVIDE_ROW, _DIVIDE_ROW + "            row *= float('nan')\n")),
    Mistake("other", _OTHER, buckets(_DIVIDE_ROW, _DIVIDE_ROW + "            row *= 3\n")),
)
