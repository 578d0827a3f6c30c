"""What the tests of the doctor share: the command in a process of its own, and programs put on PATH."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpcourse.doctor.finding import Finding
from dpcourse.ranks import cluster

TWO_GPUS = """\
case "$*" in
  -L) echo "GPU 0: Fake H100 (UUID: GPU-aa)"; echo "GPU 1: Fake H100 (UUID: GPU-bb)" ;;
  "topo -m") printf '\\t\\033[4mGPU0\\tGPU1\\tCPU Affinity\\033[0m\\n'
    printf 'GPU0\\t X \\tNV12\\t0-7\\nGPU1\\tNV12\\t X \\t0-7\\n'
    printf '\\nLegend:\\n\\n  X    = Self\\n  NV#  = bonded NVLinks\\n' ;;
  *) echo "0, GPU-aa, Fake H100, 81559"; echo "1, GPU-bb, Fake H100, 81559" ;;
esac
"""


def run_doctor(
    *arguments: str, prefix: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess:
    """The command as a user types it, in a process of its own."""
    return subprocess.run(
        [*prefix, sys.executable, "-m", "dpcourse.cli", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
    )


@pytest.fixture(name="program")
def program_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """Put a program on PATH, before all others, with these lines of shell."""

    def put(name: str, lines: str) -> str:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(f"#!/bin/sh\n{lines}\n")
        (folder / name).chmod(0o755)
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        monkeypatch.setenv("PATH", path)
        return path

    cluster._nvidia_smi.cache_clear()
    yield put
    cluster._nvidia_smi.cache_clear()


@pytest.fixture(name="no_gpus_hidden")
def no_gpus_hidden_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the one who runs the tests has set."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1
    return findings[0]
