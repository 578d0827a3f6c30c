"""Golden values of training semantics where data meets ranks: samplers, metrics, batch norm."""

from itertools import chain

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import dpcourse as dc
from dpcourse.data import without_padding
from dpcourse.scratch.batch_norm import CpuSyncBatchNorm, sync_batch_norm

torch.set_num_threads(1)  # other tests run beside these

# -- DistributedSampler -------------------------------------------------------


def drawn(num_samples: int) -> list[int]:
    sampler = DistributedSampler(range(num_samples), shuffle=False)
    return list(sampler)


@pytest.mark.parametrize(
    ("num_samples", "ranks", "num_drawn", "twice"), [(5, 2, 6, [0]), (10, 4, 12, [0, 1])]
)
def test_a_distributed_sampler_draws_some_samples_twice_so_that_shares_are_equal(
    num_samples, ranks, num_drawn, twice
):
    shares = dc.launch(drawn, num_samples, ranks=ranks)
    everything = list(chain(*shares))
    assert len(everything) == num_drawn
    assert sorted(sample for sample in set(everything) if everything.count(sample) == 2) == twice
    assert without_padding(shares, num_samples) == list(range(num_samples))


def test_a_metric_without_the_padding_equals_that_of_a_single_process_and_with_it_does_not():
    """All of ten are right but the first two, which the padding repeats."""
    is_right = torch.tensor([0.0, 0.0] + [1.0] * 8)

    def judged():
        data = TensorDataset(is_right)
        loader = DataLoader(data, batch_size=2, sampler=DistributedSampler(data, shuffle=False))
        mine = [value for (batch,) in loader for value in batch.tolist()]
        shares: list = [None] * dist.get_world_size()
        dist.all_gather_object(shares, mine)
        whole, cut = list(chain(*shares)), without_padding(shares, len(data))
        return sum(whole) / len(whole), sum(cut) / len(cut)

    assert dc.launch(judged, ranks=4) == [(8 / 12, 8 / 10)] * 4


def test_results_that_do_not_fit_the_samples_are_refused_with_both_counts():
    with pytest.raises(ValueError, match=r"over 2 ranks are 5 a rank, and the ranks brought \[5, 4\]"):
        without_padding([[1] * 5, [1] * 4], 10)
    with pytest.raises(ValueError, match="over 0 ranks"):
        without_padding([], 10)


# -- SyncBatchNorm --------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(3, momentum=0.3)
        with torch.no_grad():
            self.norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
            self.norm.bias.copy_(torch.tensor([0.5, -0.5, 0.0]))

    def forward(self, images):
        return self.norm(images)


def images() -> torch.Tensor:
    return torch.randn(6, 3, 2, 2, generator=torch.Generator().manual_seed(3)) * 5 + 2


def two_steps(model: nn.Module, share: torch.Tensor) -> dict[str, torch.Tensor]:
    """Output, gradients and running statistics after two training steps and a look in eval()."""
    norm, inputs = (model.module if hasattr(model, "module") else model).norm, share.clone().requires_grad_()
    for _ in range(2):
        inputs.grad = norm.weight.grad = norm.bias.grad = None
        output = model(inputs)
        (output**3).sum().backward()
    running = [norm.running_mean.clone(), norm.running_var.clone()]
    seen = norm.eval()(inputs)
    values = [output, inputs.grad, norm.weight.grad, norm.bias.grad, *running, seen]
    return dict(zip(("output", "input", "weight", "bias", "mean", "variance", "eval"), values, strict=True))


def with_stand_in(share: torch.Tensor) -> tuple[dict, str]:
    model = DistributedDataParallel(sync_batch_norm(Normed()), broadcast_buffers=False)
    found = two_steps(model, share)
    return {name: value.detach() for name, value in found.items()}, repr(model.module.norm)


def test_the_stand_in_equals_one_process_with_the_global_batch_even_where_shares_are_unlike(capfd):
    shares = images().split([2, 4])
    (first, name), (second, _) = dc.launch(with_stand_in, per_rank=[(share,) for share in shares])
    alone = two_steps(Normed(), images())
    for key in ("output", "input", "eval"):
        torch.testing.assert_close(torch.cat([first[key], second[key]]), alone[key], rtol=1e-4, atol=1e-4)
    for key in ("weight", "bias"):  # DDP gives the mean over 2 ranks of what is a sum here
        torch.testing.assert_close(2 * first[key], alone[key], rtol=1e-5, atol=1e-3)
    for key in ("mean", "variance"):
        torch.testing.assert_close(first[key], alone[key], rtol=1e-5, atol=1e-5)
        assert torch.equal(first[key], second[key])
    said = capfd.readouterr().out
    assert said.count("the course's CpuSyncBatchNorm stands in for it") == 1
    assert "stand-in for SyncBatchNorm on CPU" in name


def test_a_plain_batch_norm_with_local_statistics_is_not_the_global_one():
    def local(share):
        return nn.BatchNorm2d(3)(share)

    shares = images().split([2, 4])
    outputs = dc.launch(local, per_rank=[(share,) for share in shares])
    assert (torch.cat(outputs) - nn.BatchNorm2d(3)(images())).abs().max() > 0.1


def test_torch_s_sync_batch_norm_refuses_cpu_tensors():
    with pytest.raises(dc.RankError, match="SyncBatchNorm expected input tensor to be on GPU"):
        dc.launch(lambda: nn.SyncBatchNorm(3)(images()))


def test_the_stand_in_keeps_settings_and_parameters_and_refuses_vectors():
    def kept():
        layers = [nn.BatchNorm1d(4, eps=0.1, momentum=None), nn.BatchNorm1d(4, affine=False), nn.ReLU()]
        weight = layers[0].weight
        new = sync_batch_norm(nn.Sequential(*layers))
        output = new[0](torch.full((2, 4), dist.get_rank() * 2.0))
        try:
            new[1](torch.ones(4))
        except ValueError as error:
            return [type(layer) for layer in new], new[0].weight is weight, output[0, 0].item(), str(error)

    for rank, (kinds, is_same, value, said) in enumerate(dc.launch(kept)):
        assert kinds == [CpuSyncBatchNorm, CpuSyncBatchNorm, nn.ReLU]
        assert is_same
        assert value == pytest.approx((2 * rank - 1) / 1.1**0.5)  # variance 1, and eps 0.1
        assert "given [4]; give (batch, channels" in said
