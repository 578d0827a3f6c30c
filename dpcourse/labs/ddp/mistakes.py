"""Lab 03, first two questions: classes of mistakes, and a wrong answer of each class."""

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

# --- same_start ---

_START = """def same_start(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
"""


def start(old: str = "", new: str = "") -> str:
    """An answer to the first question, with something in it replaced."""
    assert old in _START
    return IMPORTS + (_START.replace(old, new) if old else _START)


START_MISTAKES = (
    Mistake("forbidden", FORBIDDEN, start("dist.broadcast(tensor.detach(), src=0)", "dist.barrier()")),
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
        IMPORTS + "def same_start(model):\n"
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
    Mistake("other", OTHER, start("src=0)", "src=0)\n        dist.get_rank() and tensor.data.neg_()")),
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
    return IMPORTS + (_AVERAGE.replace(old, new) if old else _AVERAGE)


_UNUSED = (
    "Everybody waits. One rank did not use a layer, has no gradient of it, and made fewer all-reduces than"
    " the others: let it give zeros, so that all ranks make the same calls."
)
_MIXED_UP = (
    "Where one rank left a layer out, unlike things were added up: an all-reduce adds whatever the ranks"
    " bring to it, so each must bring the same parameters, in the same order, with zeros where it has none."
)
_SOME_TENSORS = "Some gradients are means, and others are not: go through all of model.parameters()."
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
    Mistake("forbidden", FORBIDDEN, average(_SUM, "dist.reduce(parameter.grad, 0)")),
    Mistake(
        "unused",
        _UNUSED,
        average(
            "            if parameter.grad is None:\n"
            "                parameter.grad = torch.zeros_like(parameter)\n",
            "            if parameter.grad is None:\n                continue\n",
        ),
    ),
    Mistake("hang", HANG, average(_SUM, "dist.get_rank() or " + _SUM)),
    Mistake(
        "never_combined",
        "Each rank holds its own gradient, or a multiple of it: nothing of the others came in.",
        average(_SUM, "pass"),
    ),
    Mistake("sum", SUMMED, average(_DIVIDE, "")),
    Mistake("divided_twice", TWICE, average(_DIVIDE, _DIVIDE * 2)),
    Mistake("copy_of_rank_0", COPY, average(_SUM, "dist.broadcast(parameter.grad, 0)").replace(_DIVIDE, "")),
    Mistake(
        "only_some_ranks",
        SOME_RANKS,
        average(_DIVIDE, "    " + _DIVIDE).replace(_SUM, _SUM + "\n            if dist.get_rank() == 0:"),
    ),
    Mistake(
        "only_some_tensors", _SOME_TENSORS, average("model.parameters()", "list(model.parameters())[:3]")
    ),
    Mistake(
        "mixed_up",
        _MIXED_UP,
        IMPORTS
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
        FROZEN,
        average("if parameter.requires_grad:", "if True:"),
    ),
    Mistake("changed_parameters", PARAMETERS, average(_SUM, _SUM + "; dist.all_reduce(parameter.data)")),
    Mistake("different_bits", BITS, average(_SUM + "\n" + _DIVIDE, _DIRECTLY)),
    Mistake("no_gradient", NO_GRADIENT, average(_DIVIDE, _DIVIDE + "            parameter.grad = None\n")),
    Mistake(
        "wrong_type",
        "A gradient is no plain torch.Tensor any more.",
        average(_DIVIDE, _DIVIDE + "            parameter.grad = torch.nn.Parameter(parameter.grad)\n"),
    ),
    Mistake("wrong_dtype", WRONG_DTYPE),
    Mistake("wrong_shape", WRONG_SHAPE),
    Mistake("nan", NAN, average(_DIVIDE, _DIVIDE + "            parameter.grad *= float('nan')\n")),
    Mistake("other", OTHER, average(_DIVIDE, _DIVIDE + "            parameter.grad *= 3\n")),
)
