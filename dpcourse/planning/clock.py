"""How long a candidate's step takes, and what it moves: its expected list laid out on a clock.

Computation is 6 operations for each parameter and token (2 forward, 4 backward), attention's own, and one
more forward of what is computed again, at a stated share of what the card can do. The optimizer's step is
left out.
Sources: Kaplan et al., Scaling laws for neural language models, 2020, section 2.1; Korthikanti et al., 2022.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from dpcourse.ledger import Transfer
from dpcourse.planning.activations import Microbatch
from dpcourse.planning.candidates import Candidate
from dpcourse.planning.hardware import Hardware
from dpcourse.planning.peak import DEEPSPEED_LIVE
from dpcourse.planning.subject import Subject
from dpcourse.strategies import STEADY_STEP, Setting, find
from dpcourse.theory.hierarchy import RING_COLLECTIVES, Machine, double_tree, transfer_seconds
from dpcourse.theory.schedule import schedule, step_seconds

UTILISATION = 0.4
# Of what is offloaded: a card's link to host memory, and host memory itself, which the host's ranks share.
HOST_LINK_BYTES_PER_SECOND, HOST_BYTES_PER_SECOND = 25e9, 100e9


@dataclass(frozen=True)
class StepTime:
    """A step of one rank. sent_bytes: what it sends; card_bytes: what its whole host sends to others."""

    seconds: float
    compute_seconds: float
    sent_bytes: float
    card_bytes: float
    num_collectives: int


def time_of(
    candidate: Candidate,
    setting: Setting,
    moved: list[Transfer],
    subject: Subject,
    micro: Microbatch,
    hardware: Hardware,
    utilisation: float,
    host_bytes: int,
) -> StepTime:
    """Lay the step of rank 0 out. moved: what `transfers_of` lists."""
    compute = compute_seconds(subject, micro, hardware, setting.recipe.computed_dtype, utilisation)
    strategy = find(candidate.strategy)
    seconds_of = _once(_seconds_of(hardware.machine, setting.world_size))
    card_bytes_of = _once(partial(_card_bytes, machine=hardware.machine))
    is_blocking = strategy.is_blocking(setting.options, "nccl")
    spans = schedule(moved, compute, seconds_of, is_blocking)
    offloaded = _offload_seconds(candidate, setting, host_bytes, hardware)
    return StepTime(
        step_seconds(spans) + offloaded,
        sum(compute.values()),
        sum(transfer.sent_bytes or 0 for transfer in moved),
        sum(map(card_bytes_of, moved)),
        len(moved),
    )


def transfers_of(strategy: str, setting: Setting) -> list[Transfer]:
    """List what rank 0 takes part in during a step; what starts a run is left out."""
    if setting.world_size == 1:
        return []
    moved = find(strategy).rank_traffic(setting, 0, STEADY_STEP)
    steady = [transfer for transfer in moved if transfer.phase != "init"]
    return steady + _gathered_again(strategy, setting, steady)


def _gathered_again(strategy: str, setting: Setting, moved: list[Transfer]) -> list[Transfer]:
    """What stage 3 frees after forward, above 1e9 elements, backward gathers once more."""
    if strategy != "deepspeed" or setting.options.stage != 3:
        return []
    again = 1 - DEEPSPEED_LIVE / setting.layout.num_params
    return [
        replace(
            transfer,
            payload_bytes=round(again * transfer.payload_bytes),
            sent_bytes=again * (transfer.sent_bytes or 0.0),
            phase="backward",
        )
        for transfer in moved
        if transfer.phase == "forward" and again > 0
    ]


def compute_seconds(
    subject: Subject, micro: Microbatch, hardware: Hardware, dtype: str, utilisation: float
) -> dict[str, float]:
    """Divide a micro-batch's operations by what the card reaches, for forward and for backward."""
    forward, again = operations(subject, micro)
    reached = utilisation * hardware.operations_per_second(dtype)
    return {"forward": forward / reached, "backward": (2 * forward + again) / reached}


def operations(subject: Subject, micro: Microbatch) -> tuple[float, float]:
    """Count the operations of a forward pass, and those that backward makes once more."""
    model, tokens = subject.architecture, micro.num_tokens
    products = 2.0 * subject.multiplied * tokens
    if model is None:
        return products, products if micro.checkpointing == "full" else 0.0
    # Scores and their product with values; fused attention leaves out what the causal mask hides, half.
    squares = 4.0 * model.depth * model.query_width * micro.sequence_length * tokens
    squares /= 2 if micro.attention == "fused" else 1
    head = 2.0 * model.width * model.vocabulary * tokens
    again = {"none": 0.0, "selective": squares, "full": products - head + squares}
    return products + squares, again[micro.checkpointing]


def _once(answer: Callable[[Transfer], float]) -> Callable[[Transfer], float]:
    """Ask once about transfers that are alike: a model of 80 blocks has few kinds of them."""
    known: dict[tuple, float] = {}

    def asked(transfer: Transfer) -> float:
        group = transfer.group
        key = (transfer.collective, transfer.payload_bytes, transfer.sent_bytes, len(group), group[-1])
        if key not in known:
            known[key] = answer(transfer)
        return known[key]

    return asked


def _seconds_of(machine: Machine, num_ranks: int) -> Callable[[Transfer], float]:
    """Time a collective on NCCL, which takes a tree for an all-reduce over all where that is quicker."""

    def seconds(transfer: Transfer) -> float:
        ring = transfer_seconds(transfer, machine, "nccl")
        if transfer.collective != "all_reduce" or len(transfer.group) < num_ranks:
            return ring
        return min(ring, double_tree(transfer.payload_bytes, machine, num_ranks).seconds)

    return seconds


def _card_bytes(transfer: Transfer, machine: Machine) -> float:
    """Count what a host's card carries of a collective while the host's ranks are all in one like it."""
    if transfer.collective not in RING_COLLECTIVES:
        return 0.0
    return (transfer.sent_bytes or 0.0) * machine.group(transfer.group).senders_across


def _offload_seconds(candidate: Candidate, setting: Setting, host_bytes: int, hardware: Hardware) -> float:
    """Shards to the card twice and gradients back, then the update in host memory, which reads and writes."""
    if not candidate.is_offloaded:
        return 0.0
    shards = setting.layout.parameter_bytes / setting.world_size
    update = 2 * host_bytes * hardware.ranks_per_host / HOST_BYTES_PER_SECOND
    return 3 * shards / HOST_LINK_BYTES_PER_SECOND + update
