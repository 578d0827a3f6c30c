"""Runs that want GPUs take turns, whoever starts them: first come, first served, by file locks alone.

Each run has a ticket: a file of its own, in a folder that all users of the machine share. It holds the lock
of that file while it waits and runs, and the kernel frees the lock of a process that has ended, however it
ended: a ticket that anyone can lock is nobody's any more. No run opens another's file to write, so that the
folder can be sticky, as /tmp is. Tickets are read and changed under the folder's own lock.
"""

import contextlib
import fcntl
import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dpcourse.checks import check_count, read_as
from dpcourse.ranks.cluster import Cluster, gpus
from dpcourse.ranks.errors import LeftQueue
from dpcourse.ranks.progress import Progress

FOLDER_VARIABLE, SECONDS_VARIABLE = "DPCOURSE_QUEUE", "DPCOURSE_QUEUE_SECONDS"
# In a rank: its run's cards, for which a run that is started inside need not wait, and how long its own did.
HELD_VARIABLE, WAITED_VARIABLE = "DPCOURSE_HELD_GPUS", "DPCOURSE_WAITED_SECONDS"
# Not the folder that TMPDIR names, which may be each user's own.
_DEFAULT_FOLDER, _DEFAULT_SECONDS = "/tmp/dpcourse-queue", 3600.0
_LOOK_SECONDS, _MOMENT_SECONDS = 0.2, 0.01
_SILENT_SECONDS = 30.0  # a run that waits looks many times in it, on a crowded machine too
_LARGEST_BYTES = 1 << 16


@dataclass(frozen=True)
class Ticket:
    """A run in the queue: its number, how many cards it wants, of which, and those that it has."""

    number: int
    num_cards: int
    candidates: tuple[str, ...]
    taken: tuple[str, ...] = ()


@dataclass(frozen=True)
class Turn:
    """The cards that a run has, and how long it waited for them."""

    cards: tuple[str, ...]
    waited_seconds: float


def ahead(own: Ticket, others: Iterable[Ticket]) -> list[Ticket]:
    """Give the runs that came before and still wait for a card that `own` wants too."""
    waiting = (ticket for ticket in others if not ticket.taken and ticket.number < own.number)
    return [ticket for ticket in waiting if not set(ticket.candidates).isdisjoint(own.candidates)]


def at_work(own: Ticket, others: Iterable[Ticket]) -> list[Ticket]:
    """Give the runs that have a card which `own` wants."""
    return [ticket for ticket in others if not set(ticket.taken).isdisjoint(own.candidates)]


def cards_for(own: Ticket, others: Sequence[Ticket]) -> tuple[str, ...]:
    """Give the cards that a run may take now; none while it is not its turn, or too few are free."""
    busy = {card for ticket in others for card in ticket.taken}
    free = tuple(card for card in own.candidates if card not in busy)
    is_its_turn = not ahead(own, others) and len(free) >= own.num_cards
    return free[: own.num_cards] if is_its_turn else ()


def cards_wanted(cluster: Cluster, num_cards: int | None) -> tuple[list[str], int]:
    """Give the cards that will do for a run, and how many it takes: what its ranks need, or more if asked."""
    if cluster.chosen_device != "cuda":
        return [], 0
    if num_cards is None:
        num_cards = cluster.num_gpus
    check_count("gpus", num_cards)
    if num_cards < cluster.num_gpus and not cluster.share:
        raise ValueError(
            f"gpus={num_cards}: {cluster.num_ranks} ranks need one each; leave gpus out, or share"
        )
    return [gpu.uuid for gpu in gpus()], num_cards


