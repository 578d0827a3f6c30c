"""How the ranks that torchrun has started come together for a run, and apart again.

What the ranks have to tell each other beside their collectives (who has come, what failed first, where each
stands, what each returns) goes through torchrun's own store.
"""

import contextlib
import importlib
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

import psutil

from dpcourse.ranks import hang, remote, witness
from dpcourse.ranks.errors import Failure, RankError
from dpcourse.ranks.rank import take_gpu
from dpcourse.ranks.torchrun import Member

if TYPE_CHECKING:
    from torch.distributed import Store

    from dpcourse.ranks.backends import Backend

CHECKS = (
    "check that the hosts reach each other (the rendezvous address, a firewall between them) and that "
    "GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, where one is set, names each host's card"
)
# How long to listen for the first cause, and for where the others stand, before this rank says what it knows.
_LISTEN = timedelta(seconds=1.5)
_runs = itertools.count()  # the ranks of a torchrun may run several experiments, one after another
_place: "Store | None" = None  # where they meet, for all of them; rank 0 may have to keep it


def call(
    member: Member, function: Callable[[], bytes], device: str, backend: "Backend", deadline_seconds: float
) -> list[bytes]:
    """Call a function on all ranks, this process being one, and give what each returned, on every rank.

    All ranks raise the first cause of a failure, as RankError. A run that passes its deadline can be ended
    only with its process, which says where each rank stands and exits with 1.
    """
    import torch.distributed  # noqa: F401  it takes seconds, and those do not count

    meeting = Meeting(member, deadline_seconds)
    try:
        meeting.join(device, backend)
        try:
            with meeting.ended_at_the_deadline():
                return meeting.exchange(meeting.called(function))
        finally:
            meeting.leave()
    except RankError as error:
        _tell_the_agent(error)
        raise


