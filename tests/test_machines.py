"""Several machines: a torchrun agent on each of two hosts, meeting over the network between them.

The hosts are emulated where the kernel allows it, and both are this machine's loopback elsewhere. Every
process here imports torch for itself, which takes seconds: few runs, of tiny models.
"""

import os
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

import dpcourse as dc
from dpcourse.ledger import COUNTS
from dpcourse.network.probe import kernel_links
from tests.conftest import processes_below, processes_marked, wait_until
from tests.production import losses, train_here

SECONDS = 200.0  # an idle machine needs a tenth of it
TRAIN = (
    "-m",
    "dpcourse.production.train",
    "--steps",
    "120",
    "--checkpoint-every",
    "20",
    "--timeout-seconds",
    "60",
)
PYTHON = (sys.executable, "-m", "dpcourse")
# Begins a host's command: hosts from number $0 on do nothing.
SOME_HOSTS = ("sh", "-c", '[ {host} -ge "$0" ] || exec "$@"')

pytestmark = pytest.mark.timeout(300)


class Machines:
    """Two hosts with a torchrun agent on each: what they say, and an end for all of them."""

    def __init__(
        self, folder: Path, *command: str, ranks_per_host: int = 1, start: int = 2, **environ: str
    ) -> None:
        self.folder, self.mark, self.is_emulated = folder, uuid.uuid4().hex, not kernel_links().problem
        self.environ = {**os.environ, "OMP_NUM_THREADS": "1", "DPCOURSE_TEST": self.mark, **environ}
        port = 29500 if self.is_emulated else free_port()  # emulated hosts have all ports to themselves
        agent = [
            *PYTHON,
            "torchrun",
            "--deadline",
            "90",
            "--nnodes",
            "2",
            "--nproc-per-node",
            str(ranks_per_host),
        ]
        agent += [
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"{{address0}}:{port}",
            "--local-addr",
            "{address}",
        ]
        agent += ["--max-restarts", "3", *command]
        if self.is_emulated:
            hosts = [*PYTHON, "hosts", "--deadline", "200", "2", "--"]
            self.processes = [self._start([*hosts, *SOME_HOSTS, str(start), *agent], "hosts.txt")]
        else:
            here = [
                word.replace("{address0}", "127.0.0.1").replace("{address}", "127.0.0.1") for word in agent
            ]
            self.processes = [self._start(here, f"host{host}.txt") for host in range(start)]

    def _start(self, command: list[str], file: str) -> subprocess.Popen:
        with (self.folder / file).open("w") as said:
            return subprocess.Popen(command, env=self.environ, stdout=said, stderr=subprocess.STDOUT)

    def __enter__(self) -> "Machines":
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            process.kill()
            process.wait(10)
        for process in processes_marked(self.mark):
            process.kill()

    def exit_code(self) -> int:
        """Wait for the end; the first exit code that is not 0."""
        codes = [process.wait(SECONDS) for process in self.processes]
        assert wait_until(lambda: not processes_marked(self.mark)), "something outlives the agents"
        return next((code for code in codes if code), 0)

    def said(self, host: int = 0) -> str:
        """What one host has printed."""
        if not self.is_emulated:
            return (self.folder / f"host{host}.txt").read_text()
        lines = (self.folder / "hosts.txt").read_text().splitlines()
        return "\n".join(line.removeprefix(f"[host {host}] ") for line in lines if f"[host {host}]" in line)

    def rank(self, number: int) -> psutil.Process:
        """The process of a rank."""
        for process in (found for agent in self.processes for found in processes_below(agent.pid)):
            if process.environ().get("RANK") == str(number):
                return process
        raise AssertionError(f"rank {number} has no process")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def test_the_hosts_of_these_tests_are_emulated():
    if problem := kernel_links().problem:
        pytest.skip(f"both hosts are this machine's loopback: {problem}")


def test_a_run_on_two_machines_is_the_run_that_train_gives(tmp_path):
    out = tmp_path / "run.json"
    with Machines(
        tmp_path, "-m", "dpcourse", "run", "fsdp2", "--out", str(out), ranks_per_host=2
    ) as machines:
        assert machines.exit_code() == 0, machines.said()
        assert "fsdp2: mlp on 4 ranks" in machines.said(0)
        assert "fsdp2: mlp" not in machines.said(1)  # one rank shows and saves it
    run, here = dc.Run.load(out), dc.train("fsdp2", ranks=4)
    assert run.memory.is_exact()
    assert run.traffic.is_exact()
    assert run.losses == here.losses
    assert listed(run) == listed(here)


def listed(run: dc.Run) -> list[list[object]]:
    """What each rank held and moved, but for the peak and the kernel's counts, which depend on timing."""
    held = [[h for h in record.holdings if h.phase != "peak"] for record in run.records]
    return [*held, *([t for t in record.transfers if t.collective not in COUNTS] for record in run.records)]


def undisturbed(folder: Path, strategy: str) -> list[float]:
    dc.launch(train_here, [*TRAIN[2:], "--strategy", strategy, "--folder", str(folder)], everything=True)
    return losses(folder)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_rank_that_is_killed_starts_again_and_ends_with_the_losses_of_the_undisturbed_run(
    tmp_path, strategy
):
    folder = tmp_path / "gpt"
    card = {"GLOO_SOCKET_IFNAME": "lo" if kernel_links().problem else "eth0"}
    with Machines(tmp_path, *TRAIN, "--strategy", strategy, "--folder", str(folder), **card) as machines:
        assert wait_until(lambda: len(losses(folder)) >= 30, SECONDS), machines.said()
        machines.rank(1).kill()
        done = len(losses(folder))
        assert machines.exit_code() == 0, machines.said(0) + machines.said(1)
        assert "goes on from step_0000" in machines.said()
    assert 30 <= done < 120
    assert losses(folder) == undisturbed(tmp_path / "undisturbed", strategy)
    assert sorted(path.name for path in folder.iterdir()) == [
        "losses.jsonl",
        "step_00000100",
        "step_00000120",
    ]


def test_a_host_that_does_not_come_is_said_by_the_deadline(tmp_path):
    command = ("--rdzv-conf", "join_timeout=3", "-m", "dpcourse", "run", "ddp")
    with Machines(tmp_path, *command, start=1) as machines:
        assert machines.exit_code() == 2
    said = machines.said().strip().splitlines()[-1]
    assert said.startswith("dpcourse torchrun: 2 hosts were expected at ")
    assert "and 1 came (" in said
    assert "is torchrun running on the others" in said
    assert "Traceback" not in machines.said()


def test_a_host_that_cannot_be_reached_is_said_by_the_deadline(tmp_path):
    if problem := kernel_links().problem:
        pytest.skip(f"on one machine every rank can be reached: {problem}")
    command = ("-m", "dpcourse", "run", "ddp", "--deadline", "5")
    with Machines(tmp_path, "--max-restarts", "0", *command, GLOO_SOCKET_IFNAME="lo") as machines:
        assert machines.exit_code() == 1
    for host in (0, 1):
        said = f"dpcourse run: rank {host} of 2, on host {host} of 2, which meet at 10."
        assert said in machines.said(host)
        assert "could not join the others" in machines.said(host)
        assert "names each host's card" in machines.said(host)