@contextlib.contextmanager
def own_cards(cluster: Cluster, num_cards: int | None = None) -> Iterator[dict[str, str]]:
    """Hold a run's GPUs, if it computes on any, and give what the environment of its ranks says of them.

    See `turn` for what is raised. Waiting shows in the cell how many runs are ahead.
    """
    candidates, num_wanted = cards_wanted(cluster, num_cards)
    if num_wanted == 0:
        yield {}
        return
    progress = Progress(cluster.num_ranks)
    with contextlib.closing(progress), turn(candidates, num_wanted, progress.tick) as own:
        progress.close()
        names = ",".join(own.cards)
        waited = f"{own.waited_seconds:.3f}"
        yield {"CUDA_VISIBLE_DEVICES": names, HELD_VARIABLE: names, WAITED_VARIABLE: waited}


@contextlib.contextmanager
def turn(
    candidates: Iterable[str], num_cards: int, tick: Callable[[str], None] = lambda doing: None
) -> Iterator[Turn]:
    """Hold `num_cards` of the cards until the block ends, after all runs that came before for the same ones.

    Args:
        candidates: the cards that will do, each by the one name that all runs have for it.
        num_cards: how many of them are needed at once.
        tick: told again and again, while the run waits, what it waits for.

    Raises:
        ValueError: there are not so many cards, or the folder of the queue cannot be used.
        TimeoutError: it was not the run's turn within DPCOURSE_QUEUE_SECONDS.
        LeftQueue: the run was interrupted while it waited.
    """
    wanted = Ticket(0, num_cards, _different(candidates, num_cards))
    if set(wanted.candidates) <= set(os.environ.get(HELD_VARIABLE, "").split(",")):
        yield Turn(wanted.candidates[:num_cards], 0.0)
        return
    with contextlib.closing(Place(wanted, _folder(), longest_seconds())) as place:
        started = time.monotonic()
        place.wait(tick)
        yield Turn(place.ticket.taken, time.monotonic() - started)


def _different(candidates: Iterable[str], num_cards: int) -> tuple[str, ...]:
    different = tuple(dict.fromkeys(candidates))
    if num_cards > len(different):
        raise ValueError(
            f"{_gpus(num_cards)} for one run were asked for, and {len(different)} can be seen; ask for fewer"
        )
    return different


def longest_seconds() -> float:
    """Read how long a run may wait for its turn: an hour, or what DPCOURSE_QUEUE_SECONDS says."""
    text = os.environ.get(SECONDS_VARIABLE) or str(_DEFAULT_SECONDS)
    with contextlib.suppress(ValueError):
        if 0 < (seconds := float(text)) < math.inf:
            return seconds
    raise ValueError(f"{SECONDS_VARIABLE}={text!r}: give the number of seconds that a run may wait for GPUs")


def _folder() -> Path:
    folder = Path(os.environ.get(FOLDER_VARIABLE) or _DEFAULT_FOLDER)
    if not folder.is_absolute():
        raise ValueError(
            f"{FOLDER_VARIABLE}={str(folder)!r} is another folder wherever a run is started; give its whole "
            f"path, as in {FOLDER_VARIABLE}={folder.resolve()}"
        )
    return folder


