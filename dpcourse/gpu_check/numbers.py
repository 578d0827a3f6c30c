"""Steps about what is computed: number formats, checkpoints, and nn.DataParallel itself."""

import dpcourse as dc
from dpcourse.gpu_check.place import Place
from dpcourse.gpu_check.report import Check
from dpcourse.gpu_check.running import (
    BF16_LOSS,
    Note,
    Skipped,
    judge,
    judge_ledgers,
    judge_losses,
    on_cpu,
    train,
)
from dpcourse.ledger import total

_NUMBERS = 1000
_RECIPES = (("ddp", "bf16"), ("fsdp2", "fsdp-mixed"), ("ddp", "mixed-adam"), ("ddp", "autocast"))


def start(place: Place, note: Note) -> None:
    """The fork server is up with all that ranks import, and they add up numbers on the device."""
    asked = {"ranks": place.ranks, "device": place.device, "backend": place.backend}
    found = dc.launch(_added_up, place.device, everything=True, deadline_seconds=45.0, **asked)
    expected = [_NUMBERS * sum(range(1, place.ranks + 1))] * place.ranks
    judge(f"an all-reduce on {place.ranks} ranks", found, expected, note)


def _added_up(device: str) -> float:
    """In a rank: all ranks' numbers, each rank's number and one."""
    import torch
    import torch.distributed as dist

    own = torch.full((_NUMBERS,), dist.get_rank() + 1.0, device=device)
    dist.all_reduce(own)
    return own.sum().item()


def recipes(place: Place, note: Note) -> None:
    """Ledgers of bf16 recipes to the byte, and losses near those of fp32."""
    plain = on_cpu("single")
    for strategy, recipe in _RECIPES[: 1 if place.is_quick else None]:
        run = train(place, strategy, recipe=recipe)
        judge_ledgers(run, note)
        judge_losses(run, plain, note, BF16_LOSS)


def checkpointing(place: Place, note: Note) -> None:
    """Checkpoints hold fewer activations, and change no loss."""
    whole, less = (train(place, "ddp", model="gpt-small", checkpointing=asked) for asked in (False, True))
    held = [total(run.memory.measured, owner="activations", phase="forward", rank=0) for run in (whole, less)]
    found = f"{held[1]} bytes of activations for {held[0]}"
    note(Check("checkpoints, end of forward", found, "fewer", held[1] < held[0]))
    judge_losses(less, whole, note)


def dataparallel(place: Place, note: Note) -> None:
    """The real nn.DataParallel, one process with a thread for each card."""
    if place.num_gpus < 2:
        raise Skipped(f"nn.DataParallel drives two GPUs or more, and there are {place.num_gpus}")
    run = train(place, "dp", ranks=1, backend=None, threads=True, optimizer="momentum")
    judge_losses(run, on_cpu("single", optimizer="momentum"), note)
