"""A soak: kernels side by side run, fail, hang, are interrupted and killed at random, and leave nothing.

Run it with `python -m tests.soak`: five minutes with three kernels, or as long as `--seconds` says. What it
does follows from `--seed`, which it prints. It fails where a run gave a wrong result or none, a failure was
not named as what it was, a kernel did not answer afterwards, or the machine is not as it was at the end:
no process, no file, no shared memory, no network card or namespace, no lock that a dead run holds.
"""

import argparse
import collections
import contextlib
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.conftest import Cell, Kernel, processes_marked, wait_until

_CELL_SECONDS = 120.0
_LEAVE_SECONDS = 30.0
SET_UP = """
import os, signal, time
import torch
import torch.distributed as dist
import dpcourse as dc

def add_up():
    total = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(total)
    return int(total.sum())

def wait_for_ever():
    time.sleep(1000)

def on_the_last(what):
    def work():
        if dist.get_rank() == dist.get_world_size() - 1:
            what()
        dist.barrier()
    return work

def fails():
    raise KeyError("on purpose")

def leaves_a_child():
    import subprocess
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return dist.get_rank()

def dies():
    os.kill(os.getpid(), signal.SIGKILL)

def told(function, **options):
    try:
        return dc.launch(function, **options)
    except dc.RankError as error:
        return f"{error.kind} rank {error.rank}"
"""


@dataclass
class Player:
    """One kernel and what happens to it; every action leaves it able to answer."""

    chance: random.Random
    mark: str

    def __post_init__(self) -> None:
        self.kernel = self.new_kernel()

    def new_kernel(self) -> Kernel:
        kernel = Kernel(DPCOURSE_SOAK=self.mark)
        assert not kernel.run(SET_UP, _CELL_SECONDS).error
        return kernel

    def ask(self, code: str) -> Cell:
        return self.kernel.run(code, _CELL_SECONDS)

    def shows(self, code: str, text: str) -> None:
        """Run a cell that must show exactly that."""
        cell = self.ask(code)
        assert cell.text == text, f"{code} showed {cell.text or cell.error!r} in place of {text}"

    # -- what may happen ------------------------------------------------------------------------------

    def adds_up(self) -> None:
        ranks = self.chance.randint(1, 5)
        total = 1000 * ranks * (ranks + 1) // 2
        self.shows(f"dc.launch(add_up, ranks={ranks})", str([total] * ranks))

    def trains(self) -> None:
        strategy, ranks = self.chance.choice(["ddp", "zero1", "fsdp2"]), self.chance.randint(2, 4)
        run = f'run = dc.train("{strategy}", model="mlp", ranks={ranks}, steps=2)'
        self.shows(f"{run}\nrun.traffic.is_exact(), run.memory.is_exact()", "(True, True)")

    def fails(self) -> None:
        ranks = self.chance.randint(2, 4)
        self.shows(f"told(on_the_last(fails), ranks={ranks})", f"'raised rank {ranks - 1}'")

    def dies(self) -> None:
        ranks = self.chance.randint(2, 4)
        self.shows(f"told(on_the_last(dies), ranks={ranks})", f"'died rank {ranks - 1}'")

    def passes_its_deadline(self) -> None:
        self.shows("told(wait_for_ever, ranks=2, deadline_seconds=1).split()[0]", "'deadline'")

    def leaves_a_child(self) -> None:
        self.shows("dc.launch(leaves_a_child, ranks=2)", "[0, 1]")

    def is_interrupted(self) -> None:
        request = self.kernel.client.execute("dc.launch(wait_for_ever, ranks=3, deadline_seconds=100)")
        time.sleep(self.chance.uniform(0.2, 3.0))
        self.kernel.manager.interrupt_kernel()
        cell = self.kernel.collect(request, _CELL_SECONDS)
        assert (
            cell.error.startswith("interrupted: its 3 ranks were ended") or "KeyboardInterrupt" in cell.error
        ), f"an interrupted run showed {cell.error or cell.text!r}"

    def loses_its_server(self) -> None:
        server = int(self.ask("from dpcourse.ranks import service; service.current().pid").text)
        request = self.kernel.client.execute("told(wait_for_ever, ranks=2, deadline_seconds=20)")
        time.sleep(self.chance.uniform(0.0, 2.0))
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, signal.SIGKILL)
        cell = self.kernel.collect(request, _CELL_SECONDS)
        assert cell.text.startswith(("'died", "'deadline")), f"without a server: {cell.text or cell.error!r}"

    def is_killed(self) -> None:
        self.kernel.client.execute("dc.launch(wait_for_ever, ranks=3, deadline_seconds=100)")
        time.sleep(self.chance.uniform(0.0, 2.0))
        os.kill(self.kernel.pid, signal.SIGKILL)
        self.close()
        self.kernel = self.new_kernel()

    def is_shut_down(self) -> None:
        self.kernel.client.execute("dc.launch(wait_for_ever, ranks=2, deadline_seconds=100)")
        time.sleep(self.chance.uniform(0.0, 2.0))
        self.close()
        self.kernel = self.new_kernel()

    def close(self) -> None:
        self.kernel.close()