class Place:
    """One run's place in the queue, from its ticket to the end of the run."""

    def __init__(self, wanted: Ticket, folder: Path, longest_seconds: float) -> None:
        from filelock import FileLock

        self.ticket, self.folder, self.longest_seconds = wanted, folder, longest_seconds
        self.until = time.monotonic() + longest_seconds
        self.others: list[Ticket] = []
        self._tick: Callable[[str], None] = lambda doing: None
        self._folder_fd = -1
        self._path = folder / f"{uuid.uuid4().hex}.ticket"
        # Everyone may look whether it is locked; the library keeps it from the forks of this process.
        self._lock = FileLock(self._path, mode=0o644)

    def wait(self, tick: Callable[[str], None]) -> None:
        """Join the queue, and return when the run has its cards."""
        self._tick = tick
        try:
            self._join()
            while not self._take():
                self._tick(f"wait for {_gpus(self.ticket.num_cards)} ({self._others()})")
                if time.monotonic() > self.until:
                    raise TimeoutError(self._too_long())
                time.sleep(_LOOK_SECONDS)
        except KeyboardInterrupt:
            raise LeftQueue() from None
        except TimeoutError:
            raise
        except OSError as error:
            raise ValueError(
                f"runs on GPUs take turns by files in {self.folder}, which cannot be used ({error}); name a "
                f"folder on a local disk that all users may write to, with {FOLDER_VARIABLE}=FOLDER"
            ) from None

    def _join(self) -> None:
        self._folder_fd = _open_shared(self.folder)
        with self._alone():
            last = max((ticket.number for ticket in self._look()), default=0)
            self._lock.acquire(timeout=0)
            self._write(replace(self.ticket, number=last + 1))

    def _take(self) -> bool:
        with self._alone():
            now = time.monotonic()
            os.utime(self._path, (now, now))  # says that this run still waits: see _living
            self.others = self._look()
            cards = cards_for(self.ticket, self.others)
            if cards:
                self._write(replace(self.ticket, taken=cards))
        return bool(cards)

    def _others(self) -> str:
        num_ahead, num_busy = len(ahead(self.ticket, self.others)), len(at_work(self.ticket, self.others))
        return f"{num_ahead} ahead in the queue, {num_busy} at work"

    def _too_long(self) -> str:
        return (
            f"{_gpus(self.ticket.num_cards)} could not be had in {self.longest_seconds:g} s "
            f"({self._others()}); see whose runs these are with ls -l {self.folder}, wait longer with "
            f'{SECONDS_VARIABLE}=SECONDS, or ask for device="cpu"'
        )

    # -- files -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Be the only one that reads and changes tickets."""
        while not _can_lock(self._folder_fd, fcntl.LOCK_EX):
            if time.monotonic() > self.until:
                raise TimeoutError(
                    f"a process has kept {self.folder} locked for {self.longest_seconds:g} s, and may be "
                    f"stopped: find it with fuser -v {self.folder}, and end it"
                )
            self._tick("wait for the queue's folder, which another process keeps locked")
            time.sleep(_MOMENT_SECONDS)
        try:
            yield
        finally:
            fcntl.flock(self._folder_fd, fcntl.LOCK_UN)

    def _look(self) -> list[Ticket]:
        """Read the tickets of the others that live, and take away what the dead have left."""
        paths = sorted(self.folder.glob("*.ticket"))
        return [ticket for path in paths if path != self._path for ticket in _living(path)]

    def _write(self, ticket: Ticket) -> None:
        with self._path.open("r+") as file:  # not a new file in place of one that somebody has removed
            file.write(json.dumps(asdict(ticket)))
            file.truncate()
        self.ticket = ticket

    def close(self) -> None:
        """Give the cards back, or leave the queue."""
        with contextlib.suppress(OSError):
            if self._lock.is_locked:
                self._path.unlink(missing_ok=True)
                self._lock.release()
        if self._folder_fd >= 0:
            os.close(self._folder_fd)
            self._folder_fd = -1


def _open_shared(folder: Path) -> int:
    """Open the folder; whoever is first makes it for all users."""
    if not folder.exists():
        before = os.umask(0)  # between mkdir and chmod a second user would be refused
        try:
            with contextlib.suppress(FileExistsError):
                folder.mkdir(0o1777)
        finally:
            os.umask(before)
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)


def _living(path: Path) -> Iterator[Ticket]:
    """Give the ticket in a file that its run still holds locked; of one that waits, if it has looked of late.

    A run that was stopped (Ctrl-Z) looks no more, and would keep all behind it from a card that is free. Its
    number stays: it goes on where it was once it runs again.
    """
    with contextlib.suppress(OSError, ValueError, RecursionError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if _can_lock(fd, fcntl.LOCK_SH):
                path.unlink()  # in a sticky folder only its own user may
            else:
                ticket = read_as(Ticket, json.loads(os.read(fd, _LARGEST_BYTES)), "ticket")
                if ticket.taken or time.monotonic() - os.fstat(fd).st_mtime < _SILENT_SECONDS:
                    yield ticket
        finally:
            os.close(fd)


def _can_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _gpus(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"
