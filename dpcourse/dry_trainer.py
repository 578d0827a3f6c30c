"""What the one process of a dry run does: a rank's training on fake tensors, under the meters of a run."""

import platform
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensorMode,
    unset_fake_temporarily,
)

from dpcourse.ledger import Transfer
from dpcourse.measure.collectives import CollectiveMeter
from dpcourse.measure.memory import MemoryMeter, Owned, StorageLedger, with_the_step_s
from dpcourse.measure.paper import Shortcuts, on_paper
from dpcourse.measure.process import ProcessMeter
from dpcourse.request import Request
from dpcourse.run import RankRecord
from dpcourse.theory import wire
from dpcourse.trainer import Trainer

_WARM_STEPS = 1  # the optimizer's states are there: from now on every step of FSDP is like the next


def dry_rank(request: Request, rank: int) -> RankRecord:
    """Train as one rank of request.world_size, none of them there."""
    process = ProcessMeter()
    calls = CollectiveMeter()
    with (
        on_paper(rank, request.world_size) as mode,
        StorageLedger(counts_fake=True) as ledger,
        Shortcuts(),
    ):
        trainer = _warmed_up(request, mode, calls)
        memory = _metered_step(trainer, calls, ledger, rank)
    transfers = trainer.strategy.name_transfers(calls.transfers, trainer.setting)
    return RankRecord(
        rank=rank,
        losses=(),
        step_seconds=(),
        parameter_norms={},
        holdings=tuple(memory.finish()),
        transfers=tuple(_with_sent(transfer, request) for transfer in transfers),
        spans=(),
        environment=_environment(),
        moments=memory.moments(),
        process=process.read(),
    )


def _warmed_up(request: Request, mode: FakeTensorMode, calls: CollectiveMeter) -> "DryTrainer":
    """Build a trainer, its collectives counted, and take the steps after which all are alike."""
    with calls:
        trainer = DryTrainer(request, mode)
    calls.mark("init")
    for _ in range(_WARM_STEPS):
        _try_step(trainer)
    return trainer


def _metered_step(
    trainer: "DryTrainer", calls: CollectiveMeter, ledger: StorageLedger, rank: int
) -> MemoryMeter:
    """Take one step under the meters of collectives and of memory."""
    inputs, targets = trainer.batch()

    def owned() -> Owned:
        return with_the_step_s(trainer.owned(), inputs, targets, trainer.loss)

    def mark(phase: str) -> None:
        calls.mark(phase)
        memory.mark(phase)

    memory = MemoryMeter(ledger, owned, rank)
    memory.start_step()
    with calls, memory.keep_for_backward():
        trainer.step_on(inputs, targets, mark)
    return memory


def _try_step(trainer: "DryTrainer") -> None:
    try:
        trainer.step()
    except DataDependentOutputException as error:
        raise ValueError(
            f"{trainer.request.model.name} decides by a number of a tensor ({error.func}), and tensors have "
            "none in a dry run; let its forward use tensors' sizes alone, or ask dc.expect"
        ) from error


class DryTrainer(Trainer):
    """A trainer whose tensors have no contents: its loss is no number, and its batch one of any numbers."""

    def __init__(self, request: Request, mode: FakeTensorMode) -> None:
        self.mode = mode
        super().__init__(request)

    def _build(self) -> nn.Module:
        """Cast each tensor in place: module.to() would swap it, which a fake tensor refuses."""
        module = self.request.model.build(self.request.seed)
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point() and tensor.dtype != self._dtype():
                tensor.data = tensor.data.to(self._dtype())
        return module

    def batch(self) -> tuple[Tensor, Tensor]:
        """Make a batch of the size of this rank's share, and forget its numbers."""
        share_size = self.request.batch_size // self.setting.num_shares
        with unset_fake_temporarily():
            inputs, targets = self.request.model.batch(share_size, self.request.seed)
        return self._forget(inputs), self._forget(targets)

    def _forget(self, tensor: Tensor) -> Tensor:
        share = self.mode.from_tensor(tensor).clone()
        return share.to(self._dtype()) if share.is_floating_point() else share

    def _take_loss(self) -> None:
        self.loss = None

    def owned(self) -> list[tuple[str, str, Tensor]]:
        """Name all that has an owner; a mesh shows its table, whose numbers are real."""
        with unset_fake_temporarily():
            return list(self.strategy.owned(self.wrapped, self.optimizer))


def _with_sent(transfer: Transfer, request: Request) -> Transfer:
    """Give a call that was made with what its rank would send for it."""
    position = transfer.group.index(transfer.rank)
    size = len(transfer.group)
    sent = wire.sent_bytes(request.backend, transfer.collective, transfer.payload_bytes, size, position)
    return replace(transfer, sent_bytes=sent)


def _environment() -> dict[str, str]:
    return {
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "system": platform.system(),
        "backend": "fake",
        "device": "none",
        "measured": "one step, on fake tensors and a fake process group",
    }
