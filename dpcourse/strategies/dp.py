"""nn.DataParallel's star: one main rank hands out samples and the whole model each step, and does the update.

Real processes stand for the threads of nn.DataParallel, which needs GPUs: on a CPU it silently runs the bare
module. threads=True runs the real thing where one process can drive two GPUs or more.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies.base import Setting, Strategy
from dpcourse.strategies.common import PHASES, by_unit, gradients_by_unit, replicated_states, with_zeros
from dpcourse.theory import star

if TYPE_CHECKING:
    from torch import Tensor, nn

_MAIN = 0
_NUMBER_BYTES = 4  # what stands for the loss on a rank that has none


@dataclass(frozen=True)
class Options:
    """threads: nn.DataParallel itself, one process (ranks=1) with a thread for each of two GPUs or more."""

    threads: bool = False


class Dp(Strategy):
    """All model states and the loss on the main rank; the others borrow the model for one step at a time."""

    Options = Options
    recipes = ("fp32", "autocast", "mixed-adam", "bf16")

    def check(self, setting: Setting) -> None:
        """Refuse threads of more than one process."""
        if setting.options.threads and setting.world_size > 1:
            raise ValueError(
                f"threads=True drives all GPUs from one process, and {setting.world_size} ranks were asked "
                "for; ask for ranks=1, or leave threads out: then processes make the star"
            )

    def check_place(self, setting: Setting) -> None:
        """Refuse threads without GPUs."""
        if setting.options.threads and setting.device == "cpu":
            raise ValueError(_too_few_gpus(0))

    def takes_all_gpus(self, options: Any) -> bool:
        """Tell whether nn.DataParallel does the work, with a thread for each GPU."""
        return options.threads

    def rank_memory(self, setting: Setting, rank: int) -> Iterable[Holding]:
        """Everything on the main rank, the global batch too; on another the model, until backward is over."""
        return _main_memory(setting) if rank == _MAIN else _other_memory(setting, rank)

    def rank_traffic(self, setting: Setting, rank: int, step: int) -> Iterator[Transfer]:
        """Samples and model out, outputs back; gradients of outputs out, gradients of parameters back."""
        return _transfers(setting, rank)

    def wrap(self, module: "nn.Module", setting: Setting) -> "nn.Module":
        """Wrap a module; a rank that is not the main one gives its parameters' memory back."""
        if setting.options.threads:
            return _threaded(module)
        from dpcourse.scratch.star_parallel import StarParallel

        return StarParallel(module, setting.batch_size // setting.world_size)

    def build_optimizer(self, wrapped: "nn.Module", setting: Setting) -> Any:
        """Build the main rank's optimizer; the others' has nothing to do."""
        return super().build_optimizer(wrapped, setting) if _is_main() else _NoOptimizer()

    def share(self, tensor: "Tensor", rank: int, world_size: int) -> "Tensor":
        """Leave the global batch to the main rank; the others get their samples from it."""
        return tensor if rank == _MAIN else tensor[:0]

    def loss(self, wrapped: "nn.Module", inputs: "Tensor", targets: "Tensor") -> "Tensor":
        """Compute the global batch's loss on the main rank; elsewhere, a number to start backward from."""
        return super().loss(wrapped, inputs, targets) if _is_main() else wrapped(inputs)

    def loss_value(self, loss: "Tensor") -> float | None:
        """Only the main rank has a loss."""
        return loss.item() if _is_main() else None

    def finish_backward(self, wrapped: Any) -> None:
        """Add up the gradients on the main rank; the threads of nn.DataParallel have done it."""
        if hasattr(wrapped, "sum_gradients"):
            wrapped.sum_gradients()

    def owned(self, wrapped: "nn.Module", optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
        """Name the owners; another rank's parameters are gathered for a step, and belong to the main one."""
        for owner, unit, tensor in super().owned(wrapped, optimizer):
            is_lent = owner == "parameters" and not _is_main()
            yield "gathered" if is_lent else owner, unit, tensor

    def whole_parameters(self, wrapped: Any) -> dict[str, "Tensor"]:
        """Give all ranks copies of the main rank's parameters."""
        from dpcourse.scratch.star import broadcast

        found = super().whole_parameters(wrapped)
        for name, shape in getattr(wrapped, "shapes", {}).items():
            if name in found:  # and is no buffer
                found[name] = found[name] if _is_main() else found[name].new_empty(shape)
                broadcast(found[name], _MAIN)
        return found

    def name_transfers(self, transfers: list[Transfer], setting: Setting) -> list[Transfer]:
        """Each rank's messages come in one order: that of the expected list."""
        if not transfers:
            return transfers
        expected = list(_transfers(setting, transfers[0].rank))
        named = [
            replace(item, unit=other.unit) if item.collective == other.collective else item
            for item, other in zip(transfers, expected, strict=False)
        ]
        return named + transfers[len(named) :]


class _NoOptimizer:
    """Of a rank whose parameters another one trains."""

    def __init__(self) -> None:
        self.state: dict = {}

    def step(self) -> None:
        pass

    def zero_grad(self, set_to_none: bool = True) -> None:
        pass


def _is_main() -> bool:
    import torch.distributed as dist

    return dist.get_rank() == _MAIN


def _threaded(module: "nn.Module") -> "nn.Module":
    import torch

    count = torch.cuda.device_count()
    if count < 2:
        raise ValueError(_too_few_gpus(count))
    return torch.nn.DataParallel(module)


def _too_few_gpus(count: int) -> str:
    return (
        f"threads=True needs two GPUs or more for nn.DataParallel, and there are {count} to use; leave "
        "threads out: then processes make the star"
    )


# -- memory


def _main_memory(setting: Setting) -> list[Holding]:
    """Autograd's share is not listed: the main rank keeps all outputs for the loss, the others keep none."""
    share = setting.batch_bytes
    whole = None if share is None else share * setting.world_size
    setting = with_zeros(replace(setting, batch_bytes=whole, activation_bytes=None))
    return replicated_states(setting, _MAIN) + gradients_by_unit(setting, _MAIN)


def _other_memory(setting: Setting, rank: int) -> Iterator[Holding]:
    yield from by_unit("gathered", "forward", rank, setting.layout.parameters)
    if setting.layout.buffer_bytes:
        yield Holding("other", "buffers", setting.layout.buffer_bytes, "forward", rank)
    for phase in PHASES:
        yield Holding("other", "loss", _NUMBER_BYTES, phase, rank)


# -- traffic


def _transfers(setting: Setting, rank: int) -> Iterator[Transfer]:
    """One step's messages as a rank sees them, in order."""
    num_ranks, layout = setting.world_size, setting.layout
    inputs, outputs = [setting.input_bytes] * num_ranks, [setting.output_bytes] * num_ranks

    def item(collective: str, unit: str, payload: int, sent: float, phase: str) -> Transfer:
        return Transfer(collective, unit, setting.ranks, payload, sent, phase, rank)

    yield item("scatter", "inputs", sum(inputs), star.scatter_sent_bytes(inputs, rank), "forward")
    for tensor in (*layout.parameters, *layout.buffers):
        size = tensor.num_bytes
        sent = star.broadcast_sent_bytes(size, num_ranks, rank)
        yield item("broadcast", tensor.name, size, sent, "forward")
    yield item("gather", "outputs", sum(outputs), star.gather_sent_bytes(outputs, rank), "forward")
    sent = star.scatter_sent_bytes(outputs, rank)
    yield item("scatter", "gradients of outputs", sum(outputs), sent, "backward")
    for parameter in layout.trainable:
        size = parameter.num_bytes
        yield item("reduce", parameter.name, size, star.reduce_sent_bytes(size, num_ranks, rank), "backward")