ACTIONS: tuple[tuple[int, Callable[[Player], None]], ...] = (
    (4, Player.adds_up),
    (2, Player.trains),
    (2, Player.fails),
    (2, Player.dies),
    (1, Player.passes_its_deadline),
    (1, Player.leaves_a_child),
    (2, Player.is_interrupted),
    (1, Player.loses_its_server),
    (1, Player.is_killed),
    (1, Player.is_shut_down),
)


class Soak:
    """Players on threads of their own until the time is up or one of them has found a fault."""

    def __init__(self, seconds: float, kernels: int, seed: int) -> None:
        self.mark = f"dpcourse-soak-{uuid.uuid4().hex}"
        self.seed, self.kernels = seed, kernels
        self.end = time.monotonic() + seconds
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []

    def play(self, number: int) -> None:
        """One player's life."""
        chance, done = random.Random(f"{self.seed} {number}"), "start"
        try:
            player = Player(chance, self.mark)
            try:
                while time.monotonic() < self.end and not self.faults:
                    [action] = chance.choices([a for _, a in ACTIONS], [w for w, _ in ACTIONS])
                    done = action.__name__
                    action(player)
                    player.shows("1 + 1", "2")
                    self.counts[done] += 1
            finally:
                player.close()
        except Exception:
            self.faults.append(f"kernel {number}, {done}:\n{traceback.format_exc()}")

    def run(self) -> None:
        """All players, to the end."""
        threads = [threading.Thread(target=self.play, args=(number,)) for number in range(self.kernels)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def state(folder: Path) -> dict[str, set[str]]:
    """What a run could leave behind on this machine, beside processes."""
    return {
        "files": {str(path.relative_to(folder)) for path in folder.rglob("*")},
        "shared memory": set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set(),
        "network cards": set(psutil.net_if_addrs()),
        "network namespaces": set(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else set(),
    }


def left_behind(before: dict[str, set[str]], folder: Path, mark: str) -> list[str]:
    """What is there now and was not before, in words; a process that is just ending gets a moment."""
    wait_until(lambda: not processes_marked(mark), _LEAVE_SECONDS)
    left = [
        f"process {process.pid}: {' '.join(process.cmdline())[:100]}" for process in processes_marked(mark)
    ]
    for name, now in state(folder).items():
        left += [f"{name}: {item}" for item in sorted(now - before[name])]
    return left


def main() -> int:
    """Soak, and say what was done and what is left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--kernels", type=int, default=3)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args()
    print(f"soak of {asked.seconds:g} s, {asked.kernels} kernels, --seed {asked.seed}", flush=True)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as cache:
        os.environ["TMPDIR"] = tempfile.tempdir = name
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # which torch keeps for the next time
        before = state(Path(name))
        soak = Soak(asked.seconds, asked.kernels, asked.seed)
        soak.run()
        left = left_behind(before, Path(name), soak.mark)
    for action, count in sorted(soak.counts.items()):
        print(f"{count:5} {action.replace('_', ' ')}")
    for fault in [*soak.faults, *(f"left behind: {item}" for item in left)]:
        print(fault, file=sys.stderr)
    print(f"{sum(soak.counts.values())} actions, {len(soak.faults)} faults, {len(left)} things left behind")
    return 1 if soak.faults or left else 0


if __name__ == "__main__":
    sys.exit(main())
