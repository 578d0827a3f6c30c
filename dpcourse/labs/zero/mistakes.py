"""Lab 05: classes of mistakes, what each is told, and a wrong answer that must be told it."""

from dpcourse.labs.question import Mistake

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

OPTIMIZER_MISTAKES = (
    Mistake(
        "unsharded",
        "The numbers are right, and every rank holds masters and both of Adam's means for all of them: this"
        " is DDP. Build AdamW over this rank's slice alone, so that it never makes states for the others'.",
        _PLAIN,
    ),
    Mistake(
        "masters_whole",
        "Adam's two means are in slices, the fp32 masters are not: 8 of 12 bytes are shared out. A slice that"
        " is a view keeps the whole that it was cut from: cut first, then make fp32 of it."
        " (On two ranks an fp32 gradient of the slice takes as much: is one left in `.grad`?)",
        MASTERS_WHOLE,
    ),
    Mistake(
        "moments_whole",
        "The masters are in slices, and Adam's two means are there for all numbers, 8 bytes for each: make"
        " them as long as the slice.",
        MOMENTS_WHOLE,
    ),
    Mistake(
        "holds_more",
        "More bytes stay after a step than a slice's masters and means: a row that gradients or parameters"
        " were gathered in, or a gradient. Let go of it at the end of the step.",
        _optimizer_but(("        row = gradients\n", "        row = self.row = gradients\n")),
    ),
    Mistake(
        "holds_less",
        "Fewer bytes are held in tensors than AdamW needs for a slice, and yet the numbers are right: the"
        " states live somewhere else. Keep them in tensors, where they can be counted.",
        IN_NUMPY,
    ),
    Mistake(
        "hidden",
        "The tensors are as small as they should be, and the process has grown by far more: something is kept"
        " outside of tensors, or beside them.",
        _optimizer_but(
            (
                "        self.adamw = ",
                "        self.more = row.float().numpy().repeat(3).copy()\n        self.adamw = ",
            )
        ),
    ),
    Mistake(
        "all_reduced",
        "All is right but the bytes: after an all-reduce every rank has the whole mean gradient, and uses a"
        " slice of it. A reduce-scatter gives it that slice for half the bytes.",
        _optimizer_but((_MEAN, _ALL_REDUCED)),
    ),
    Mistake(
        "too_many_bytes",
        "All is right but the bytes. Gradients and parameters travel in bf16, two bytes a number, and once"
        " round the ring each: make fp32 of them after they have come.",
        _optimizer_but(
            (
                "flat([p.grad for p in self.parameters], self.size)",
                "flat([p.grad for p in self.parameters], self.size).float()",
            ),
            ("        row = gradients\n", "        row = gradients.bfloat16()\n"),
        ),
    ),
    Mistake(
        "no_gather",
        "Each rank has its own slice right, and the others' as they were: hand the new slices round with an"
        " all-gather, or the ranks train different models.",
        _optimizer_but(
            (
                _GATHER,
                "        row = flat([p.detach() for p in self.parameters], self.size)\n"
                "        row.chunk(self.size)[self.rank].copy_(self.master)\n",
            )
        ),
    ),
    Mistake(
        "ranks_differ",
        "The ranks hold different parameters. Every rank has to end the step with the same ones, bit by bit:"
        " what one rank rounds, all have to take from it.",
        _optimizer_but(
            (_MEAN, "        mean = gradients.chunk(self.size)[self.rank].clone()\n"),
            (
                _GATHER,
                "        row = flat([p.detach() for p in self.parameters], self.size)\n"
                "        row.chunk(self.size)[self.rank].copy_(self.master)\n",
            ),
        ),
    ),
    Mistake(
        "sum",
        "AdamW was given the sum of the ranks' gradients: divide by their number. With a small eps Adam"
        " hardly shows it; here eps is large.",
        _optimizer_but((" / self.size\n", "\n")),
    ),
    Mistake(
        "own_gradient",
        "Each slice follows the gradient of the rank that owns it, which has seen its own samples only: every"
        " slice needs the mean over all ranks.",
        _optimizer_but((_MEAN, "        mean = gradients.chunk(self.size)[self.rank] * self.size\n")),
    ),
    Mistake(
        "forgets",
        "Each step is AdamW's first: the states are made anew every time. Build the optimizer once, in"
        " `__init__`.",
        _optimizer_but(
            ("        self.adamw = torch", "        self.new = lambda: torch"),
            ("self.adamw.step()", "self.adamw = self.new()\n        self.adamw.step()"),
        ),
    ),
    Mistake(
        "never_moved",
        "Some numbers stay where they were, and all others are right: a slice, or what is left over where the"
        " length does not divide, is nobody's. Pad the row with zeros before you cut it.",
        _optimizer_but(
            (
                "return torch.nn.functional.pad(row, (0, -len(row) % num_slices))",
                "return row[: len(row) // num_slices * num_slices]",
            ),
            (
                "return row[: sum(sizes)].split(sizes)",
                "return torch.cat([row, flat([t.detach() for t in tensors], 1)[len(row):]]).split(sizes)",
            ),
        ),
    ),
    Mistake(
        "lost_steps",
        "Large numbers stand still and small ones move: the steps are added in bf16, where a thousandth is"
        " lost beside one. AdamW has to work on an fp32 copy of the slice.",
        _optimizer_but(
            ("[self.rank].float()", "[self.rank].clone()"), ("mean.float() / self.size", "mean / self.size")
        ),
    ),
    Mistake(
        "not_in_place",
        "The parameters are as they were. Write the new numbers into the tensors you were given:"
        " `parameter.copy_(...)`, under `torch.no_grad()`.",
        _optimizer_but(("p.copy_(new.view(p.shape))", "p = new.view(p.shape)")),
    ),
    Mistake(
        "frozen_moved",
        "A parameter with `requires_grad=False` has moved: it has no gradient, and no states either."
        " Leave it out of the row.",
        _optimizer_but(
            (" if p.requires_grad]", "]"),
            ("[p.grad for p", "[torch.ones_like(p) if p.grad is None else p.grad for p"),
        ),
    ),
    Mistake(
        "hang",
        "Ranks wait for each other: all have to call the same collectives in the same order, whether or not"
        " there is something in their slice.",
        _optimizer_but((_GATHER, f"        if self.rank:\n    {_GATHER}")),
    ),
    Mistake(
        "other",
        "The parameters are not those of AdamW, in a way that fits none of the usual mistakes.",
        _optimizer_but(("**options)\n\n    @", "**{**options, 'lr': 0.1})\n\n    @")),
    ),
    Mistake(
        "wrong_dtype",
        "The parameters came as bf16 and have to stay that: only the masters are fp32.",
        _optimizer_but(("p.copy_(new.view(p.shape))", "p.data = new.view(p.shape).float()")),
    ),
    Mistake(
        "wrong_shape",
        "A parameter has another shape than before: bring its part of the row into the"
        " parameter's own shape.",
        _optimizer_but(("p.copy_(new.view(p.shape))", "p.data = new")),
    ),
)