class Meeting:
    """The ranks of one run, as this rank sees them."""

    def __init__(self, member: Member, deadline_seconds: float) -> None:
        self.member, self.deadline_seconds = member, deadline_seconds
        self.deadline = time.monotonic() + deadline_seconds
        self.store: Store

    def left(self) -> timedelta:
        return timedelta(seconds=max(0.01, self.deadline - time.monotonic()))

    # -- joining -------------------------------------------------------------------------------------------

    def join(self, device: str, backend: "Backend") -> None:
        """Form the process group once all ranks have come, by the deadline."""
        import torch.distributed as dist

        if dist.is_initialized():
            raise ValueError(
                "this process has joined a process group already, and a run makes its own; "
                "call torch.distributed.destroy_process_group() before it"
            )
        if "GLOO_SOCKET_IFNAME" not in os.environ and (card := _card_towards(self.member)):
            os.environ["GLOO_SOCKET_IFNAME"] = card
        if backend.module:
            importlib.import_module(backend.module)
        try:
            self._find_store()
            self._call_the_roll(f"{device}, {backend.name}")
            self._make_group(device, backend.name)
        except (RuntimeError, OSError) as error:
            if isinstance(error, RankError):
                raise
            said = str(error).strip().splitlines()[0]
            raise self._unreachable(f"could not join the others ({said})") from None

    def _find_store(self) -> None:
        """Connect to torchrun's store, in a corner of this run's own: what earlier runs left stays there."""
        import torch.distributed as dist

        member = self.member
        global _place
        if _place is None:
            _place = next(dist.rendezvous("env://", member.rank, member.world_size, timeout=self.left()))[0]
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.store = dist.PrefixStore(f"dpcourse/{attempt}/{next(_runs)}", _place)

    def _call_the_roll(self, what: str) -> None:
        """Wait until all ranks have come, to do the same; name those that have not."""
        said = self._said_by_all("comes", what.encode(), self.left())
        missing = [str(rank) for rank in self.member.everyone if rank not in said]
        if missing:
            raise self._unreachable(f"waited for rank {', '.join(missing)}, which did not come")
        plans = sorted({plan.decode() for plan in said.values()})
        if len(plans) > 1:
            raise self._error(
                f"the ranks would not compute on the same ({' and '.join(plans)}); give device= and backend=",
                kind="mismatch",
            )

    def _make_group(self, device: str, backend: str) -> None:
        import torch.distributed as dist

        if device == "cuda":
            take_gpu(self.member.local_rank)
        store = dist.PrefixStore("group", self.store)
        dist.init_process_group(
            backend,
            store=store,
            rank=self.member.rank,
            world_size=self.member.world_size,
            timeout=self.left(),
        )

    def _unreachable(self, what: str) -> RankError:
        member = self.member
        where = f"on host {member.host} of {member.hosts}, which meet at {member.master}:{member.port}"
        text = (
            f"rank {member.rank} of {member.world_size}, {where}, {what} within {self.deadline_seconds:g} s"
        )
        return self._error(f"{text}; {CHECKS}", kind="deadline")

    def _error(self, summary: str, kind: str) -> RankError:
        return RankError(summary, kind=kind, world_size=self.member.world_size, rank=self.member.rank)

    # -- running -------------------------------------------------------------------------------------------

    def called(self, function: Callable[[], bytes]) -> bytes:
        """Call the function; a failure is told to the others, who else would see a connection close."""
        try:
            return function()
        except Exception as error:
            failure = Failure.from_raised(self.member.rank, time.time(), witness.describe(error))
        if failure.is_consequence:
            raise self._cause() or failure.error(self.member.world_size)
        cause = failure.error(self.member.world_size)
        self._tell(cause)
        raise cause

    def _tell(self, error: RankError) -> None:
        with contextlib.suppress(RuntimeError):
            self.store.set("failed", json.dumps({**vars(error), "summary": error.summary}))

    def _cause(self) -> RankError | None:
        """What another rank says has failed, if it says so."""
        try:
            self.store.wait(["failed"], _LISTEN)
            return RankError(**json.loads(self.store.get("failed")))
        except RuntimeError:
            return None

    # -- ending --------------------------------------------------------------------------------------------

    def exchange(self, result: bytes) -> list[bytes]:
        """Give every rank's result to every rank; none leaves before, so that none breaks another's wait."""
        calls = self._said_by_all("calls", json.dumps(witness.calls()).encode(), self.left())
        results = self._said_by_all("returns", result, self.left())
        made = {
            rank: [hang.Call.from_json(call) for call in json.loads(said)] for rank, said in calls.items()
        }
        if clash := hang.first_disagreement(made):
            raise self._error(
                f"the ranks called different collectives, so the numbers are wrong: {clash}", "mismatch"
            )
        self._wait_to_leave()
        return [results[rank] for rank in self.member.everyone]

    def _wait_to_leave(self) -> None:
        """Let rank 0 go last: where torchrun's agents do not keep the store, it does."""
        names = [f"leaves/{rank}" for rank in self.member.everyone]
        self.store.set(names[self.member.rank], "")
        if self.member.rank == 0:
            self.store.wait(names, self.left())

    def leave(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()

    @contextlib.contextmanager
    def ended_at_the_deadline(self) -> Iterator[None]:
        """End the process at the deadline: nothing else gets a thread out of a collective of gloo's."""
        is_over = threading.Event()

        def watch() -> None:
            if not is_over.wait(self.left().total_seconds()):
                self._end()

        thread = threading.Thread(target=watch, name="dpcourse-deadline", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _end(self) -> None:
        """Say where the ranks stand, and leave."""
        own = str(remote.standing(self.member.rank, witness.stands()))
        said = self._said_by_all("stands", own.encode(), _LISTEN)
        places = [
            said.get(rank, f"rank {rank} did not answer".encode()).decode() for rank in self.member.everyone
        ]
        hint = f"; {CHECKS}" if len(said) < self.member.world_size else ""
        text = f"the run passed its deadline of {self.deadline_seconds:g} s: {'; '.join(places)}{hint}"
        error = self._error(text, kind="deadline")
        self._tell(error)
        try:
            raise error  # so that it has a traceback to be recorded
        except RankError:
            _tell_the_agent(error)
        print(error, file=sys.stderr, flush=True)
        os._exit(1)

    def _said_by_all(self, what: str, own: bytes, wait: timedelta) -> dict[int, bytes]:
        """Say something to all ranks, and give what each has said of it in time."""
        names = {rank: f"{what}/{rank}" for rank in self.member.everyone}
        try:
            self.store.set(names[self.member.rank], own)  # type: ignore[arg-type]
            self.store.wait(list(names.values()), wait)
            return {rank: self.store.get(name) for rank, name in names.items()}
        except RuntimeError:
            there = [rank for rank, name in names.items() if self.store.check([name])]
            return {rank: self.store.get(names[rank]) for rank in there}


def _card_towards(member: Member) -> str | None:
    """Name the network card by which this host reaches the place where the ranks meet.

    Left alone, gloo takes the address that the host's name stands for, which often no other host can reach.
    """
    with contextlib.suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(member.master, member.port, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of a datagram socket: nothing is sent
            own = probe.getsockname()[0]
        for name, cards in psutil.net_if_addrs().items():
            if any(card.address == own for card in cards):
                return name
    return None


def _tell_the_agent(error: RankError) -> None:
    """Leave the error where torchrun's own summary finds it."""
    from torch.distributed.elastic.multiprocessing.errors import get_error_handler

    get_error_handler().record_exception(error)
