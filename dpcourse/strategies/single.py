"""One rank trains alone on the whole batch: what every other strategy must equal."""

from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies.base import Setting, Strategy
from dpcourse.strategies.common import gradients_by_unit, replicated_states


class Single(Strategy):
    """Parameters, gradients and the optimizer's states of one rank: 4 + 4 + 8 bytes a parameter in fp32."""

    recipes: tuple[str, ...] = ("fp32", "autocast", "mixed-adam", "bf16")

    def check(self, setting: Setting) -> None:
        """Refuse more than one rank: they would train apart and never meet."""
        if setting.world_size > 1:
            raise ValueError(
                f"single trains on one rank, and {setting.world_size} were asked for; "
                'ask for ranks=1, or for a strategy that shares the work, such as "ddp"'
            )

    def rank_memory(self, setting: Setting, rank: int) -> list[Holding]:
        """All model states: the reference to which other strategies are compared."""
        return replicated_states(setting, rank) + gradients_by_unit(setting, rank)

    def rank_traffic(self, setting: Setting, rank: int, step: int) -> list[Transfer]:
        """No collective: a rank alone has nobody to talk to."""
        return []
