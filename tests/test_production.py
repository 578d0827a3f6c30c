"""The training script: what it saves is whole, what goes on from it is exact, and Slurm can start it."""

import argparse
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import dpcourse as dc
from dpcourse import production
from dpcourse.production.train import read_options
from tests.production import losses, train_here

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps with a checkpoint of step 8, all that came later lost."""
    folder = tmp_path_factory.mktemp("interrupted") / "gpt"
    dc.launch(train_here, arguments(folder), everything=True)
    shutil.rmtree(folder / "step_00000012")
    return folder


def arguments(folder: Path, *more: str) -> list[str]:
    return ["--folder", str(folder), "--steps", "12", "--checkpoint-every", "4", *more]


def resumed(
    interrupted: Path, folder: Path, change: Callable[[], None] | None = None, ranks: int = 2
) -> list[float]:
    shutil.copytree(interrupted, folder)
    dc.launch(train_here, arguments(folder), change, ranks=ranks, everything=True)
    return losses(folder)


def test_a_checkpoint_that_is_half_written_is_never_taken(interrupted, tmp_path):
    whole = losses(interrupted)
    (interrupted / "step_00000010.partial").mkdir(exist_ok=True)
    assert resumed(interrupted, tmp_path / "gpt") == whole
    assert not (tmp_path / "gpt" / "step_00000010.partial").exists()


def forget_random_states() -> None:
    from dpcourse.production import checkpoints

    checkpoints.set_random_states = lambda states: None


def test_without_the_random_states_the_losses_would_differ(interrupted, tmp_path):
    whole, other = losses(interrupted), resumed(interrupted, tmp_path / "gpt", forget_random_states)
    assert other[:8] == whole[:8]
    assert all(found != expected for found, expected in zip(other[8:], whole[8:], strict=True))


def test_on_another_number_of_ranks_the_script_says_what_is_exact(interrupted, tmp_path, capfd):
    whole, other = losses(interrupted), resumed(interrupted, tmp_path / "gpt", ranks=4)
    assert other[:8] == whole[:8]
    assert other[8:] == pytest.approx(whole[8:], rel=0.05)  # other dropout masks
    said = "step_00000008, which 2 ranks saved, on 4. Exact: weights, optimizer, learning rate"
    assert said in capfd.readouterr().out


def be_told_to_end_at_step_5() -> None:
    """Let rank 1 alone hear the signal: the others must hear of it from the rank."""
    import torch.distributed as dist

    from dpcourse.production import train

    learning_rate = train.learning_rate

    def told(step: int, options: argparse.Namespace) -> float:
        if step == 5 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return learning_rate(step, options)

    train.learning_rate = told


def test_a_run_that_is_told_to_end_saves_on_all_ranks_and_goes_on_exactly(interrupted, tmp_path):
    with pytest.raises(dc.RankError, match="told to end: step 6 is saved, and the next start"):
        dc.launch(train_here, arguments(tmp_path), be_told_to_end_at_step_5, everything=True)
    assert (tmp_path / "step_00000006").exists()
    dc.launch(train_here, arguments(tmp_path), everything=True)
    assert losses(tmp_path) == losses(interrupted)


@pytest.mark.parametrize(
    ("name", "raised"), [("__0_0.distcp", "FileNotFoundError"), (".metadata", "EOFError")]
)
def test_a_damaged_checkpoint_is_named_with_the_way_out(name, raised, interrupted, tmp_path):
    shutil.copytree(interrupted, tmp_path / "gpt")
    file = tmp_path / "gpt" / "step_00000008" / name
    file.unlink()
    if name == ".metadata":
        file.write_bytes(b"")
    with pytest.raises(dc.RankError, match=rf"step_00000008 cannot be read \({raised}.*remove the folder"):
        dc.launch(train_here, arguments(tmp_path / "gpt"), everything=True)


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--checkpoint-every", "0", "give a whole number from 1 on"),
        ("--keep", "-1", "give a whole number from 1 on"),
        ("--steps", "ten", "give a whole number from 1 on"),
        ("--timeout-seconds", "0", "give a number above 0"),
        ("--learning-rate", "nan", "give a number above 0"),
    ],
)
def test_a_flag_that_cannot_be_is_refused_before_a_rank_trains(flag, value, said, capsys):
    with pytest.raises(SystemExit):
        read_options(["--folder", "gpt", flag, value])
    assert f"argument {flag}: '{value}': {said}" in capsys.readouterr().err


def test_a_batch_that_does_not_divide_is_refused(tmp_path):
    with pytest.raises(dc.RankError, match="--batch-size 15: 2 ranks need a multiple, up to 256"):
        dc.launch(train_here, arguments(tmp_path, "--batch-size", "15"))


# -- the Slurm script --------------------------------------------------------------------------------------

SLURM = Path(production.__file__).with_name("train.slurm")
STAND_INS = {
    "srun": 'echo "$@" >> "$TOLD"; exit ${SRUN_CODE:-0}',
    "scontrol": 'if [ "$1" = show ]; then printf "node7\nnode8\n"; else echo "scontrol $@" >> "$TOLD"; fi',
}


def submitted(folder: Path, **environ: str) -> tuple[subprocess.CompletedProcess, str]:
    """Run the Slurm script as the first machine of a job would, with stand-ins for Slurm's commands."""
    for name, text in STAND_INS.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    slurm = {
        "SLURM_JOB_ID": "4711",
        "SLURM_NNODES": "2",
        "SLURM_CPUS_PER_TASK": "16",
        "SLURM_GPUS_ON_NODE": "4",
    }
    slurm |= {
        "SLURM_JOB_NODELIST": "node[7-8]",
        "SLURM_SUBMIT_DIR": str(folder),
        "TOLD": str(folder / "told"),
    }
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(SLURM), "--steps", "50"],
        env={**os.environ, **slurm, "PATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=50,
    )
    return done, (folder / "told").read_text()


def test_the_slurm_script_starts_one_agent_a_machine_that_meet_at_the_first(tmp_path):
    done, told = submitted(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "all steps are done" in done.stdout
    assert "python -m dpcourse torchrun --nnodes 2 --nproc-per-node 4 --rdzv-id 4711.0" in told
    assert "--rdzv-backend c10d --rdzv-endpoint node7:24711 --max-restarts 3" in told
    assert f"-m dpcourse.production.train --strategy fsdp2 --folder {tmp_path}/gpt --steps 50" in told


def test_a_job_that_ended_too_early_goes_back_into_the_queue_but_not_for_ever(tmp_path):
    done, told = submitted(tmp_path, SRUN_CODE="1")
    assert done.returncode == 0
    assert told.endswith("scontrol requeue 4711\n")
    (tmp_path / "told").unlink()
    done, told = submitted(tmp_path, SRUN_CODE="1", SLURM_RESTART_COUNT="10")
    assert done.returncode == 1
    assert "started 10 times already: read the log" in done.stderr
    assert "requeue" not in told
