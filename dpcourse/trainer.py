"""What each rank does in a run: build, wrap, train bare steps, then one step under each meter.

Importing this file imports torch; the fork server does it once for all ranks.
"""

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from dpcourse import data, modules
from dpcourse.ledger import KERNEL_COUNT, Holding, Span, Transfer
from dpcourse.measure.memory import MemoryMeter, StorageLedger
from dpcourse.measure.timeline import TimelineMeter
from dpcourse.measure.traffic import TrafficMeter
from dpcourse.measure.wire import WireCounter
from dpcourse.request import Request
from dpcourse.strategies import STEADY_STEP, find
from dpcourse.strategies.common import build_optimizer, owned_tensors

Mark = Callable[[str], None]


def train_rank(request: Request, has_traffic: bool) -> dict[str, Any]:
    """Train and measure on this rank; give a RankRecord as plain data."""
    transfers, losses, seconds, trainer = _train(request)
    norms = {name: parameter.norm().item() for name, parameter in trainer.module.named_parameters()}
    while trainer.num_steps < STEADY_STEP - 1:
        trainer.step()
    transfers += _measure_traffic(trainer)
    if has_traffic:
        _check_traffic(request, transfers)
    transfers += _measure_wire(trainer)
    spans = _measure_timeline(trainer, request, transfers)
    del trainer  # the meter of memory builds a second one
    holdings = _measure_memory(request)
    return {
        "rank": dist.get_rank(),
        "losses": losses,
        "step_seconds": seconds,
        "parameter_norms": norms,
        "holdings": [asdict(holding) for holding in holdings],
        "transfers": [asdict(transfer) for transfer in transfers],
        "spans": [asdict(span) for span in spans],
        "environment": _environment(),
    }


class Trainer:
    """One rank's model, wrapped by a strategy, and its optimizer."""

    def __init__(self, request: Request) -> None:
        self.request, self.device = request, _device()
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.module = request.model.build(request.seed).to(self.device)
        self.wrapped = find(request.strategy).wrap(self.module, request.options)
        self.optimizer = build_optimizer(request.optimizer, self.module)
        self.num_steps = 0
        self.loss: torch.Tensor | None = None  # of the step that is under way

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Cut this rank's share of the next step's global batch, as tensors of their own."""
        inputs, targets = self.request.model.batch(
            self.request.batch_size, data.batch_seed(self.request.seed, self.num_steps)
        )
        shares = [data.share_of(tensor, self.rank, self.world_size) for tensor in (inputs, targets)]
        return shares[0].clone().to(self.device), shares[1].clone().to(self.device)

    def step(self, mark: Mark = lambda phase: None) -> float:
        """Train one step on the next batch; `mark` is told the end of each phase. Returns the loss."""
        return self.step_on(*self.batch(), mark)

    def step_on(self, inputs: torch.Tensor, targets: torch.Tensor, mark: Mark = lambda phase: None) -> float:
        self.num_steps += 1
        self.loss = modules.loss_of(self.wrapped(inputs), targets)
        mark("forward")
        self.loss.backward()
        mark("backward")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        mark("step")
        loss, self.loss = self.loss.item(), None
        return loss


def _train(request: Request) -> tuple[list[Transfer], list[float], list[float], Trainer]:
    """Wrap under the meters of traffic, then train bare steps for losses and time."""
    traffic, wire = TrafficMeter(), WireCounter()
    trainer = Trainer(request)
    counted = _kernel_count("init", wire)
    traffic.mark("init")
    transfers = [*find(request.strategy).name_transfers(traffic.transfers), *counted]
    losses, seconds = [], []
    for _ in range(request.steps):
        inputs, targets = trainer.batch()
        start = _now(trainer.device)
        losses.append(trainer.step_on(inputs, targets))
        seconds.append(_now(trainer.device) - start)
    return transfers, losses, seconds, trainer


def _measure_traffic(trainer: Trainer) -> list[Transfer]:
    meter = TrafficMeter()
    trainer.step(meter.mark)
    return find(trainer.request.strategy).name_transfers(meter.transfers)


def _check_traffic(request: Request, transfers: list[Transfer]) -> None:
    """Refuse an empty picture of a run that communicates."""
    if not [transfer for transfer in transfers if transfer.collective != KERNEL_COUNT]:
        raise RuntimeError(
            f"{request.strategy} on {dist.get_world_size()} ranks makes collectives, and torch's flight "
            "recorder captured none; unset TORCH_FR_BUFFER_SIZE, or give it a number above 0"
        )


def _measure_wire(trainer: Trainer) -> list[Transfer]:
    wire, transfers = WireCounter(), []
    trainer.step(lambda phase: transfers.extend(_kernel_count(phase, wire)))
    return transfers


def _kernel_count(phase: str, wire: WireCounter) -> list[Transfer]:
    """One row with what the sockets sent in a phase; none without a count, or without another rank."""
    sent = wire.sent_since_last()
    if sent is None or dist.get_world_size() == 1:
        return []
    group = tuple(range(dist.get_world_size()))
    return [Transfer(KERNEL_COUNT, "sockets", group, 0, sent, phase, dist.get_rank())]


def _measure_timeline(trainer: Trainer, request: Request, transfers: list[Transfer]) -> list[Span]:
    meter = TimelineMeter()
    inputs, targets = trainer.batch()
    with meter:
        trainer.step_on(inputs, targets, meter.mark)
    return meter.spans(
        [t.unit for t in transfers if t.phase != "init" and t.collective != KERNEL_COUNT],
    )


def _measure_memory(request: Request) -> list[Holding]:
    """Train a second instance with every storage watched, up to a steady step, and report that step."""
    with StorageLedger() as ledger:
        trainer = Trainer(request)
        for _ in range(STEADY_STEP - 1):
            trainer.step()
        inputs, targets = trainer.batch()

        def owned() -> Iterator[tuple[str, str, torch.Tensor]]:
            yield from owned_tensors(trainer.module, trainer.optimizer)
            yield "other", "batch", inputs
            yield "other", "batch", targets
            if trainer.loss is not None:
                yield "other", "loss", trainer.loss

        meter = MemoryMeter(ledger, owned, trainer.rank)
        meter.start_step()
        with meter.keep_for_backward():
            trainer.step_on(inputs, targets, meter.mark)
    return meter.finish()


def _device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _environment() -> dict[str, str]:
    """Say what this rank ran on."""
    is_gpu = _device() == "cuda"
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.system(),
        "backend": dist.get_backend(),
        "device": torch.cuda.get_device_name() if is_gpu else "cpu",
        "threads": str(torch.get_num_threads()),
    }
