"""What a rank does from its fork to its end: join the group, call the learner's function, report, wait.

A rank that has returned stays until it is told to leave: a rank that left at once would break the
connections of the others, and the error they raise would hide the cause.
"""

import atexit
import contextlib
import datetime
import importlib
import io
import os
import pickle
import socket
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from dpcourse.ranks import channel, plain, witness
from dpcourse.ranks.links import Links
from dpcourse.ranks.sending import dumps

# Long enough that the launcher's own deadline always comes first: it can say which rank waits where.
_COLLECTIVE_TIMEOUT = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Task:
    """What one rank is asked to do; every field but `work` is JSON."""

    rank: int
    world_size: int
    store_path: str
    num_threads: int
    niceness: int
    device: str
    backend: str
    backend_module: str | None  # imported before the group is joined: registers the backend
    environment: dict[str, str]
    directory: str
    path: list[str]
    is_plain: bool
    interface: str | None
    network: dict[str, Any] | None  # the fields of Links, where hosts are emulated
    work: bytes = field(repr=False)  # cloudpickle of (function, arguments, keywords)
    own_arguments: bytes = field(repr=False)  # cloudpickle of this rank's own leading arguments


def main(sock: socket.socket) -> None:
    """Read the task, do it, report, and stay until told to leave."""
    atexit._clear()  # what the fork server would do at its own exit is no business of a rank
    task = _read_task(sock)
    reporter = witness.Reporter(sock)
    try:
        _prepare(task)
        _join(task)
        reporter.start()
        result = _call(task)
        payload = encode(result, task.is_plain)
    except BaseException as error:
        _flush()
        reporter.send("raised", error=witness.describe(error), time=time.time())
    else:
        _flush()
        reporter.send("returned", payload, calls=witness.calls())
    reporter.wait_until_dismissed()
    atexit._run_exitfuncs()
    _flush()


def _read_task(sock: socket.socket) -> Task:
    first = channel.receive(sock)
    second = channel.receive(sock)
    return Task(**first.fields, work=bytes(first.payload), own_arguments=bytes(second.payload))


def _prepare(task: Task) -> None:
    import torch

    os.environ.clear()
    os.environ.update(task.environment)
    os.chdir(task.directory)
    sys.path[:] = task.path
    # Set before torch computes: a thread pool of a second rank on the same cores starves both.
    torch.set_num_threads(task.num_threads)
    os.nice(task.niceness)
    _line_buffer_output()


def _line_buffer_output() -> None:
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = io.FileIO(fd, "w", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True
        )
        setattr(sys, name, stream)


def _join(task: Task) -> None:
    import torch.distributed as dist

    if task.interface:
        os.environ["GLOO_SOCKET_IFNAME"] = task.interface
    if task.device == "cuda":
        take_gpu(task.rank)
    module: Any = importlib.import_module(task.backend_module) if task.backend_module else None
    if task.network and task.network["kind"] == "paced":
        module.use(Links(**task.network), f"{task.store_path}.cards")
    store = dist.FileStore(task.store_path, task.world_size)
    dist.init_process_group(
        task.backend,
        store=store,
        rank=task.rank,
        world_size=task.world_size,
        timeout=_COLLECTIVE_TIMEOUT,
    )


def take_gpu(local_rank: int) -> None:
    """Compute on one GPU from now on: its own, or in turn one of the fewer that the ranks share."""
    import torch

    count = torch.cuda.device_count()
    if count == 0:
        raise RuntimeError(
            f"torch {torch.__version__}, built for CUDA {torch.version.cuda}, sees no GPU here, though "
            "nvidia-smi lists some; bring the driver up to what this torch needs (nvidia-smi names its CUDA "
            'version), or ask for device="cpu"'
        )
    torch.cuda.set_device(local_rank % count)
    torch.cuda.init()  # without, a DeviceMesh takes the choice for none, and goes by LOCAL_RANK


def _call(task: Task) -> Any:
    function, arguments, keywords = pickle.loads(task.work)
    own = pickle.loads(task.own_arguments)
    pid = os.getpid()
    try:
        return function(*own, *arguments, **keywords)
    finally:
        if os.getpid() != pid:
            _end_fork()


def _end_fork() -> None:
    """A process that the function forked has left the function: it must not speak for the rank."""
    if sys.exc_info()[0] is not None:
        traceback.print_exc()
    _flush()
    os._exit(sys.exc_info()[0] is not None)


def encode(result: Any, is_plain: bool) -> bytes:
    """Make bytes of what a function returned."""
    return (
        plain.encode(result) if is_plain else dumps(result, f"the {type(result).__name__} that was returned")
    )


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
