"""The ideal beside the exact: which stage of ZeRO a strategy comes near to, and why it is not quite there."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dpcourse.ledger import OWNERS, Holding, Transfer, group_by, select, sums_by, total
from dpcourse.strategies import Setting
from dpcourse.tables import bytes_text
from dpcourse.theory import wire
from dpcourse.theory.states import STEP_COUNTER_BYTES
from dpcourse.theory.zero import STAGES, Ideal

_ROUNDING_BYTES = 1  # ideal lists hold whole bytes


def ideal_of(strategy: str, setting: Setting) -> Ideal | None:
    """Find the ideal that a strategy comes near to; None for one that is no stage of ZeRO, such as a star."""
    stage = _stage_of(strategy.removeprefix("scratch-"), setting)
    if stage is None:
        return None
    options = setting.options
    sharding = str(getattr(options, "sharding", "")).lower()
    is_kept = getattr(options, "reshard_after_forward", None) is False or "grad_op" in sharding
    mesh = getattr(options, "mesh", None)
    return Ideal(
        stage,
        setting.world_size,
        setting.recipe,
        setting.optimizer,
        shard_ranks=mesh[-1] if mesh else None,
        num_gathers=1 if is_kept else 2,
        reduce_dtype=getattr(options, "reduce_dtype", None),
    )


def _stage_of(kind: str, setting: Setting) -> int | None:
    if kind in STAGES:
        return STAGES[kind]
    if kind == "deepspeed":
        return setting.options.stage
    if kind.startswith("fsdp"):
        return 0 if "no_shard" in str(getattr(setting.options, "sharding", "")).lower() else 3
    return 0 if kind == "single" or kind.endswith("ddp") else None


@dataclass(frozen=True)
class Distance:
    """One rank's exact lists beside the ideal ones."""

    strategy: str
    num_tensors: int
    memory: Sequence[Holding]
    traffic: Sequence[Transfer]
    ideal_memory: Sequence[Holding]
    ideal_traffic: Sequence[Transfer]

    def __str__(self) -> str:
        parts = [*self._held(), *self._sent()]
        if not parts:
            return "Nothing lies between these lists and the ideal."
        return f"Beside the ideal: {'; '.join(parts)}."

    def _held(self) -> Iterator[str]:
        held, ideal = while_gradients_exist(self.memory), while_gradients_exist(self.ideal_memory)
        for owner in OWNERS:
            gap = held.get(owner, 0) - ideal.get(owner, 0)
            if abs(gap) > _ROUNDING_BYTES:
                yield f"{_signed(gap)} of {owner} ({self._why_held(owner, gap)})"

    def _why_held(self, owner: str, gap: int) -> str:
        if owner == "optimizer" and 0 < gap <= STEP_COUNTER_BYTES * self.num_tensors:
            return "a count of steps for each tensor"
        if owner == "other":
            return ", ".join(dict.fromkeys(item.unit for item in select(self.memory, owner="other")))
        return _WHY_HELD.get(owner) or _WHY_UNEQUAL.get(self.strategy, "padding, so that shares are equal")

    def _sent(self) -> Iterator[str]:
        gap = sent_in_a_step(self.traffic) - sent_in_a_step(self.ideal_traffic)
        if abs(gap) > _ROUNDING_BYTES:
            why = [*self._why_sent()] or ["padding, or small collectives beside those of the parameters"]
            yield f"{_signed(gap)} sent ({'; '.join(why)})"

    def _why_sent(self) -> Iterator[str]:
        """Give every reason that there is: one may add bytes where another saves some."""
        mine, ideal = (group_by(of_a_step(t), "collective") for t in (self.traffic, self.ideal_traffic))
        if "reduce_scatter" in ideal and "reduce_scatter" not in mine:
            yield "gradients are all-reduced where a reduce-scatter would do, and updates come on top"
            return
        if any(map(_is_emulated, mine.get("reduce_scatter", []))):
            yield "gloo carries out a reduce-scatter as an all-reduce"
        for collectives, reason in _WHY_LESS.items():
            moved, at_best = (
                sum(total(lists.get(name, [])) for name in collectives) for lists in (mine, ideal)
            )
            if moved < at_best - _ROUNDING_BYTES:
                yield reason


_WHY_HELD = {
    "buckets": "a second copy of the gradients",
    "gathered": "units that are whole at that moment",
    "activations": "what autograd keeps",
}
_WHY_LESS = {
    ("all_gather",): "what stays whole after forward is gathered once",
    ("all_reduce", "reduce_scatter"): "gradients travel in a shorter format",
}
_WHY_UNEQUAL = {
    "zero1": "whole tensors are given away, so that ranks have unlike shares",
    "fsdp2": "tensors are cut between rows, so that ranks have unlike shards",
}


def _signed(num_bytes: float) -> str:
    return f"{'+' if num_bytes > 0 else ''}{bytes_text(num_bytes)}"


def _is_emulated(transfer: Transfer) -> bool:
    """Tell whether a collective sends clearly more than it has to."""
    ideal = wire.ideal_sent_bytes(transfer.collective, transfer.payload_bytes, len(transfer.group))
    return (transfer.sent_bytes or 0) > 1.5 * ideal


def while_gradients_exist(memory: Iterable[Holding]) -> Mapping[str, int]:
    """Add up one rank's bytes at the end of backward by owner."""
    return sums_by(select(memory, phase="backward"), "owner")


def of_a_step(traffic: Iterable[Transfer]) -> list[Transfer]:
    """Leave out the collectives of the start."""
    return [transfer for transfer in traffic if transfer.phase != "init"]


def sent_in_a_step(traffic: Iterable[Transfer]) -> float:
    """Add up what one rank sends in a step."""
    return total(of_a_step(traffic), "sent_bytes")
