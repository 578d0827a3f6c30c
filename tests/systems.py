"""Systems of data parallelism, ours and torch's, and one model that is awkward for all of them.

What is asked of ours is asked of theirs: the same function trains each beside a plain copy, step by step.
"""

from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from dpcourse.scratch import naive
from dpcourse.scratch.bucketed import BucketedDDP
from dpcourse.scratch.fsdp import full_parameters, shard
from dpcourse.scratch.replicated import FlatDDP, NaiveDDP
from dpcourse.scratch.zero import Zero1Optimizer
from dpcourse.scratch.zero2 import Zero2Optimizer

STEPS, BATCH, VOCABULARY, WIDTH = 4, 12, 11, 7
TINY_MB = 300 / 2**20  # so that a model of a few hundred numbers has several buckets


class Block(nn.Module):
    """A frozen layer, one layer for even tokens and one for odd ones: on some ranks a layer sits idle."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, 5)
        self.frozen = nn.Linear(5, 5).requires_grad_(False)
        self.even, self.odd = nn.Linear(5, WIDTH), nn.Linear(5, WIDTH)

    def forward(self, stream, is_even):
        hidden = self.frozen(torch.tanh(self.inner(stream)))
        for layer, chosen in ((self.even, is_even), (self.odd, ~is_even)):
            if chosen.any():
                stream = stream + layer(hidden) * chosen[:, None]
        return stream


class Awkward(nn.Module):
    """Tied tables, frozen layers, sizes that no number of ranks divides, a layer for nobody, and a buffer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.unused = nn.Linear(WIDTH, 3)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.rand(WIDTH))

    def forward(self, tokens):
        stream = self.embedding(tokens) * self.scale
        for block in self.blocks:
            stream = block(stream, tokens % 2 == 0)
        return self.head(stream)


def tokens_of(step, is_split):
    """Tokens and targets of a global batch. Split: even tokens first, so that shares use different layers."""
    random = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY - 1, (BATCH,), generator=random)
    if is_split:
        tokens = tokens.sort().values // 2 * 2
        tokens[BATCH // 2 :] += 1
    else:
        tokens[::2], tokens[1::2] = tokens[::2] // 2 * 2, tokens[1::2] // 2 * 2 + 1
    return tokens, torch.randint(VOCABULARY, (BATCH,), generator=random)


# -- the systems: each gives the wrapped module, its optimizer, and a function that reads all parameters


def groups_of(module):
    """Two groups, with rates and decays of their own; how they are cut does not matter to any system."""
    named = list(module.named_parameters())
    blocks = [parameter for name, parameter in named if name.removeprefix("module.").startswith("blocks")]
    rest = [parameter for name, parameter in named if not name.removeprefix("module.").startswith("blocks")]
    return [{"params": blocks, "lr": 0.02, "weight_decay": 0.1}, {"params": rest}]


def replica(wrapper, module, optimizer):
    wrapped = wrapper(module)
    return wrapped, optimizer(groups_of(wrapped)), lambda: dict(module.named_parameters())


def zero_of(kind, module, optimizer, **options):
    naive.broadcast_state(module)
    chosen = kind(groups_of(module), optimizer.func, **options, **optimizer.keywords)
    return module, chosen, lambda: dict(module.named_parameters())


def torch_zero(module, optimizer):
    wrapped = DistributedDataParallel(module, find_unused_parameters=True)
    trainable = [
        {**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups_of(module)
    ]
    chosen = ZeroRedundancyOptimizer(trainable, optimizer.func, **optimizer.keywords)
    return wrapped, chosen, lambda: dict(module.named_parameters())


def sharded(module, optimizer, **options):
    wrapped = shard(module, units=list(module.blocks), **options)

    def read():
        with full_parameters(wrapped) as parameters:
            return {name: parameter.clone() for name, parameter in parameters.items()}

    return wrapped, optimizer(groups_of(wrapped)), read


def torch_sharded(module, optimizer, **options):
    naive.broadcast_state(module)
    for block in module.blocks:
        fully_shard(block, **options)
    fully_shard(module)
    chosen = optimizer(groups_of(module))
    return module, chosen, lambda: {n: p.detach().full_tensor() for n, p in module.named_parameters()}


REPLICATED = {
    "naive": partial(replica, NaiveDDP),
    "flat": partial(replica, FlatDDP),
    "bucketed": partial(replica, partial(BucketedDDP, bucket_cap_mb=TINY_MB)),
    "bucketed, looking for unused": partial(
        replica, partial(BucketedDDP, bucket_cap_mb=TINY_MB, find_unused_parameters=True)
    ),
    "zero 1": partial(zero_of, Zero1Optimizer),
    "zero 1, looking for unused": partial(zero_of, Zero1Optimizer, find_unused_parameters=True),
    "zero 2": partial(zero_of, Zero2Optimizer, bucket_cap_mb=TINY_MB),
    "zero 2, looking for unused": partial(
        zero_of, Zero2Optimizer, find_unused_parameters=True, bucket_cap_mb=TINY_MB
    ),
    "DDP of torch": partial(replica, partial(DistributedDataParallel, find_unused_parameters=True)),
    "ZeroRedundancyOptimizer of torch": torch_zero,
}
SHARDED = {
    "fsdp": sharded,
    "fsdp without prefetch": partial(sharded, prefetch=False),
    "fsdp without resharding": partial(sharded, reshard_after_forward=False),
}
TORCH_SHARDED = {
    "fully_shard of torch": torch_sharded,
    "fully_shard of torch without resharding": partial(torch_sharded, reshard_after_forward=False),
}
# An optimizer that decays weights moves a parameter whose gradient is zeros, and leaves one without.
LOOKING = ("naive", "looking", "DDP", "ZeroRedundancy")
DECAYING = {
    "momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1),
    "adam": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
}
PLAIN = {name: partial(optimizer, weight_decay=0.0) for name, optimizer in DECAYING.items()}


# -- the proof: the parallel run beside the plain run


def side_by_side(make, is_split, optimizer, steps=STEPS):
    """In a rank: how far the parallel model is from a plain one, at the start and after each step."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    plain = Awkward()
    torch.manual_seed(rank)
    own = Awkward()
    assert (distance(dict(own.named_parameters()), plain) > 0.1) == (rank > 0)  # ranks start apart
    wrapped, chosen, read = make(own, optimizer)
    plain_optimizer = optimizer(groups_of(plain))
    distances = [distance(read(), plain)]
    for step in range(steps):
        batch = tokens_of(step, is_split)
        train_step(plain, plain_optimizer, *batch)
        train_step(wrapped, chosen, *share_of(batch))
        distances.append(distance(read(), plain))
    return distances


def share_of(batch):
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    return [tensor.tensor_split(num_ranks)[rank] for tensor in batch]


def train_step(module, optimizer, tokens, targets):
    nn.functional.cross_entropy(module(tokens), targets).backward()
    optimizer.step()
    optimizer.zero_grad()


def distance(parameters, plain):
    whole = dict(plain.named_parameters())
    assert set(parameters) == set(whole)
    return max((parameters[name] - whole[name]).abs().max().item() for name in whole)
