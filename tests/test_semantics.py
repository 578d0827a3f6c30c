"""Golden values of training semantics on real ranks: what DDP of the installed torch does, in numbers.

More of them stand in test_semantics_ddp.py (accumulation, the loss's factor, no_sync, buckets),
test_semantics_data.py (samplers, metrics, batch norm), test_semantics_fsdp.py (gathers, meshes,
accumulation), test_semantics_sharded.py (tied tables, clipping, optimizers) and test_semantics_traffic.py
(one all-reduce, bus bandwidth, overlap, calls that do not match).
"""

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dpcourse as dc
from dpcourse.measure.traffic import TrafficMeter

# -- ResNet-18, fp32, DDP defaults ----------------------------------------


class Block(nn.Module):
    """ResNet's basic block: two 3 x 3 convolutions and a way round them."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Identity()
        if inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, images):
        hidden = self.bn2(self.conv2(self.bn1(self.conv1(images)).relu()))
        return (hidden + self.downsample(images)).relu()


def resnet18() -> nn.Module:
    """ResNet-18 for ImageNet (He et al. 2016), its parameters in the order in which torchvision has them."""
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(inputs, outputs) for inputs, outputs in pairwise(widths)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def reduced_in_two_steps():
    """Bytes of each all-reduce that backward makes, for the first step and the second."""
    model = DistributedDataParallel(resnet18())
    meter = TrafficMeter()
    for step in ("step 1", "step 2"):
        output = model(torch.ones(2, 3, 32, 32))  # forward broadcasts buffers, and the new order of buckets
        meter.mark("forward")
        output.sum().backward()
        meter.mark(step)
    steps = [[t for t in meter.transfers if t.phase == step] for step in ("step 1", "step 2")]
    assert {t.collective for step in steps for t in step} == {"all_reduce"}
    return [[t.payload_bytes for t in step] for step in steps]


def test_resnet18_is_reduced_at_once_in_step_1_and_in_the_three_reported_buckets_from_step_2():
    first, second = [46_758_048], [2_052_000, 28_852_224, 15_853_824]
    assert sum(first) == sum(second) == 4 * 11_689_512
    assert dc.launch(reduced_in_two_steps, deadline_seconds=100) == [[first, second]] * 2


# -- seeds ----------------------------------------------------------------


def kept_by_dropout(seed_of_rank_0: int, seed_of_rank_1: int) -> list[list[bool]]:
    """For each rank, which of 100 numbers dropout keeps."""
    seeds = (seed_of_rank_0, seed_of_rank_1)

    def mask():
        torch.manual_seed(seeds[dist.get_rank()])
        return nn.functional.dropout(torch.ones(100)).bool().tolist()

    return dc.launch(mask)


def test_the_same_seed_on_every_rank_gives_identical_dropout_masks_and_different_seeds_do_not():
    same, different = kept_by_dropout(7, 7), kept_by_dropout(7, 8)
    assert same[0] == same[1]
    assert 20 < sum(same[0]) < 80
    assert different[0] != different[1]


def test_with_different_seeds_before_ddp_the_initial_weights_are_still_those_of_rank_0():
    def weights():
        torch.manual_seed(dist.get_rank())
        model = nn.Linear(3, 2)
        own = model.weight.tolist()
        DistributedDataParallel(model)
        return own, model.weight.tolist()

    (own_0, with_ddp_0), (own_1, with_ddp_1) = dc.launch(weights)
    assert own_0 != own_1
    assert with_ddp_0 == with_ddp_1 == own_0


# -- 5 and 6 batches on two ranks -----------------------------------------


def trained(is_joined: bool) -> tuple[int, float]:
    """Batches that this rank has trained on, and the weight in the end; each gradient is rank + 1."""
    rank = dist.get_rank()
    linear = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(linear.weight)
    model = DistributedDataParallel(linear)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    num_batches = 0
    with model.join(enable=is_joined):
        for _ in range(5 + rank):
            optimizer.zero_grad()
            model(torch.full((1, 1), rank + 1.0)).sum().backward()
            optimizer.step()
            num_batches += 1
    return num_batches, linear.weight.item()


def test_5_and_6_batches_finish_with_join():
    # Five steps of the mean (1 + 2) / 2; in the sixth rank 1's 2 is halved, for rank 0 brings nothing.
    assert dc.launch(trained, True) == [(5, -8.5), (6, -8.5)]


def test_5_and_6_batches_without_join_are_named_with_who_has_finished_and_who_waits():
    # Five all-reduces of gradients, three collectives of DDP's constructor and two for its rebuilt buckets.
    said = r"rank 0 finished after 10 collectives, rank 1 waits in all_reduce #11"
    with pytest.raises(dc.RankError, match=said) as caught:
        dc.launch(trained, False, deadline_seconds=20)
    assert caught.value.kind == "hang"
