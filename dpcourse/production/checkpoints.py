"""Checkpoints of a run on several ranks, each of which writes and reads its own part at the same time.

Five things make a resumed run equal one that was never interrupted: weights, optimizer state, the number of
the step (which decides learning rate and samples), the random state of every rank (dropout draws from it),
and a checkpoint that is either whole or not there.
"""

import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class Checkpoints:
    """A folder that all hosts share: step_00000020 is whole, step_00000020.partial is still being written."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self.keep = folder, keep

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Write each rank's part, then make the whole visible at once: a rename cannot be half done."""
        place = self.folder / f"step_{step:08d}"
        weights, moments = get_state_dict(model, optimizer)  # plain names, shards as they are
        state = {"model": weights, "optimizer": moments, "step": step}
        state["random"] = {str(dist.get_rank()): pickle.dumps(random_states())}
        dcp.save(state, checkpoint_id=f"{place}.partial")  # ends on all ranks together
        if dist.get_rank() == 0:
            Path(f"{place}.partial").rename(place)
            for old in self._whole()[: -self.keep]:
                shutil.rmtree(old)

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load the newest whole checkpoint, if there is one, and give the number of steps it has seen."""
        newest: list[Path | None] = [self._start() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(newest)  # rank 0 decides: two hosts could see two different newest ones
        place = newest[0]
        if place is None:
            return 0
        if not place.exists():
            raise SystemExit(
                f"rank {dist.get_rank()} does not see {place}: --folder must be one that all hosts share"
            )
        weights, moments = get_state_dict(model, optimizer)
        state: dict[str, Any] = {"model": weights, "optimizer": moments, "step": 0}
        try:
            saved = dcp.FileSystemReader(place).read_metadata().state_dict_metadata
            num_saved = sum(name.startswith("random.") for name in saved)
            if is_same := num_saved == dist.get_world_size():
                state["random"] = {str(dist.get_rank()): b""}
            dcp.load(state, checkpoint_id=place)  # every rank reads the parts that its own shards need
        except (Exception, CheckpointException) as error:  # the latter is no Exception
            raise SystemExit(_unreadable(place, error)) from error
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
        if is_same:
            set_random_states(pickle.loads(state["random"][str(dist.get_rank())]))
        if dist.get_rank() == 0:
            print(f"goes on from {place.name}{'' if is_same else _other_ranks(num_saved)}")
        return state["step"]

    def _start(self) -> Path | None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob("step_*.partial"):
            shutil.rmtree(leftover)
        return max(self._whole(), default=None)

    def _whole(self) -> list[Path]:
        return sorted(self.folder.glob("step_" + "[0-9]" * 8))


def random_states() -> list[Any]:
    """All that this rank draws from."""
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return [random.getstate(), np.random.get_state(), torch.get_rng_state(), gpu]


def set_random_states(states: list[Any]) -> None:
    """Draw on from where `random_states` was asked."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if states[3] is not None:
        torch.cuda.set_rng_state(states[3])


def _unreadable(place: Path, error: BaseException) -> str:
    cause = next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error
    return (
        f"{place} cannot be read ({type(cause).__name__}: {cause}): where a file of it is damaged, remove "
        "the folder, and the next start goes on from the checkpoint before; where it is another model's, "
        "give another --folder"
    )


def _other_ranks(num_saved: int) -> str:
    return (
        f", which {num_saved} ranks saved, on {dist.get_world_size()}. Exact: weights, optimizer, learning "
        "rate, each step's samples. Not exact: dropout masks, rounding of sums"
    )
