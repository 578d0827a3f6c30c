"""Batch norm over the batches of all ranks, for CPU ranks: torch's SyncBatchNorm runs on GPUs alone."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class SumOverRanks(torch.autograd.Function):
    """Add up a tensor over the ranks. Each rank's loss depends on the sum, so backward adds up gradients."""

    @staticmethod
    def forward(ctx: object, tensor: Tensor) -> Tensor:
        result = tensor.clone()
        dist.all_reduce(result)
        return result

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        result = gradient.clone()
        dist.all_reduce(result)
        return result


class CpuSyncBatchNorm(_BatchNorm):
    """Batch norm whose mean and variance are those of the global batch, as if one process had it all.

    Two all-reduces in forward (sums and the count, then squared distances from the mean), two in backward.
    Input (batch, channels, ...); ranks may have unlike batches. In eval() it is a plain batch norm.
    Equals torch.nn.SyncBatchNorm, which gathers each rank's mean, deviation and count instead.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"batch norm was given {list(input.shape)}; give (batch, channels, ...)")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if not self.training:
            return super().forward(input)
        axes = [axis for axis in range(input.dim()) if axis != 1]
        count = input.new_full((1,), input.numel() / input.shape[1])
        sums = SumOverRanks.apply(torch.cat([input.sum(axes), count]))
        num_values, mean = sums[-1].detach(), sums[:-1] / sums[-1].detach()
        centred = input - _along_channels(mean, input)
        variance = SumOverRanks.apply(centred.square().sum(axes)) / num_values
        self._track(mean.detach(), variance.detach(), float(num_values))
        output = centred * _along_channels((variance + self.eps).rsqrt(), input)
        if not self.affine:
            return output
        return output * _along_channels(self.weight, input) + _along_channels(self.bias, input)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, num_values: float) -> None:
        """Move the running statistics as torch does: by momentum, the variance with n - 1 below."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return  # built with track_running_stats=False
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance * num_values / max(num_values - 1, 1), share)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, the course's stand-in for SyncBatchNorm on CPU"


def _along_channels(values: Tensor, like: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (like.dim() - 2))


def sync_batch_norm(module: nn.Module) -> nn.Module:
    """Put batch norms over all ranks in the place of a module's own: torch's on a GPU, on CPU a stand-in.

    Says so when it takes the stand-in. Call it before the module is wrapped and the optimizer is built.
    """
    devices = {parameter.device.type for parameter in module.parameters()}
    if devices and "cpu" not in devices:
        return nn.SyncBatchNorm.convert_sync_batchnorm(module)
    if dist.get_rank() == 0:
        print("torch's SyncBatchNorm refuses CPU tensors; the course's CpuSyncBatchNorm stands in for it")
    return _with_stand_ins(module)


def _with_stand_ins(module: nn.Module) -> nn.Module:
    if isinstance(module, _BatchNorm):
        return _stand_in(module)
    for name, child in module.named_children():
        setattr(module, name, _with_stand_ins(child))
    return module


def _stand_in(norm: _BatchNorm) -> CpuSyncBatchNorm:
    """A stand-in with the same settings, and the very same parameters and buffers."""
    new = CpuSyncBatchNorm(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    new._parameters.update(norm._parameters)
    new._buffers.update(norm._buffers)
    return new.train(norm.training)
