"""What each rank does in a run: build, wrap, train bare steps, then one step under each meter.

Importing this file imports torch; the fork server does it once for all ranks.
"""

import contextlib
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from dpcourse import data, modules, pacing
from dpcourse.ledger import COUNTS, Holding, Moment, Span, Transfer
from dpcourse.measure.allocator import AllocatorMeter, is_counting
from dpcourse.measure.collectives import CollectiveMeter
from dpcourse.measure.cores import CoreMeter
from dpcourse.measure.counts import card_counted, counts_of, gpu_uuid
from dpcourse.measure.memory import MemoryMeter, Owned, StorageLedger, with_the_step_s
from dpcourse.measure.process import ProcessMeter
from dpcourse.measure.timeline import TimelineMeter
from dpcourse.measure.traffic import TrafficMeter
from dpcourse.ranks.queueing import WAITED_VARIABLE
from dpcourse.request import Request
from dpcourse.strategies import STEADY_STEP, Strategy, find

Mark = Callable[[str], None]


def train_rank(request: Request, has_traffic: bool) -> dict[str, Any]:
    """Train and measure on this rank; give a RankRecord as plain data."""
    cores, process = CoreMeter(), ProcessMeter()
    transfers, losses, seconds, trainer = _train(request)
    counts, pace = process.read(), str(trainer.pace or "")
    whole = trainer.strategy.whole_parameters(trainer.wrapped)
    norms = {name: parameter.float().norm().item() for name, parameter in whole.items()}
    del whole
    while trainer.num_steps < STEADY_STEP - 1:
        trainer.step()
    transfers += _measure_traffic(trainer)
    if has_traffic:
        check_captured(request, transfers)
    transfers += _measure_wire(trainer)
    spans = _measure_timeline(trainer, request, transfers)
    del trainer  # the meter of memory builds a second one
    holdings, moments, on_gpu = _measure_memory(request)
    use = cores.read()
    return {
        "rank": dist.get_rank(),
        "losses": losses,
        "step_seconds": seconds,
        "parameter_norms": norms,
        "holdings": [asdict(holding) for holding in holdings],
        "moments": [asdict(moment) for moment in moments],
        "process": counts | on_gpu,
        "transfers": [asdict(transfer) for transfer in transfers],
        "spans": [asdict(span) for span in spans],
        "cores": asdict(use) if use else None,
        "waited_seconds": float(os.environ.get(WAITED_VARIABLE, 0)),
        "environment": _environment(request.device) | ({"pace": pace} if pace else {}),
    }


class Trainer:
    """One rank's model, wrapped by a strategy, and its optimizer."""

    def __init__(self, request: Request) -> None:
        self.request, self.setting, self.device = request, request.setting, request.device
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.strategy: Strategy = find(request.strategy)
        module = self._build()
        self.pace = pacing.pace(module, request.pace_compute) if request.pace_compute else None
        if request.is_checkpointed:
            modules.checkpoint_blocks(module)
        self.wrapped = self.strategy.wrap(module, self.setting)
        self.optimizer = self.strategy.build_optimizer(self.wrapped, self.setting)
        self.num_steps = 0
        self.loss: torch.Tensor | None = None  # of the step that is under way

    def _build(self) -> torch.nn.Module:
        return self.request.model.build(self.request.seed).to(self.device, self._dtype())

    def _dtype(self) -> torch.dtype:
        return getattr(torch, self.setting.recipe.parameter_dtype)

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cut this rank's share of the next step's global batch, as tensors of their own."""
        inputs, targets = self.request.model.batch(
            self.request.batch_size, data.batch_seed(self.request.seed, self.num_steps)
        )
        return self._share(inputs), self._share(targets)

    def _share(self, tensor: torch.Tensor) -> torch.Tensor:
        num_shares = self.setting.num_shares
        place = self.rank // (self.world_size // num_shares)
        share = self.strategy.share(tensor, place, num_shares).clone().to(self.device)
        return share.to(self._dtype()) if share.is_floating_point() else share

    def step(self, mark: Mark = lambda phase: None) -> float | None:
        """Train one step on the next batch; `mark` is told the end of each phase.

        Returns the loss; None on a rank that computes none.
        """
        return self.step_on(*self.batch(), mark)

    def step_on(
        self, inputs: torch.Tensor, targets: torch.Tensor, mark: Mark = lambda phase: None
    ) -> float | None:
        self.num_steps += 1
        self.forward(inputs, targets)
        mark("forward")
        self.backward()
        mark("backward")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mark("step")
        return self._take_loss()

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        with self._formats():
            self.loss = self.strategy.loss(self.wrapped, inputs, targets)

    def _take_loss(self) -> float | None:
        assert self.loss is not None
        value, self.loss = self.strategy.loss_value(self.loss), None
        return value

    def backward(self) -> None:
        assert self.loss is not None
        self.strategy.backward(self.wrapped, self.loss)
        self.strategy.finish_backward(self.wrapped)

    def _formats(self) -> contextlib.AbstractContextManager:
        """Cast what forward computes, where the recipe says so."""
        dtype = self.setting.recipe.autocast_dtype
        return torch.autocast(self.device, getattr(torch, dtype)) if dtype else contextlib.nullcontext()


def _train(request: Request) -> tuple[list[Transfer], list[float | None], list[float], Trainer]:
    """Wrap under the meters of traffic, then train bare steps for losses and time."""
    meter, counts = CollectiveMeter(), counts_of(request.links)
    with meter:
        trainer = Trainer(request)
    counted = counts.since_last("init")
    meter.mark("init")
    transfers = [*trainer.strategy.name_transfers(meter.transfers, trainer.setting), *counted]
    losses, seconds = [], []
    for _ in range(request.steps):
        inputs, targets = trainer.batch()
        start = _now(trainer.device)
        losses.append(trainer.step_on(inputs, targets))
        seconds.append(_now(trainer.device) - start)
    return transfers, losses, seconds, trainer


def _measure_traffic(trainer: Trainer) -> list[Transfer]:
    """List one step's collectives as they were asked for; the flight recorder may not know of more."""
    meter, recorder = CollectiveMeter(), TrafficMeter()
    with meter:
        trainer.step(meter.mark)
    recorder.mark("step")
    check_all_seen(recorder.transfers, meter.transfers)
    return trainer.strategy.name_transfers(meter.transfers, trainer.setting)


