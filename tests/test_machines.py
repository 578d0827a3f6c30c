"""Several machines: a torchrun agent on each of two hosts, meeting over the network between them.

The hosts are emulated where the kernel allows it, and both are this machine's loopback elsewhere. Every
process here imports torch for itself, which takes seconds: few runs, of tiny models.
"""

import os
import re
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
from tests.production import free_port, losses, train_here

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
ONE_RANK = ("--nproc-per-node", "1", "--max-restarts", "3")
PYTHON = (sys.executable, "-m", "dpcourse")
# Begins a host's command: hosts from number $0 on do nothing.
SOME_HOSTS = ("sh", "-c", '[ {host} -ge "$0" ] || exec "$@"')
README = (Path(__file__).parent.parent / "README.md").read_text().replace("\\\n", " ")
(SHOWN,) = re.findall(r"^ +(dpcourse hosts 2 .*)$", README, re.MULTILINE)
HOSTS, AGENT = (part.split() for part in SHOWN.split(" -- "))
OPTIONS, RUN = AGENT[2 : AGENT.index("-m")], AGENT[AGENT.index("-m") :]

pytestmark = [pytest.mark.timeout(300), pytest.mark.long]


class Machines:
    """Two hosts, each with the agent that the README shows: what they say, and an end for all of them."""

    def __init__(self, folder: Path, *changed: str, start: int = 2, **environ: str) -> None:
        self.folder, self.mark, self.is_emulated = folder, uuid.uuid4().hex, not kernel_links().problem
        self.environ = {**os.environ, "OMP_NUM_THREADS": "1", "DPCOURSE_TEST": self.mark, **environ}
        agent = [
            *PYTHON,
            "torchrun",
            *OPTIONS,
            *(changed or RUN),
        ]  # of an option said twice, the second holds
        if self.is_emulated:
            hosts = [*PYTHON, *HOSTS[1:], "--", *SOME_HOSTS, str(start)]
            self.processes = [self._start([*hosts, *agent], "hosts.txt")]
        else:
            places = {"{address0}:29500": f"127.0.0.1:{free_port()}", "{address}": "127.0.0.1"}
            here = [places.get(word, word) for word in agent]
            self.processes = [self._start(here, f"host{host}.txt") for host in range(start)]

    def _start(self, command: list[str], file: str) -> subprocess.Popen:
        with (self.folder / file).open("w") as said:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environ, stdout=said, stderr=subprocess.STDOUT
            )

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


def test_the_hosts_of_these_tests_are_emulated():
    if problem := kernel_links().problem:
        pytest.skip(f"both hosts are this machine's loopback: {problem}")


def test_the_command_of_the_readme_gives_the_run_that_train_gives(tmp_path):
    with Machines(tmp_path) as machines:
        assert machines.exit_code() == 0, machines.said()
        assert "fsdp2: mlp on 4 ranks" in machines.said(0)
        assert "fsdp2: mlp" not in machines.said(1)  # one rank shows and saves it
    run, here = dc.Run.load(tmp_path / "run.json"), dc.train("fsdp2", ranks=4)
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
    with Machines(
        tmp_path, *ONE_RANK, *TRAIN, "--strategy", strategy, "--folder", str(folder), **card
    ) as machines:
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
    with Machines(tmp_path, "--rdzv-conf", "join_timeout=3", *RUN, start=1) as machines:
        assert machines.exit_code() == 2
    said = machines.said().strip().splitlines()[-1]
    assert said.startswith("dpcourse torchrun: 2 hosts were expected at ")
    assert "and 1 came (" in said
    assert "is torchrun running on the others" in said
    assert "Traceback" not in machines.said()


def test_a_host_that_cannot_be_reached_is_said_by_the_deadline(tmp_path):
    if problem := kernel_links().problem:
        pytest.skip(f"on one machine every rank can be reached: {problem}")
    command = ("--nproc-per-node", "1", "-m", "dpcourse", "run", "ddp", "--deadline", "5")
    with Machines(tmp_path, *command, GLOO_SOCKET_IFNAME="lo") as machines:
        assert machines.exit_code() == 1
    # The rank that gives up first says it; then torchrun ends the other, maybe before its own deadline.
    whole = machines.said(0) + machines.said(1)
    assert re.search(r"dpcourse run: rank (\d) of 2, on host \1 of 2, which meet at 10\.", whole)
    assert "could not join the others" in whole
    assert "names each host's card" in whole
    for host in (0, 1):
        assert re.search(
            r"dpcourse torchrun: (rank \d failed first|lost the other hosts)", machines.said(host)
        )
