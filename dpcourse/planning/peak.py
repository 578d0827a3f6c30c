"""The fullest moment of a step: a strategy's expected list, with what comes and goes within the step.

What is counted is allocated memory: what tensors take. PyTorch's allocator reserves more, and nvidia-smi
shows more still; the margin is for those, and has a row of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from dpcourse.layout import DTYPE_BYTES, Layout, Parameter
from dpcourse.ledger import GATHERED_PEAK, Holding, select, sums_by, total
from dpcourse.planning.activations import Activations
from dpcourse.planning.candidates import Candidate
from dpcourse.strategies import Setting, find
from dpcourse.strategies.zero1 import shares
from dpcourse.units import ROOT, Unit, units_of

GB = 10**9
CONTEXT_BYTES = GB  # CUDA's context and NCCL's buffers, about
GAPS = 0.1  # of what comes and goes: blocks of the allocator that nothing else fits into
PARTS = (
    "parameters", "gradients", "optimizer", "buckets", "gathered", "activations", "logits", "other", "margin",
)  # fmt: skip
_PASSING = ("gathered", "activations", "logits")
DEEPSPEED_LIVE = 10**9  # elements that stage 3 keeps whole: stage3_max_live_parameters


@dataclass(frozen=True)
class Held:
    """What a card holds at one moment, by part, the margin included."""

    moment: str
    num_bytes: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        return sum(self.num_bytes.values())


@dataclass(frozen=True)
class Memory:
    """A rank's memory: the moments of a steady step, and what the start and a checkpoint take.

    start_bytes: where each rank builds the whole model on its card, start_on_meta_bytes: where it is built on
    the meta device and only shards are made. saving_bytes: rank 0 while it gathers a full state dict;
    sharded_saving_bytes: where every rank writes its own shards. host_bytes: what is offloaded to the host.
    """

    moments: tuple[Held, ...]
    start_bytes: int
    start_on_meta_bytes: int
    saving_bytes: int
    sharded_saving_bytes: int
    host_bytes: int = 0

    @property
    def fullest(self) -> Held:
        return max(self.moments, key=lambda held: held.total_bytes)


def holdings_of(strategy: str, setting: Setting) -> list[Holding]:
    """List what the rank that holds most holds in a steady step, the units of an owner as one."""
    rank = _fullest_rank(strategy, setting)
    sums = sums_by(find(strategy).rank_memory(setting, rank), "owner", "phase")
    return [Holding(owner, "all", size, phase, rank) for (owner, phase), size in sums.items()]


def memory_of(
    candidate: Candidate, setting: Setting, held: list[Holding], made: Activations | None
) -> Memory:
    """Find a rank's memory. held: what `holdings_of` lists; made: what a micro-batch leaves, if known."""
    states = {phase: _states(held, phase) for phase in ("forward", "backward", "step")}
    host = _offloaded(states, candidate)
    made = made or Activations({}, 0, 0, {})
    if candidate.strategy == "dp":  # the main rank takes the loss of all outputs
        made = Activations(
            made.kept,
            made.recomputed,
            made.working,
            {part: setting.world_size * size for part, size in made.loss.items()},
        )
    kept = _kept_bytes(candidate, held)
    units = _units(setting.layout)
    whole = _whole_bytes(candidate, setting, held, units)
    in_flight = _in_flight_bytes(candidate, setting, units)
    first = made.kept.get("blocks.0", 0)
    again = made.recomputed + made.working
    moments = (
        _held("loss", states["forward"], kept, made.kept_bytes, made.loss_bytes),
        _held("backward begins", states["forward"], whole + in_flight, made.kept_bytes + again, 0),
        _held("backward ends", states["backward"], whole + in_flight, first + again, 0),
        _held("optimizer's step", states["backward"], 0, 0, 0),
    )
    parameters = states["step"].get("parameters", 0)
    model = setting.layout.parameter_bytes
    is_cut = candidate.strategy.startswith("fsdp") or candidate.options.get("stage") == 3
    shards = sum(states["step"].values())
    return Memory(
        moments,
        start_bytes=(model if is_cut else 0) + parameters + CONTEXT_BYTES,
        start_on_meta_bytes=parameters + CONTEXT_BYTES,
        saving_bytes=shards + (model if is_cut else 0) + CONTEXT_BYTES,
        sharded_saving_bytes=shards + CONTEXT_BYTES,
        host_bytes=host,
    )


