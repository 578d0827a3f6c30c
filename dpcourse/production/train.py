"""Train a small GPT under DDP or FSDP2; a run that was interrupted goes on from its checkpoint exactly.

One machine, two ranks:

    torchrun --nproc-per-node 2 -m dpcourse.production.train --strategy fsdp2 --folder my/gpt

Several machines, the same line on each (train.slurm has it for Slurm; `dpcourse torchrun` is torchrun whose
restarted ranks never meet the addresses of those before them):

    dpcourse torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST0:29500 \\
      --max-restarts 3 -m dpcourse.production.train --strategy fsdp2 --folder /shared/gpt

Copy this file with checkpoints.py, and change what is yours: the model, the data, the schedule.
"""

import argparse
import json
import math
import os
import random
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, TensorDataset

from dpcourse.data import token_sequences
from dpcourse.modules import Block
from dpcourse.production.checkpoints import Checkpoints

VOCABULARY, CONTEXT, NUM_SAMPLES = 64, 16, 256


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small GPT under DDP or FSDP2, and resume by itself."
    )
    parser.add_argument("--strategy", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--folder", type=Path, required=True, help="of checkpoints; one that all hosts share")
    parser.add_argument("--steps", type=count, default=100)
    parser.add_argument("--batch-size", type=count, default=16, help="of all ranks together")
    parser.add_argument("--learning-rate", type=amount, default=3e-3)
    parser.add_argument("--checkpoint-every", type=count, default=20, help="steps")
    parser.add_argument("--keep", type=count, default=2, help="how many checkpoints stay")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout-seconds", type=amount, default=600, help="when a collective gives up")
    return parser.parse_args(arguments)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from 1 on")
    return int(text)


def amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0")
    return number


@record  # torchrun's summary then shows the error of the rank that failed first
def main() -> None:
    """Join the other ranks, train, and leave them whatever happens."""
    options = read_options()
    is_gpu = torch.cuda.is_available()
    if is_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # Without a timeout of its own, a rank whose peer has gone silent waits for half an hour.
    timeout = timedelta(seconds=options.timeout_seconds)
    dist.init_process_group("nccl" if is_gpu else "gloo", timeout=timeout)
    try:
        train(options, torch.device("cuda" if is_gpu else "cpu"))
    finally:
        dist.destroy_process_group()


def train(options: argparse.Namespace, device: torch.device) -> None:
    """Train from the newest checkpoint, or from the start, to the last step."""
    torch.manual_seed(options.seed)  # the same weights on every rank
    model = wrap(Gpt().to(device), options.strategy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)  # after wrapping: shards
    seed_everything(options.seed + 1 + dist.get_rank())  # from here on ranks draw different dropout masks
    checkpoints = Checkpoints(options.folder, options.keep)
    step = checkpoints.resume(model, optimizer)
    samples, log = Samples(options), LossLog(options.folder / "losses.jsonl", step)
    is_told_to_stop = listen_for_the_end()
    while step < options.steps:
        inputs, targets = (tensor.to(device) for tensor in samples.batch(step))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, options)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of the whole gradient, also where it is in shards
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        mean_loss, is_ending = mean_over_ranks([loss.item(), is_told_to_stop()], device)
        log.add(step, mean_loss)
        if is_ending or step % options.checkpoint_every == 0 or step == options.steps:
            checkpoints.save(model, optimizer, step)
        if is_ending and step < options.steps:
            raise SystemExit(f"told to end: step {step} is saved, and the next start goes on from there")


def wrap(model: nn.Module, strategy: str) -> nn.Module:
    """Put the model under DDP, or shard it in place with FSDP2, a unit for each block."""
    if strategy == "ddp":
        return DistributedDataParallel(model)
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block)  # a unit of its own: gathered just before it computes, freed after
    fully_shard(model)
    return model


def learning_rate(step: int, options: argparse.Namespace) -> float:
    """Warm up over a tenth of the steps, then follow half a cosine down to a tenth."""
    warm_up = max(1, options.steps // 10)
    done = min(1.0, max(0, step - warm_up) / max(1, options.steps - warm_up))
    return options.learning_rate * min(1.0, (step + 1) / warm_up) * (0.55 + 0.45 * math.cos(math.pi * done))


def mean_over_ranks(numbers: list[float], device: torch.device) -> list[float]:
    """Agree on several numbers in one all-reduce: a rank that stopped alone would leave the rest waiting."""
    total = torch.tensor(numbers, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return (total / dist.get_world_size()).tolist()


class Samples:
    """Shuffled anew in each epoch; which samples a rank gets is decided by the step alone."""

    def __init__(self, options: argparse.Namespace) -> None:
        num_ranks = dist.get_world_size()
        if options.batch_size % num_ranks or options.batch_size > NUM_SAMPLES:
            raise SystemExit(
                f"--batch-size {options.batch_size}: {num_ranks} ranks need a multiple, up to {NUM_SAMPLES}"
            )
        self.share = options.batch_size // num_ranks
        self.samples = TensorDataset(*token_sequences(NUM_SAMPLES, CONTEXT, VOCABULARY, options.seed))
        self.sampler: DistributedSampler = DistributedSampler(self.samples, seed=options.seed, drop_last=True)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        epoch, place = divmod(step, len(self.sampler) // self.share)
        self.sampler.set_epoch(epoch)  # forgotten, every epoch would have the order of the first
        return self.samples[list(self.sampler)[place * self.share : (place + 1) * self.share]]


class Gpt(nn.Module):
    """Token and position tables, blocks with dropout after each, a head."""

    def __init__(self, width: int = 32, heads: int = 2, depth: int = 2) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        stream = self.dropout(self.tokens(tokens) + self.positions(places))
        for block in self.blocks:
            stream = self.dropout(block(stream))
        return self.head(stream)


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # GPUs as well


class LossLog:
    """One JSON line a step, written by rank 0; lines after the step that is resumed are dropped."""

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.is_writing = path, dist.get_rank() == 0
        if self.is_writing:
            kept = path.read_text().splitlines(keepends=True)[:step] if path.exists() else []
            path.write_text("".join(kept))

    def add(self, step: int, loss: float) -> None:
        if self.is_writing:
            with self.path.open("a") as file:
                file.write(json.dumps({"step": step, "loss": loss}) + "\n")


def listen_for_the_end() -> Callable[[], bool]:
    """Slurm and torchrun announce the end with SIGTERM; then there is time for one more checkpoint."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    return lambda: bool(told)


if __name__ == "__main__":
    main()
