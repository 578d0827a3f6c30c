"""What every strategy says and does: lists to expect (no torch), and its part in each rank (torch inside).

A strategy's file overrides what is its own; what stands here is what most of them have in common.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dpcourse.data import share_of
from dpcourse.layout import DTYPE_BYTES, Layout, unit_of
from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies.naming import name_by_size, name_start_broadcasts
from dpcourse.theory.recipes import RECIPES, Recipe

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

STEADY_STEP = 4  # from here on every step of every strategy is like the next
LEARNING_RATE = {"sgd": 0.05, "momentum": 0.01, "adam": 1e-3, "adamw": 1e-3}


@lru_cache(maxsize=8)
def _first(world_size: int) -> tuple[int, ...]:
    """All ranks, once for the thousands of collectives of a list."""
    return tuple(range(world_size))


@dataclass(frozen=True)
class Setting:
    """What a run is asked to do, in integers: enough to say what it will hold and move.

    layout: with the recipe's formats. batch_size counts the samples of the global batch. activation_bytes
    maps a part of the model to what autograd keeps of it on one rank, batch_bytes is one rank's share of the
    batch; None where nobody knows. input_bytes and output_bytes: of what goes into the model and comes out of
    it, for one rank's share. backend: "gloo", "nccl", "ring" or "staged". heads: of a GPT's blocks.
    """

    layout: Layout
    world_size: int
    batch_size: int
    optimizer: str = "adamw"
    options: Any = None
    activation_bytes: Mapping[str, int] | None = None
    batch_bytes: int | None = None
    input_bytes: int = 0
    output_bytes: int = 0
    recipe: Recipe = RECIPES["fp32"]
    backend: str = "gloo"
    device: str = "cpu"
    is_checkpointed: bool = False
    heads: int | None = None

    @property
    def num_shares(self) -> int:
        """How many parts a batch is cut into: ranks that share each matrix take the same part."""
        return num_shares(self.options, self.world_size)

    @property
    def ranks(self) -> tuple[int, ...]:
        return _first(self.world_size)

    @property
    def loss_bytes(self) -> int:
        """The loss is one number in the format of the parameters; autocast computes it in fp32."""
        dtype = self.recipe.gather_dtype or self.recipe.parameter_dtype
        return DTYPE_BYTES[dtype]


def num_shares(options: Any, world_size: int) -> int:
    """How many parts of a batch there are: one for each rank, or for each group that shares matrices."""
    return max(1, world_size // max(1, getattr(options, "tensor_parallel", 1)))


@dataclass(frozen=True)
class NoOptions:
    """This strategy has no options."""


class Strategy:
    """One way to train on several ranks. `recipes` names the number formats that it can do.

    lists_each_call: the expected list has every collective on its own, and no sums over calls that depend on
    how full a buffer is. direct_collectives: those in which each rank sends to each other one, where a ring
    would send to the next.
    """

    lists_each_call: bool = True
    direct_collectives: tuple[str, ...] = ()
    Options: type = NoOptions
    recipes: tuple[str, ...] = ("fp32",)

    # -- what is to be expected: no torch

    def check(self, setting: Setting) -> None:
        """Refuse, with ValueError, what this strategy cannot do."""

    def check_place(self, setting: Setting) -> None:
        """Refuse, with ValueError, where the ranks would run: the device, or what is not installed."""

    def expected_memory(self, setting: Setting) -> list[Holding]:
        """List what each rank holds at the ends of forward, backward and step."""
        return [holding for rank in setting.ranks for holding in self.rank_memory(setting, rank)]

    def expected_traffic(self, setting: Setting, step: int = STEADY_STEP) -> list[Transfer]:
        """List the collectives of the start and of one step (the first is 1), as each rank sees them.

        There are none without another rank.
        """
        if setting.world_size == 1:
            return []
        return [item for rank in setting.ranks for item in self.rank_traffic(setting, rank, step)]

    def rank_memory(self, setting: Setting, rank: int) -> Iterable[Holding]:
        """List what one rank holds."""
        raise NotImplementedError

    def rank_traffic(self, setting: Setting, rank: int, step: int) -> Iterable[Transfer]:
        """List what one of several ranks takes part in."""
        raise NotImplementedError

    def is_blocking(self, options: Any, backend: str) -> bool:
        """Tell whether computation waits for each collective; where it does not, the two overlap."""
        return True

    def takes_all_gpus(self, options: Any) -> bool:
        """Tell whether one rank drives every GPU that can be seen, and not one of its own."""
        return False

    # -- in each rank

    def wrap(self, module: "nn.Module", setting: Setting) -> "nn.Module":
        """Wrap a module (or change it in place) so that it trains together with the other ranks'."""
        return module

    def build_optimizer(self, wrapped: "nn.Module", setting: Setting) -> "Optimizer":
        """Build the optimizer, over the parameters that are trained; called once the module is wrapped."""
        from dpcourse.optimizers import build

        trainable = [parameter for parameter in wrapped.parameters() if parameter.requires_grad]
        return build(setting.optimizer, trainable, setting.recipe)

    def share(self, tensor: "Tensor", rank: int, world_size: int) -> "Tensor":
        """Cut a rank's share out of a tensor of the global batch."""
        return share_of(tensor, rank, world_size)

    def loss(self, wrapped: "nn.Module", inputs: "Tensor", targets: "Tensor") -> "Tensor":
        """Compute the loss on this rank's share."""
        from dpcourse.modules import loss_of

        return loss_of(wrapped(inputs), targets)

    def loss_value(self, loss: "Tensor") -> float | None:
        """Read the loss as a number; None where this rank computed none."""
        return loss.item()

    def backward(self, wrapped: "nn.Module", loss: "Tensor") -> None:
        """Make the gradients."""
        loss.backward()

    def finish_backward(self, wrapped: "nn.Module") -> None:
        """Do what is left to do between backward and the optimizer's step."""

    def owned(self, wrapped: "nn.Module", optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
        """Name the owner and the unit of each tensor that a rank holds for its model."""
        return owned_tensors(wrapped, optimizer)

    def whole_parameters(self, wrapped: "nn.Module") -> dict[str, "Tensor"]:
        """Give copies of all parameters, whole, by the names they have in the bare module.

        Every rank has to call it: sharded parameters are gathered.
        """
        return {
            clean_name(name): parameter.detach().clone() for name, parameter in wrapped.named_parameters()
        }

    def name_transfers(self, transfers: list[Transfer], setting: Setting) -> list[Transfer]:
        """Give the measured collectives of one rank the names (units) that the expected list uses.

        A meter knows operation, dtype (as the unit), group, size and order: collectives are known by their
        sizes, and equal ones by their order.
        """
        if not transfers:
            return []
        expected = self.rank_traffic(setting, transfers[0].rank, STEADY_STEP)
        return name_by_size(name_start_broadcasts(transfers), expected)


def owned_tensors(wrapped: Any, optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
    """Name the owner and the unit of a module's parameters, gradients and buffers, and of their states."""
    for name, parameter in _parameters(wrapped):
        yield "parameters", unit_of(name), local(parameter)
    for name, parameter in _parameters(wrapped):
        if parameter.grad is not None:
            yield "gradients", unit_of(name), local(parameter.grad)
        yield from state_tensors(optimizer, parameter, unit_of(name))
    yield from buffer_tensors(wrapped)


def state_tensors(optimizer: Any, parameter: Any, unit: str) -> Iterator[tuple[str, str, "Tensor"]]:
    """Name the tensors that an optimizer keeps for a parameter, or for a rank's shard of one."""
    for state in optimizer.state.get(parameter, {}).values():
        if hasattr(state, "untyped_storage"):
            yield "optimizer", unit, local(state)


def buffer_tensors(wrapped: Any) -> Iterator[tuple[str, str, "Tensor"]]:
    """Name a module's buffers."""
    for _, buffer in wrapped.named_buffers():
        yield "other", "buffers", buffer


def _parameters(wrapped: Any) -> Iterator[tuple[str, Any]]:
    for name, parameter in wrapped.named_parameters():
        yield clean_name(name), parameter


def local(tensor: Any) -> Any:
    """Give the part of a sharded tensor that this rank holds."""
    return getattr(tensor, "_local_tensor", tensor)


_WRAPPERS = ("module", "_fsdp_wrapped_module")


def clean_name(name: str) -> str:
    """Give a parameter the name that it has in the bare module, without what wrappers put into it."""
    parts = name.split(".")
    while parts[0] in _WRAPPERS:
        parts = parts[1:]
    return ".".join(part for part in parts if part != "_fsdp_wrapped_module")