def check_all_seen(recorded: list[Transfer], listed: list[Transfer]) -> None:
    """Refuse a list in which a collective is missing that torch's flight recorder knows of."""
    carried_out = [t for t in recorded if t.collective not in ("send", "recv", "barrier")]
    if len(carried_out) > len(listed):
        raise RuntimeError(
            f"a step made {len(carried_out)} collectives, and the meter was told of {len(listed)}; "
            "something called torch's process group past the dispatcher: call torch.distributed instead"
        )


def check_captured(request: Request, transfers: list[Transfer]) -> None:
    """Refuse an empty picture of a run that communicates."""
    if not [transfer for transfer in transfers if transfer.collective not in COUNTS]:
        raise RuntimeError(
            f"{request.strategy} on {request.world_size} ranks makes collectives, and none was captured; "
            "its meter saw no call of torch.distributed: make them in the thread that trains"
        )


def _measure_wire(trainer: Trainer) -> list[Transfer]:
    transfers: list[Transfer] = []
    with card_counted(trainer.request.links, transfers):
        counts = counts_of(trainer.request.links)
        trainer.step(lambda phase: transfers.extend(counts.since_last(phase)))
    return transfers


def _measure_timeline(trainer: Trainer, request: Request, transfers: list[Transfer]) -> list[Span]:
    meter = TimelineMeter()
    inputs, targets = trainer.batch()
    with meter:
        trainer.step_on(inputs, targets, meter.mark)
    return meter.spans(
        [t.unit for t in transfers if t.phase != "init" and t.collective not in COUNTS],
    )


def _measure_memory(request: Request) -> tuple[list[Holding], tuple[Moment, ...], dict[str, int]]:
    """Train a second instance with every storage watched, up to a steady step, and report that step."""
    with StorageLedger() as ledger:
        allocator = AllocatorMeter(ledger) if request.device == "cuda" and is_counting() else None
        trainer = Trainer(request)
        for _ in range(STEADY_STEP - 1):
            trainer.step()
        inputs, targets = trainer.batch()

        def owned() -> Owned:
            of_trainer = trainer.strategy.owned(trainer.wrapped, trainer.optimizer)
            return with_the_step_s(of_trainer, inputs, targets, trainer.loss)

        def mark(phase: str) -> None:
            meter.mark(phase)
            if allocator:
                allocator.mark(phase)

        meter = MemoryMeter(ledger, owned, trainer.rank)
        meter.start_step()
        with meter.keep_for_backward():
            trainer.step_on(inputs, targets, mark)
    return meter.finish(), meter.moments(), allocator.counts if allocator else {}


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _environment(device: str) -> dict[str, str]:
    """Say what this rank ran on; the card's own number tells which ranks share one."""
    is_gpu = device == "cuda"
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.system(),
        "backend": dist.get_backend(),
        "device": torch.cuda.get_device_name() if is_gpu else "cpu",
        **({"card": gpu_uuid()} if is_gpu else {}),
        "threads": str(torch.get_num_threads()),
        "measured": "times in bare steps; collectives, the wire, timeline and memory each in another",
    }
