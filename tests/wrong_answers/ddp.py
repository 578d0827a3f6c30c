"""Lab 03, first two questions: a wrong answer for each mistake."""

IMPORTS = "import torch\nimport torch.distributed as dist\n\n\n"

# --- same_start ---

_START = """def same_start(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)
"""


def start(old: str = "", new: str = "") -> str:
    """An answer to the first question, with something in it replaced."""
    assert old in _START
    return IMPORTS + (_START.replace(old, new) if old else _START)


SAME_START = {
    "forbidden": start("dist.broadcast(tensor.detach(), src=0)", "dist.barrier()"),
    "hang": start(
        "        dist.broadcast(tensor.detach(), src=0)",
        "        dist.get_rank() or dist.broadcast(tensor.detach(), src=0)",
    ),
    "never_sent": start("dist.broadcast(tensor.detach(), src=0)", "pass"),
    "not_in_place": IMPORTS + "def same_start(model):\n"
    "    for module in model.modules():\n"
    "        for kind in (module._parameters, module._buffers):\n"
    "            for name, tensor in kind.items():\n"
    "                came = tensor.detach().clone()\n"
    "                dist.broadcast(came, src=0)\n"
    "                is_buffer = kind is module._buffers\n"
    "                kind[name] = came if is_buffer else torch.nn.Parameter(came, False)\n",
    "from_another_rank": start("src=0", "src=dist.get_world_size() - 1"),
    "rank_0_changed": start("dist.broadcast(tensor.detach(), src=0)", "dist.all_reduce(tensor.detach())"),
    "buffers_left": start("[*model.parameters(), *model.buffers()]", "model.parameters()"),
    "frozen_left": start(
        "[*model.parameters(), *model.buffers()]",
        "[*(p for p in model.parameters() if p.requires_grad), *model.buffers()]",
    ),
    "only_some_ranks": start(
        "dist.broadcast(tensor.detach(), src=0)",
        "came = tensor.detach().clone()\n        dist.broadcast(came, src=0)\n"
        "        dist.get_rank() == 1 or tensor.detach().copy_(came)",
    ).replace("dist.get_rank() == 1", "dist.get_rank() == dist.get_world_size() - 1 > 1"),
    "wrong_dtype": start(
        "dist.broadcast(tensor.detach(), src=0)",
        "dist.broadcast(tensor.detach(), src=0)\n        tensor.data = tensor.data.half()",
    ),
    "wrong_shape": start(
        "dist.broadcast(tensor.detach(), src=0)",
        "dist.broadcast(tensor.detach(), src=0)\n        tensor.data = tensor.data[None]",
    ),
    "other": start("src=0)", "src=0)\n        dist.get_rank() and tensor.data.neg_()"),
}

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
_REPLACE = "            parameter.grad.data = parameter.grad.data.{}\n"


def average(old: str = "", new: str = "") -> str:
    """An answer to the second question, with something in it replaced."""
    assert old in _AVERAGE
    return IMPORTS + (_AVERAGE.replace(old, new) if old else _AVERAGE)


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

AVERAGE_GRADIENTS = {
    "forbidden": average(_SUM, "dist.reduce(parameter.grad, 0)"),
    "unused": average(
        "            if parameter.grad is None:\n"
        "                parameter.grad = torch.zeros_like(parameter)\n",
        "            if parameter.grad is None:\n                continue\n",
    ),
    "hang": average(_SUM, "dist.get_rank() or " + _SUM),
    "never_combined": average(_SUM, "pass"),
    "sum": average(_DIVIDE, ""),
    "divided_twice": average(_DIVIDE, _DIVIDE * 2),
    "copy_of_rank_0": average(_SUM, "dist.broadcast(parameter.grad, 0)").replace(_DIVIDE, ""),
    "only_some_ranks": average(_DIVIDE, "    " + _DIVIDE).replace(
        _SUM, _SUM + "\n            if dist.get_rank() == 0:"
    ),
    "only_some_tensors": average("model.parameters()", "list(model.parameters())[:3]"),
    "mixed_up": IMPORTS
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
    "frozen_gradient": average("if parameter.requires_grad:", "if True:"),
    "changed_parameters": average(_SUM, _SUM + "; dist.all_reduce(parameter.data)"),
    "different_bits": average(_SUM + "\n" + _DIVIDE, _DIRECTLY),
    "no_gradient": average(_DIVIDE, _DIVIDE + "            parameter.grad = None\n"),
    "wrong_type": average(
        _DIVIDE, _DIVIDE + "            parameter.grad = torch.nn.Parameter(parameter.grad)\n"
    ),
    "wrong_dtype": average(_DIVIDE, _DIVIDE + _REPLACE.format("half()")),
    "wrong_shape": average(_DIVIDE, _DIVIDE + _REPLACE.format("view(1, -1)")),
    "nan": average(_DIVIDE, _DIVIDE + "            parameter.grad *= float('nan')\n"),
    "other": average(_DIVIDE, _DIVIDE + "            parameter.grad *= 3\n"),
}
