"""The training script on trial: left alone, changed in one part, or with a rank killed under torchrun.

All on CPU ranks of this machine. The agent is torch's own, the one that `torchrun` starts on each host.
"""

import argparse
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpcourse.ranks.launch import launch
from dpcourse.show import Shown

STEPS, CHECKPOINT_EVERY, KILLED_STEP = 18, 6, 15
DEADLINE_SECONDS = 180.0  # a busy machine needs a fifth of it
_PEERS_WAIT_SECONDS = 5.0  # for the agent to end them
Change = Callable[[], Any]


@dataclass(frozen=True, repr=False)
class Restarted(Shown):
    """What torchrun's agent saw: each process that failed, what the ranks said after, and all losses."""

    failures: tuple[str, ...]
    said: tuple[str, ...]
    losses: tuple[float, ...]

    def __str__(self) -> str:
        return "\n".join([*self.failures, *self.said, f"{len(self.losses)} steps are in the log"])


def run_script(
    folder: str | Path, *options: str, ranks: int = 2, change: Change | None = None
) -> tuple[float, ...]:
    """Run dpcourse.production.train on fresh ranks, and give the loss of each step of its log.

    Args:
        folder: of its checkpoints; with a checkpoint in it the run goes on from there.
        options: more of the script's own, such as "--strategy", "fsdp2".
        change: called on each rank before the script, to replace a part of it.

    Raises:
        RankError: as `launch` does.
    """
    launch(
        _train,
        arguments_of(folder, options),
        change,
        ranks=ranks,
        device="cpu",
        everything=True,
        deadline_seconds=DEADLINE_SECONDS,
    )
    return losses(folder)


def run_killed(
    folder: str | Path, *options: str, ranks: int = 2, rank: int = 1, step: int = KILLED_STEP
) -> Restarted:
    """Run the script under torchrun's agent; `rank` is killed with SIGKILL before `step`, once.

    The agent ends the other ranks and starts all of them again, and nobody tells them where to go on.

    Raises:
        ValueError: no such rank or step.
    """
    arguments = arguments_of(folder, options)
    check_kill(ranks, rank, step, arguments)
    failures, said = launch(
        _be_the_agent,
        arguments,
        ranks,
        rank,
        step,
        ranks=1,
        device="cpu",
        everything=True,
        env=_APART,
        deadline_seconds=DEADLINE_SECONDS,
    )[0]
    return Restarted(failures, said, losses(folder))


def cut_short(folder: str | Path, copy: str | Path) -> None:
    """Copy a run as if it had been interrupted: its newest checkpoint is missing, so that a start resumes.

    Raises:
        ValueError: a folder with fewer than two checkpoints.
    """
    saved = sorted(Path(folder).glob("step_*"))
    if len(saved) < 2:
        raise ValueError(f"{folder} has {len(saved)} checkpoints; without its newest, one has to be left")
    shutil.copytree(folder, copy)
    shutil.rmtree(Path(copy) / saved[-1].name)


# A store that outlives a restart hands the new ranks the old ones' addresses (dpcourse.ranks.agent).
_APART = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "CUDA_VISIBLE_DEVICES": ""}


def arguments_of(folder: str | Path, options: tuple[str, ...] = ()) -> list[str]:
    """The script's command line; of an option said twice, the second holds."""
    own = ["--folder", str(folder), "--steps", str(STEPS), "--checkpoint-every", str(CHECKPOINT_EVERY)]
    return [*own, *options]


def check_kill(ranks: int, rank: int, step: int, arguments: list[str]) -> None:
    """Refuse a rank that there is not, and a step that the run would never come to."""
    from dpcourse.production.train import read_options

    steps = read_options(arguments).steps
    if rank not in range(ranks):
        raise ValueError(f"rank={rank} was to be killed, and {ranks} ranks are 0 to {ranks - 1}")
    if step not in range(1, steps):
        raise ValueError(f"step={step}: the run has {steps} steps; kill before one from 1 to {steps - 1}")


def losses(folder: str | Path) -> tuple[float, ...]:
    """The loss of each step, from the log that rank 0 keeps."""
    lines = (Path(folder) / "losses.jsonl").read_text().splitlines()
    return tuple(json.loads(line)["loss"] for line in lines)


# -- in each rank


def _train(arguments: list[str], change: Change | None) -> None:
    import torch

    from dpcourse.production import train

    if change:
        change()
    torch.set_num_threads(1)
    train.train(train.read_options(arguments), torch.device("cpu"))


def _be_the_agent(
    arguments: list[str], ranks: int, rank: int, step: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Leave the launcher's group and be torchrun's agent of one host, whose ranks are forks of this process.

    Gives the failures that the agent noted, and what all ranks printed.
    """
    import torch.distributed as dist
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    dist.destroy_process_group()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        max_restarts=1,
        monitor_interval=0.05,
        start_method="fork",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1",
    )
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile() as logged:
        os.dup2(printed.fileno(), 1)
        os.dup2(logged.fileno(), 2)  # times and process ids; an error that counts is raised
        failures = _noted_failures()
        elastic_launch(config, _train_killed_once)(arguments, rank, step)
        printed.seek(0)
        return tuple(failures), tuple(printed.read().splitlines())


def _noted_failures() -> list[str]:
    """A list that grows with each process that torch's agent reports as failed."""
    found: list[str] = []

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if failed := re.match(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)", record.getMessage()):
                found.append(f"local rank {failed[2]} {_ended(int(failed[1]))}")

    logging.getLogger("torch.distributed.elastic.multiprocessing.api").addHandler(Notes())
    return found


def _ended(exit_code: int) -> str:
    killed = f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else ""
    return killed or f"ended with exit code {exit_code}"


def _train_killed_once(arguments: list[str], rank: int, last: int) -> None:
    """Be a rank that torchrun started; the chosen one ends itself, as a machine that breaks down would."""
    import torch

    from dpcourse.production import train

    learning_rate = train.learning_rate

    def with_an_end(step: int, options: argparse.Namespace) -> float:
        is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if is_first and step == last and int(os.environ["RANK"]) == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return learning_rate(step, options)

    train.learning_rate = with_an_end
    torch.set_num_threads(1)
    sys.argv = ["train.py", *arguments]
    try:
        train.main()
    except RuntimeError:  # its peer has gone: the agent, which names one that failed, is to see the first
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(_PEERS_WAIT_SECONDS)
        raise
