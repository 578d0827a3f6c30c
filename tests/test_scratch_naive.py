"""Naive data parallelism equals one rank alone, step by step, on a module with everything awkward in it."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dpcourse as dc
from dpcourse.measure.traffic import TrafficMeter
from dpcourse.scratch import naive

STEPS, BATCH = 5, 8
# Shares averaged and all at once differ in the last bits: 6e-8 of numbers below 1, over few steps.
ROUNDING = 1e-6


class Awkward(nn.Module):
    """Tied tables, a frozen layer, a layer for even and one for odd tokens, one for none, and a buffer."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 7)
        self.frozen = nn.Linear(7, 7).requires_grad_(False)
        self.even, self.odd, self.unused = (nn.Linear(7, 7) for _ in range(3))
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.rand(7))

    def forward(self, tokens):
        stream = self.frozen(self.embedding(tokens)) * self.scale
        is_even = tokens % 2 == 0
        out = torch.zeros_like(stream)
        for layer, chosen in ((self.even, is_even), (self.odd, ~is_even)):
            if chosen.any():  # rank 0 has even tokens alone, the last rank odd ones: a layer sits idle there
                out = out + torch.tanh(layer(stream)) * chosen[:, None]
        return self.head(out)


def batch_of(step):
    """Even tokens first, odd ones after: shares in rank order use different layers."""
    random = torch.Generator().manual_seed(step)
    tokens = 2 * torch.randint(5, (BATCH,), generator=random)
    tokens[BATCH // 2 :] += 1
    return tokens, torch.randint(11, (BATCH,), generator=random)


def train(combine, optimizer="adamw"):
    """In a rank: the state after some steps."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    model = Awkward()
    naive.broadcast_state(model)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if optimizer == "adamw":  # decay moves what has a gradient of zeros, and leaves what has none
        chosen = torch.optim.AdamW(trainable, lr=0.01, weight_decay=0.5)
    else:
        chosen = torch.optim.SGD(trainable, lr=0.1, momentum=0.9, weight_decay=0.1)
    for step in range(STEPS):
        inputs, targets = (tensor.tensor_split(world_size)[rank] for tensor in batch_of(step))
        nn.functional.cross_entropy(model(inputs), targets).backward()
        combine(model)
        chosen.step()
        chosen.zero_grad()
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def distance(states, alone):
    return max((state[name] - alone[name]).abs().max().item() for state in states for name in alone)


@pytest.fixture(scope="module")
def alone():
    return {
        optimizer: dc.launch(train, skip, optimizer, ranks=1, everything=True)[0]
        for optimizer in ("adamw", "momentum")
    }


def skip(model):
    """Do nothing: right on one rank alone."""


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("optimizer", ["adamw", "momentum"])
def test_naive_equals_one_rank_alone(ranks, optimizer, alone):
    states = dc.launch(train, naive.average_gradients, optimizer, ranks=ranks, everything=True)
    assert distance(states, alone[optimizer]) < ROUNDING
    assert distance(states, states[0]) == 0  # replicas stay equal bit for bit


def zeros_for_unused(model):
    """A wrong way: a parameter that nobody used gets a gradient of zeros, so that decay moves it."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    naive.average_gradients(model)


@pytest.mark.parametrize("wrong", [skip, naive.sum_gradients, zeros_for_unused])
def test_the_same_check_catches_a_wrong_combination(wrong, alone):
    # Momentum with decay, for Adam takes a sum for a mean.
    states = dc.launch(train, wrong, "momentum", ranks=2, everything=True)
    assert distance(states, alone["momentum"]) > 1000 * ROUNDING


def starts():
    torch.manual_seed(dist.get_rank())
    model = Awkward()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    naive.broadcast_state(model)
    return before, dict(model.state_dict()), model.head.weight is model.embedding.weight


def test_broadcast_gives_every_rank_rank_0s_parameters_and_buffers_and_keeps_ties():
    (before, *_), *_ = results = dc.launch(starts, ranks=3)
    own = [own for own, _, _ in results]
    assert distance(own[1:], before) > 0.1  # each rank began with weights of its own
    assert distance([after for _, after, _ in results], before) == 0
    assert all(is_tied for *_, is_tied in results)


def collectives_of_a_step():
    torch.manual_seed(0)
    model = Awkward()
    inputs, targets = (tensor.tensor_split(2)[dist.get_rank()] for tensor in batch_of(0))
    nn.functional.cross_entropy(model(inputs), targets).backward()
    meter = TrafficMeter()
    naive.average_gradients(model)
    meter.mark("step")
    names = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    return names, [(transfer.collective, transfer.payload_bytes) for transfer in meter.transfers]


def test_one_all_reduce_for_each_parameter_that_a_rank_used_after_one_that_asks():
    used = {"embedding.weight", "even.weight", "even.bias", "odd.weight", "odd.bias"}
    num_parameters = len(used) + 2 + 2  # the frozen layer's and the unused layer's too are asked for
    sizes = [4 * number for number in (num_parameters, 77, 49, 7, 49, 7)]
    for names, transfers in dc.launch(collectives_of_a_step, ranks=2):
        assert names == used
        assert transfers == [("all_reduce", size) for size in sizes]


def test_a_module_without_parameters_needs_no_collective():
    assert dc.launch(lambda: naive.average_gradients(nn.ReLU()), ranks=2) == [None, None]
