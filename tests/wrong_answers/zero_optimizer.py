"""Lab 05, the optimizer: a wrong answer for each mistake."""

_IMPORTS = "import torch\nimport torch.distributed as dist\n\n\n"

_OPTIMIZER = (
    _IMPORTS
    + """def flat(tensors, num_slices):
    row = torch.cat([tensor.flatten() for tensor in tensors])
    return torch.nn.functional.pad(row, (0, -len(row) % num_slices))


def cut(row, tensors):
    sizes = [tensor.numel() for tensor in tensors]
    return row[: sum(sizes)].split(sizes)


class ShardedAdamW:
    def __init__(self, parameters, **options):
        self.parameters = [p for p in parameters if p.requires_grad]
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        row = flat([p.detach() for p in self.parameters], self.size)
        self.master = row.chunk(self.size)[self.rank].float()
        self.adamw = torch.optim.AdamW([self.master], **options)

    @torch.no_grad()
    def step(self):
        gradients = flat([p.grad for p in self.parameters], self.size)
        mean = gradients.chunk(self.size)[self.rank].clone()
        dist.reduce_scatter_tensor(mean, gradients)
        self.master.grad = mean.float() / self.size
        self.adamw.step()
        self.master.grad = None
        row = gradients
        dist.all_gather_into_tensor(row, self.master.bfloat16())
        for p, new in zip(self.parameters, cut(row, self.parameters)):
            p.copy_(new.view(p.shape))
"""
)


def _optimizer_but(*changes: tuple[str, str]) -> str:
    text = _OPTIMIZER
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


_MEAN = (
    "        mean = gradients.chunk(self.size)[self.rank].clone()\n"
    "        dist.reduce_scatter_tensor(mean, gradients)\n"
)
_ALL_REDUCED = (
    "        dist.all_reduce(gradients)\n        mean = gradients.chunk(self.size)[self.rank].clone()\n"
)
_GATHER = "        dist.all_gather_into_tensor(row, self.master.bfloat16())\n"
_PLAIN = (
    _IMPORTS
    + """class ShardedAdamW:
    def __init__(self, parameters, **options):
        self.parameters = [p for p in parameters if p.requires_grad]
        self.masters = [p.detach().float() for p in self.parameters]
        self.adamw = torch.optim.AdamW(self.masters, **options)

    @torch.no_grad()
    def step(self):
        for p, master in zip(self.parameters, self.masters):
            mean = p.grad.clone()
            dist.all_reduce(mean)
            master.grad = mean.float() / dist.get_world_size()
        self.adamw.step()
        for p, master in zip(self.parameters, self.masters):
            p.copy_(master)
            master.grad = None
"""
)
# Adam's two means are made by hand, in a form of the answer's own.
_BY_HAND = [
    (
        "        self.adamw = torch.optim.AdamW([self.master], **options)\n",
        "        self.o, self.t = options, 0\n        self.m = FIRST\n        self.v = FIRST\n",
    ),
    (
        "        self.adamw.step()\n",
        """        self.t += 1
        (b1, b2), lr = self.o["betas"], self.o["lr"]
        g = self.master.grad
        m, v = READ(self.m) * b1 + g * (1 - b1), READ(self.v) * b2 + g * g * (1 - b2)
        self.m, self.v = WRITE(self.m, m), WRITE(self.v, v)
        self.master *= 1 - lr * self.o["weight_decay"]
        self.master -= lr * m / (1 - b1**self.t) / ((v / (1 - b2**self.t)).sqrt() + self.o["eps"])
""",
    ),
]


def _by_hand(first: str, read: str, write: str, helpers: str = "") -> str:
    text = _optimizer_but(*_BY_HAND, ("class ShardedAdamW", helpers + "class ShardedAdamW"))
    text = text.replace("FIRST", first).replace("READ", read).replace("WRITE", write)
    return text


