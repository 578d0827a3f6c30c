"""`dpcourse torchrun`: torch's torchrun, with a deadline for hosts that do not come, and errors in words."""

import ipaddress
import os
import re
import socket
import sys
import traceback
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import psutil

from dpcourse.ranks.meeting import CHECKS
from dpcourse.ranks.processes import kill_descendants

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

MEETING_SECONDS = 120
_CONNECTING = "_create_tcp_store"  # torch's call that looks for the meeting place
HELP = f"""\
usage: dpcourse torchrun [--deadline SECONDS] OPTIONS-OF-TORCHRUN... SCRIPT | -m MODULE ...

PyTorch's torchrun, with all of its options (torchrun --help), and two things more: hosts that do not come are
waited for up to --deadline SECONDS ({MEETING_SECONDS}), and what went wrong is said in words.

On each of two hosts, two ranks each; HOST0 is a name or an address by which both reach the first:
  dpcourse torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST0:29500 \\
    -m dpcourse run fsdp2 --model gpt-small --out run.json

Where a host's name leads nowhere, add --local-addr with its address.
"""


class MeetingError(RuntimeError):
    """The hosts did not meet; no rank was started."""


def main(arguments: list[str]) -> int:
    """Be one host's agent, and give its exit code."""
    if arguments[:1] in ([], ["-h"], ["--help"]):
        print(HELP, end="")
        return 0 if arguments else 2
    before = frozenset(child.pid for child in psutil.Process().children())
    try:
        return _run(*_deadline(arguments))
    except (MeetingError, ValueError) as error:
        print(f"dpcourse torchrun: {error}", file=sys.stderr)
        return 2
    finally:
        # Torch ends the ranks that it knows of, and a signal may come between a rank's start and its entry.
        kill_descendants(keep=before)


def _deadline(arguments: list[str]) -> tuple[int, list[str]]:
    if arguments[0] != "--deadline":
        return MEETING_SECONDS, arguments
    text = arguments[1] if len(arguments) > 1 else ""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"--deadline {text!r}: give a whole number of seconds from 1 on")
    return int(text), arguments[2:]


def _run(seconds: int, arguments: list[str]) -> int:
    _import_quietly()
    from torch.distributed import DistError, run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousConnectionError, RendezvousTimeoutError

    # A store that outlives a restart hands the new ranks the old ones' addresses, and they wait for ever:
    # https://github.com/pytorch/pytorch/issues/135712
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    asked = run.parse_args(arguments)
    _check_counts(asked)
    asked.rdzv_conf = _patience(asked, seconds)
    meeting = asked.rdzv_endpoint or f"{asked.master_addr}:{asked.master_port}"
    try:
        run.run(asked)
    except RendezvousTimeoutError as error:
        raise MeetingError(_missing(asked.nnodes, meeting, seconds, _came(error))) from None
    except (RendezvousConnectionError, DistError) as error:
        if _innermost(error).f_code.co_name == _CONNECTING:
            raise MeetingError(_no_answer(meeting, seconds)) from None
        print(
            f"dpcourse torchrun: lost the other hosts, which meet at {meeting}: torchrun on one of them has "
            "ended (it says why), did not come, or cannot be reached",
            file=sys.stderr,
        )
        return 1
    except ChildFailedError as error:
        print(f"dpcourse torchrun: {_first(error)}", file=sys.stderr)
        return 1
    except SignalException as error:
        print(f"dpcourse torchrun: ended by {error.sigval.name}", file=sys.stderr)
        return 128 + error.sigval
    return 0


def _check_counts(asked: Any) -> None:
    """Refuse what torch meets with an assertion."""
    if not re.fullmatch(r"[1-9]\d*|gpu|cpu|xpu|auto", str(asked.nproc_per_node)):
        raise ValueError(
            f"--nproc-per-node {asked.nproc_per_node}: give the number of ranks on each host, 1 or more"
        )
    hosts = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", str(asked.nnodes))
    if not hosts or int(hosts[2] or hosts[1]) < int(hosts[1]):
        raise ValueError(
            f"--nnodes {asked.nnodes}: give the number of hosts, or the least and the most: 2, or 1:4"
        )


def _patience(asked: Any, seconds: int) -> str:
    """Say how long to wait for the others; a connection is tried twice, with a pause as long as a try."""
    waits = {"join_timeout": seconds, "timeout": seconds, "read_timeout": max(1, seconds // 3)}
    said = [f"{key}={value}" for key, value in waits.items()]
    said += ["is_host=1"] if _is_of_this_host(asked.rdzv_endpoint) else []
    return ",".join(filter(None, [*said, asked.rdzv_conf]))  # the caller's own come last, and hold


def _missing(num_hosts: str, meeting: str, seconds: int, came: Sequence[str]) -> str:
    return (
        f"{num_hosts} hosts were expected at {meeting} within {seconds} s, and {len(came)} came "
        f"({', '.join(came)}); is torchrun running on the others, with one --rdzv-id? If so, {CHECKS}"
    )


def _no_answer(meeting: str, seconds: int) -> str:
    return (
        f"no answer from {meeting}, where the hosts meet, within {seconds} s; is torchrun running on that "
        f"host? If so, {CHECKS}"
    )


def _import_quietly() -> None:
    """Import torch so that its sockets log nothing here: what they have to say is said in words below."""
    before = os.environ.get("TORCH_CPP_LOG_LEVEL")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    import torch.distributed  # noqa: F401

    if before is None:
        del os.environ["TORCH_CPP_LOG_LEVEL"]  # the ranks inherit the rest


def _is_of_this_host(endpoint: str) -> bool:
    """Tell whether an address is one of this host's own: the kernel lets no other host bind to it.

    Torch goes by names, and misses an address that the host's name does not lead to. Loopback is left to
    torch: there every agent would be the one.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        return not ipaddress.ip_address(address[0]).is_loopback
    except (OSError, ValueError):
        return False


def _came(error: BaseException) -> list[str]:
    """Name the hosts that had come: torch's error does not say, but the call that raised it knows."""
    meeting: Any = _innermost(error).f_locals.get("self")
    own = getattr(meeting, "_node", None)  # it has taken itself off the list when its time was up
    others = getattr(getattr(meeting, "_state", None), "participants", {})
    return sorted({node.addr for node in (own, *others) if node})


def _innermost(error: BaseException) -> FrameType:
    """Give the call that raised an error."""
    return list(traceback.walk_tb(error.__traceback__))[-1][0]


def _first(error: "ChildFailedError") -> str:
    """Say in a line which rank failed first, and how."""
    rank, failure = error.get_first_failure()
    message: Any = failure.message
    if isinstance(message, dict):
        said = message["message"].splitlines()[0]
    else:
        said = failure.signal_name() if failure.exitcode < 0 else f"exit code {failure.exitcode}"
    return f"rank {rank} failed first: {said}"
