"""`dpcourse hosts`: run a command on each of several emulated hosts, as on machines of their own."""

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence

from dpcourse.network.namespaces import NoHostsError, enter, make_hosts
from dpcourse.ranks import processes
from dpcourse.ranks.cluster import Cluster
from dpcourse.ranks.launch import check_deadline
from dpcourse.ranks.links import Links
from dpcourse.ranks.output import Lines

EPILOG = """\
In COMMAND these are replaced: {host} the host's number from 0 on, {hosts} how many there are, {address} the
host's address, {address0} that of host 0.

example, torchrun on two machines that are none:
  dpcourse hosts 2 --inter 500mbit -- dpcourse torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d \\
    --rdzv-endpoint {address0}:29500 --local-addr {address} -m dpcourse run fsdp2 --model gpt-small

exit codes: 0 every command ended with 0; else that of the first that did not; 1 the deadline has passed;
2 the hosts cannot be made; 130 interrupted
"""
_CHUNK_BYTES = 1 << 16
_LEAVE_SECONDS = 5.0
_POLL_SECONDS = 0.05


def main(arguments: Sequence[str]) -> int:
    """Make the hosts, run the command on each, and show what they print, marked with the host."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    asked, command = _parser().parse_args(arguments[:end]), list(arguments[end + 1 :])
    if not command:
        return _refuse("no command was given; write it after --, as in: dpcourse hosts 2 -- hostname")
    try:
        if asked.deadline is not None:
            check_deadline(asked.deadline)
        links = Cluster(hosts=asked.hosts, inter=asked.inter, latency=asked.latency, links="kernel").network
        assert links is not None
        namespaces = make_hosts(links)
    except (ValueError, NoHostsError) as error:
        return _refuse(str(error))
    return Hosts(links, namespaces, command).run(asked.deadline)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpcourse hosts",
        usage="dpcourse hosts [options] HOSTS -- COMMAND",
        description="Run a command on each of several emulated hosts (Linux; network namespaces).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("hosts", type=int, help="how many")
    parser.add_argument("--inter", default=None, help="the rate of each host's card (1gbit)")
    parser.add_argument("--latency", default=None, help="between hosts, where the kernel has netem")
    parser.add_argument("--deadline", type=float, default=None, help="seconds until all is ended (none)")
    return parser


def _refuse(text: str) -> int:
    print(f"dpcourse hosts: {text}", file=sys.stderr)
    return 2


class Hosts:
    """The processes of all hosts, seen from the one that has started them."""

    def __init__(self, links: Links, namespaces: list[int], command: list[str]) -> None:
        self.links, self.namespaces, self.command = links, namespaces, command
        self.outputs: dict[int, Lines] = {}  # by the file that a host's output comes from
        self.host_of: dict[int, int] = {}
        self.exit_code = 0

    def run(self, deadline_seconds: float | None) -> int:
        """Start all, pass on what they print, end what is left, and give the exit code."""
        deadline = float("inf") if deadline_seconds is None else time.monotonic() + deadline_seconds
        processes.adopt_orphans()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            for host in range(self.links.hosts):
                self._start(host)
            while self.host_of and time.monotonic() < deadline:
                self._listen()
                self._collect()
            if self.host_of:
                late = ", ".join(str(host) for host in sorted(self.host_of.values()))
                _refuse(
                    f"the deadline of {deadline_seconds:g} s passed, and the command went on on host {late}"
                )
                return 1
            return self.exit_code
        except KeyboardInterrupt:
            return 130
        finally:
            self._end()

    def _start(self, host: int) -> None:
        reading, writing = os.pipe()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            self._become(host, parent, writing)
        os.close(writing)
        self.outputs[reading] = Lines(host, "host")
        self.host_of[pid] = host

    def _become(self, host: int, parent: int, output: int) -> None:
        """Turn this fork into the host's command; never returns."""
        try:
            enter(self.namespaces[host])
            os.setsid()
            processes.die_with_parent(parent)
            for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
                os.dup2(source, target)
            words = [_filled(word, host, self.links) for word in self.command]
            os.execvp(words[0], words)
        except OSError as error:
            os.write(2, f"{self.command[0]} cannot be run: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def _listen(self) -> None:
        for file in select.select(list(self.outputs), [], [], _POLL_SECONDS)[0]:
            data = os.read(file, _CHUNK_BYTES)
            lines = self.outputs[file]
            sys.stdout.write(lines.feed(data) if data else lines.finish())
            sys.stdout.flush()
            if not data:
                del self.outputs[file]
                os.close(file)

    def _collect(self) -> None:
        for pid, code in processes.reap()[0]:
            if self.host_of.pop(pid, None) is not None and code:
                self.exit_code = self.exit_code or (code if code > 0 else 128 - code)

    def _end(self) -> None:
        """End what is left, first politely; show what was still said."""
        for pid in self.host_of:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGTERM)
        deadline = time.monotonic() + _LEAVE_SECONDS
        while (self.host_of or self.outputs) and time.monotonic() < deadline:
            self._listen()
            self._collect()
        while processes.reap()[1]:
            processes.kill_descendants()
            time.sleep(_POLL_SECONDS)


def _filled(word: str, host: int, links: Links) -> str:
    values = {
        "host": host,
        "hosts": links.hosts,
        "address": links.address_of(host),
        "address0": links.address_of(0),
    }
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word
