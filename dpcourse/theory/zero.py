"""ZeRO in the ideal: what a rank holds and sends for a number of parameters when everything divides evenly.

Stage 0 is plain data parallelism: all states on every rank. Stage 1 shares out the optimizer's states, stage
2 the gradients too, stage 3 the parameters too.
Source: Rajbhandari et al., ZeRO: memory optimizations toward training trillion parameter models, 2020:
section 5 and figure 1 for memory, section 7 for traffic. Nothing real is as even: compare the exact lists.
"""

from dataclasses import dataclass

from dpcourse.layout import DTYPE_BYTES
from dpcourse.ledger import Holding, Transfer
from dpcourse.theory import wire
from dpcourse.theory.recipes import Recipe
from dpcourse.theory.states import FP32_BYTES, OPTIMIZER_STATES

STAGES = {"zero0": 0, "zero1": 1, "zero2": 2, "zero3": 3}
_SHARED_FROM = {"parameters": 3, "gradients": 2, "optimizer": 1}  # the stage that shares an owner's bytes out


@dataclass(frozen=True)
class Ideal:
    """A system without a seam: its stage, who shares with whom, and what a step gathers.

    shard_ranks: how many ranks share one copy of the states; None for all (fewer: hybrid sharding).
    num_gathers: how often a step gathers all parameters at stage 3: 1 where they stay after forward.
    reduce_dtype: the format in which gradients are sent; None for that of what is gathered.
    """

    stage: int
    num_ranks: int
    recipe: Recipe
    optimizer: str = "adamw"
    shard_ranks: int | None = None
    num_gathers: int = 2
    reduce_dtype: str | None = None

    @property
    def num_shards(self) -> int:
        return self.num_ranks if self.shard_ranks is None else self.shard_ranks

    def held_bytes(self, owner: str) -> float:
        """Bytes for each parameter that one rank holds of "parameters", "gradients" or "optimizer"."""
        whole = whole_bytes(self.recipe, self.optimizer)[owner]
        return whole / self.num_shards if self.stage >= _SHARED_FROM[owner] else whole

    def memory(self, num_params: float, num_trained: float | None = None, rank: int = 0) -> list[Holding]:
        """List what a rank holds at the ends of the phases: gradients while they exist, the rest always."""
        trained = num_params if num_trained is None else num_trained
        counts = {"parameters": num_params, "gradients": trained, "optimizer": trained}
        return [
            Holding(owner, "all", round(self.held_bytes(owner) * count), phase, rank)
            for phase in ("forward", "backward", "step")
            for owner, count in counts.items()
            if owner != "gradients" or phase == "backward"
        ]

    def traffic(self, num_params: float, num_trained: float | None = None, rank: int = 0) -> list[Transfer]:
        """List the collectives of a step, each over the whole model.

        Stages 1 and 2 reduce-scatter gradients and gather what each rank has updated, together an all-reduce;
        stage 3 gathers parameters for forward and for backward. Shards of replicas are all-reduced.
        """
        trained = num_params if num_trained is None else num_trained
        moved = self.recipe.gather_dtype or self.recipe.parameter_dtype
        gradients = trained * DTYPE_BYTES[self.reduce_dtype or moved]
        if self.stage == 0:
            return self._transfers([("all_reduce", "backward", gradients, self.num_ranks)], rank)
        reduced = ("reduce_scatter", "backward", gradients, self.num_shards)
        if self.stage < 3:
            updated = ("all_gather", "step", trained * DTYPE_BYTES[moved], self.num_shards)
            return self._transfers([reduced, updated], rank)
        phases = ("forward", "backward")[: self.num_gathers]
        gathered = [
            ("all_gather", phase, num_params * DTYPE_BYTES[moved], self.num_shards) for phase in phases
        ]
        num_replicas = self.num_ranks // self.num_shards
        averaged = ("all_reduce", "backward", gradients / self.num_shards, num_replicas)
        return self._transfers([*gathered, reduced, averaged], rank)

    def _transfers(self, steps: list[tuple[str, str, float, int]], rank: int) -> list[Transfer]:
        return [
            Transfer(
                collective,
                "all",
                tuple(range(num_ranks)),
                round(payload),
                wire.ideal_sent_bytes(collective, round(payload), num_ranks),
                phase,
                rank,
            )
            for collective, phase, payload, num_ranks in steps
            if num_ranks > 1
        ]


def whole_bytes(recipe: Recipe, optimizer: str = "adamw") -> dict[str, int]:
    """Bytes for each parameter of a whole copy of the model states: 4 + 4 + 8, 2 + 2 + 12, 2 + 2 + 4, ..."""
    number = DTYPE_BYTES[recipe.parameter_dtype]
    copies, _ = OPTIMIZER_STATES[optimizer]
    states = FP32_BYTES * (1 + copies) if recipe.has_masters else number * copies
    return {"parameters": number, "gradients": number, "optimizer": states}


def accumulated_gradient_bytes(
    num_params: float, gradient_bytes: int, num_ranks: int, is_synchronised: bool
) -> float:
    """Bytes of gradients that a fully sharded rank holds between two micro-batches.

    Each micro-batch synchronised (a reduce-scatter each) leaves a rank its shard. With synchronisation off
    there is no communication, and the whole gradient stays until the last micro-batch reduces it.
    Source: FSDPModule.set_requires_gradient_sync in torch/distributed/fsdp/_fully_shard.
    """
    return num_params * gradient_bytes / (num_ranks if is_synchronised else 1)
