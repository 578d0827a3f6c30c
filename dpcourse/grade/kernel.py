"""A kernel forked from the fork server of a worker's ranks: it has all that a lab imports before it starts.

Two sides: what becomes the kernel, and, in the worker, what stands for its process.
"""

import atexit
import contextlib
import os
import select
import signal
import socket
import sys
import types
from dataclasses import asdict, dataclass
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from dpcourse.ranks import channel, processes, service
from dpcourse.ranks.cluster import num_cores

# The kernel itself, and what the notebooks of labs import.
MODULES = (
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "matplotlib_inline.backend_inline",
    "dpcourse.labs.check",
    "dpcourse.labs.verdict",
    "dpcourse.labs.warm",
)
_STOP_SECONDS = 20.0
_KILLED = -int(signal.SIGKILL)


@dataclass(frozen=True)
class Judged:
    """The verdicts on a submission, which its notebook's checks show in place of judging once more."""

    lab: str
    verdicts: list[dict[str, Any]]

    def put(self) -> None:
        """Have the checks of this process show them."""
        from dpcourse import labs
        from dpcourse.labs.verdict import Verdict

        found = [Verdict.from_dict(verdict) for verdict in self.verdicts]
        labs.verdicts_given.update({(self.lab, verdict.question): verdict for verdict in found})


def main(
    options: list[str],
    directory: str,
    environment: dict[str, str],
    path: list[str],
    judged: dict[str, Any] | None,
) -> None:
    """Be a kernel with the command line's options, in a fork of the fork server."""
    import torch
    from ipykernel.kernelapp import IPKernelApp

    atexit._clear()  # what the fork server would do at its own exit
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    sys.path[:] = path
    service.inherit()
    processes.show()
    torch.set_num_threads(num_cores())
    if judged:
        Judged(**judged).put()
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = ["ipykernel_launcher.py", *options]
    app = IPKernelApp.instance(parent_handle=0)  # it ends with its leader, not with the worker
    app.initialize(options)
    app.start()


class Kernel:
    """A forked kernel, in the words of `subprocess.Popen`; only its leader knows its number."""

    stdin = stdout = stderr = None
    pid = 0

    def __init__(
        self, options: list[str], directory: str, environment: dict[str, str], judged: Judged | None
    ) -> None:
        self.num_left = 0
        self._code: int | None = None
        self._leader, theirs = socket.socketpair()
        with theirs:
            service.request(theirs, True, lambda: None)
        arguments = [options, directory, environment, sys.path, judged and asdict(judged)]
        channel.send(self._leader, "program", module=__name__, arguments=arguments)

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        if self._code is None and select.select([self._leader], [], [], 0)[0]:
            try:
                self._code = self._told("ended", "exit_code")
            except OSError:
                self._code = _KILLED
        return self._code

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        if self._code is None:
            select.select([self._leader], [], [], _STOP_SECONDS)
        return self.poll() or 0

    def send_signal(self, number: int) -> None:
        """End it; an interrupt, which comes before the end, is no end."""
        if number != signal.SIGINT:
            self.kill()

    def kill(self) -> None:
        """End it with all that it has started, and count what had not ended with it."""
        if self._leader.fileno() < 0:
            return
        with self._leader, contextlib.suppress(OSError):
            channel.send(self._leader, "stop")
            self._leader.settimeout(_STOP_SECONDS)
            self.num_left = self._told("stopped", "num_left")
        self._code = _KILLED if self._code is None else self._code

    terminate = kill

    def _told(self, kind: str, name: str) -> int:
        """What the leader says under a name, in the next message of that kind."""
        while (message := channel.receive(self._leader)).kind != kind:
            pass
        return int(message.fields[name])


def manager_of(
    started: list[Kernel], transport: str, judged: Judged | None = None
) -> type[AsyncKernelManager]:
    """A manager whose kernels are forked, and talk over `transport`: "tcp", or files ("ipc").

    started: the kernels, as they start; whoever gives the list ends them.
    """

    class Provisioner(LocalProvisioner):
        process: Any = None

        async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
            directory = str(kwargs.get("cwd") or os.getcwd())
            self.process = Kernel(cmd[cmd.index("-f") :], directory, kwargs["env"], judged)
            started.append(self.process)
            return self.connection_info

    class Manager(AsyncKernelManager):
        def __init__(self, **options: Any) -> None:
            super().__init__(transport=transport, **options)
            self.provisioner = Provisioner(kernel_id="", kernel_spec=self.kernel_spec, parent=self)

    return Manager