MASTERS_WHOLE = _optimizer_but(
    (
        "self.master = row.chunk(self.size)[self.rank].float()",
        "self.masters = row.float()\n        self.master = self.masters.chunk(self.size)[self.rank]",
    ),
)
MOMENTS_WHOLE = _by_hand(
    "torch.zeros(len(row))",
    "own",
    "put",
    """def own(whole):
    return whole.chunk(dist.get_world_size())[dist.get_rank()].clone()


def put(whole, new):
    whole.chunk(dist.get_world_size())[dist.get_rank()].copy_(new)
    return whole


""",
)
IN_NUMPY = _by_hand(
    "torch.zeros(len(self.master)).numpy()",
    "torch.from_numpy",
    "put",
    "def put(old, new):\n    return new.numpy().copy()\n\n\n",
)

SHARDED_OPTIMIZER = {
    "unsharded": _PLAIN,
    "masters_whole": MASTERS_WHOLE,
    "moments_whole": MOMENTS_WHOLE,
    "holds_more": _optimizer_but(("        row = gradients\n", "        row = self.row = gradients\n")),
    "holds_less": IN_NUMPY,
    "hidden": _optimizer_but(
        (
            "        self.adamw = ",
            "        self.more = row.float().numpy().repeat(3).copy()\n        self.adamw = ",
        )
    ),
    "all_reduced": _optimizer_but((_MEAN, _ALL_REDUCED)),
    "too_many_bytes": _optimizer_but(
        (
            "flat([p.grad for p in self.parameters], self.size)",
            "flat([p.grad for p in self.parameters], self.size).float()",
        ),
        ("        row = gradients\n", "        row = gradients.bfloat16()\n"),
    ),
    "no_gather": _optimizer_but(
        (
            _GATHER,
            "        row = flat([p.detach() for p in self.parameters], self.size)\n"
            "        row.chunk(self.size)[self.rank].copy_(self.master)\n",
        )
    ),
    "ranks_differ": _optimizer_but(
        (_MEAN, "        mean = gradients.chunk(self.size)[self.rank].clone()\n"),
        (
            _GATHER,
            "        row = flat([p.detach() for p in self.parameters], self.size)\n"
            "        row.chunk(self.size)[self.rank].copy_(self.master)\n",
        ),
    ),
    "sum": _optimizer_but((" / self.size\n", "\n")),
    "own_gradient": _optimizer_but(
        (_MEAN, "        mean = gradients.chunk(self.size)[self.rank] * self.size\n")
    ),
    "forgets": _optimizer_but(
        ("        self.adamw = torch", "        self.new = lambda: torch"),
        ("self.adamw.step()", "self.adamw = self.new()\n        self.adamw.step()"),
    ),
    "never_moved": _optimizer_but(
        (
            "return torch.nn.functional.pad(row, (0, -len(row) % num_slices))",
            "return row[: len(row) // num_slices * num_slices]",
        ),
        (
            "return row[: sum(sizes)].split(sizes)",
            "return torch.cat([row, flat([t.detach() for t in tensors], 1)[len(row):]]).split(sizes)",
        ),
    ),
    "lost_steps": _optimizer_but(
        ("[self.rank].float()", "[self.rank].clone()"), ("mean.float() / self.size", "mean / self.size")
    ),
    "not_in_place": _optimizer_but(("p.copy_(new.view(p.shape))", "p = new.view(p.shape)")),
    "frozen_moved": _optimizer_but(
        (" if p.requires_grad]", "]"),
        ("[p.grad for p", "[torch.ones_like(p) if p.grad is None else p.grad for p"),
    ),
    "hang": _optimizer_but((_GATHER, f"        if self.rank:\n    {_GATHER}")),
    "other": _optimizer_but(("**options)\n\n    @", "**{**options, 'lr': 0.1})\n\n    @")),
    "wrong_dtype": _optimizer_but(("p.copy_(new.view(p.shape))", "p.data = new.view(p.shape).float()")),
    "wrong_shape": _optimizer_but(("p.copy_(new.view(p.shape))", "p.data = new")),
}