def _fullest_rank(strategy: str, setting: Setting) -> int:
    """Whole parameters are given away by ZeroRedundancyOptimizer: one rank has most of the states."""
    if strategy != "zero1":
        return 0
    sizes = [sum(parameter.num_elements for parameter in share) for share in shares(setting)]
    return sizes.index(max(sizes))


def _states(held: list[Holding], phase: str) -> dict[str, int]:
    sums = sums_by(select(held, phase=phase), "owner")
    return {owner: size for owner, size in sums.items() if owner not in ("gathered", "activations")}


def _offloaded(states: dict[str, dict[str, int]], candidate: Candidate) -> int:
    """Take what lives in host memory off the card, and count it."""
    if not candidate.is_offloaded:
        return 0
    host = 0
    for phase in states.values():
        host = max(host, sum(phase.pop(owner, 0) for owner in ("parameters", "gradients", "optimizer")))
    return host


def _held(moment: str, states: Mapping[str, int], gathered: int, activations: int, logits: int) -> Held:
    parts = dict.fromkeys(PARTS, 0) | dict(states)
    parts |= {"gathered": gathered, "activations": activations, "logits": logits}
    parts["margin"] = CONTEXT_BYTES + round(GAPS * sum(parts[part] for part in _PASSING))
    return Held(moment, {part: size for part, size in parts.items() if size})


# -- what is whole for a while


def _kept_bytes(candidate: Candidate, held: list[Holding]) -> int:
    """What is gathered at the end of forward; stage 3 frees what is above 1e9 elements (of 16 bits)."""
    found = total(select(held, owner="gathered", phase="forward"))
    return min(found, 2 * DEEPSPEED_LIVE) if candidate.strategy == "deepspeed" else found


def _whole_bytes(candidate: Candidate, setting: Setting, held: list[Holding], units: list[Unit]) -> int:
    """What is gathered at most in backward: on GPUs the next unit is there before one is freed.

    FSDP2's list is of one unit, as on CPUs, where nothing is gathered ahead.
    """
    most = total(select(held, owner="gathered", phase=GATHERED_PEAK))
    if candidate.strategy == "deepspeed":
        return _kept_bytes(candidate, held)
    is_resharded = candidate.options.get("reshard_after_forward") is not False
    if candidate.strategy == "fsdp2" and is_resharded and setting.world_size > 1:
        most += _next_unit_bytes(setting, units)
    return most


def _next_unit_bytes(setting: Setting, units: list[Unit]) -> int:
    inner = [_bytes_in(unit.parameters, setting) for unit in units if unit.name != ROOT]
    return max((min(pair) for pair in pairwise(inner)), default=0)


def _in_flight_bytes(candidate: Candidate, setting: Setting, units: list[Unit]) -> int:
    """Gradients before they are reduced: of a unit, its copy for the reduce-scatter, and of the root.

    The root's are there for all of backward. DeepSpeed collects gradients in buckets, two at a time.
    """
    if candidate.strategy == "deepspeed":
        whole = sum(parameter.num_bytes for parameter in setting.layout.trainable)
        bucket = candidate.options["reduce_bucket_size"] * DTYPE_BYTES[setting.recipe.parameter_dtype]
        return min(whole, bucket) * (1 if candidate.options["stage"] == 3 else 2)
    if not candidate.strategy.startswith("fsdp") or setting.world_size == 1:
        return 0
    sizes = {unit.name: _bytes_in(unit.trainable, setting) for unit in units}
    root = sizes.pop(ROOT, 0)
    return root + 2 * max(sizes.values(), default=0)


@lru_cache(maxsize=4)
def _units(layout: Layout) -> list[Unit]:
    return units_of(layout)


def _bytes_in(parameters: tuple[Parameter, ...], setting: Setting) -> int:
    """Count parameters in the format in which they are gathered."""
    dtype = setting.recipe.gather_dtype
    return sum((parameter.cast(dtype) if dtype else parameter).num_bytes for parameter in parameters)


def layer_bytes(setting: Setting, made: Activations | None) -> int:
    """Count the largest unit, whole, with its gradient and what one micro-batch leaves in it."""
    unit = max(_bytes_in(unit.parameters, setting) for unit in _units(setting.layout))
    inside = max(made.kept.values(), default=0) + made.recomputed if made else 0
    return 2 * unit + inside + CONTEXT_BYTES
