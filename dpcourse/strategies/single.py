"""One rank trains alone on the whole batch: what every other strategy must equal."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies import STEADY_STEP, Setting
from dpcourse.strategies.common import gradients_by_unit, replicated_states

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Options:
    """Training alone has no options."""


def check(setting: Setting) -> None:
    """Refuse more than one rank: they would train apart and never meet."""
    if setting.world_size > 1:
        raise ValueError(
            f"single trains on one rank, and {setting.world_size} were asked for; "
            'ask for ranks=1, or for a strategy that shares the work, such as "ddp"'
        )


def expected_memory(setting: Setting) -> list[Holding]:
    """Parameters, gradients and the optimizer's states: 4 + 4 + 8 bytes a parameter for Adam in fp32."""
    return replicated_states(setting, rank=0) + gradients_by_unit(setting, rank=0)


def expected_traffic(setting: Setting, step: int = STEADY_STEP) -> list[Transfer]:
    """No collective: a rank alone has nobody to talk to."""
    return []


def wrap(module: "nn.Module", options: Options) -> "nn.Module":
    """Leave the module as it is."""
    return module


def name_transfers(transfers: list[Transfer]) -> list[Transfer]:
    """Leave the list as it is: nothing is sent that would need a name."""
    return transfers
