"""The switch that the ranks of a check are plugged into: it passes every message on, and writes it down.

It runs in the judge's process, on a thread. Ranks have no other way to each other that a lab's answer may
use, so that what the log says was sent is what was sent, whatever the answer prints, patches or claims.
A message is handed over when its receiver is ready for it, as on gloo: a send that nobody receives waits.
A switch that lies changes every number on its way: an answer that is right all the same has not used them.
"""

import contextlib
import secrets
import selectors
import shutil
import socket
import tempfile
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path

from dpcourse.labs import frames
from dpcourse.labs.frames import Frame

_HELD_BYTES = 1 << 28  # of all messages that wait to be taken
_MAX_EVENTS = 100_000
_MAX_WORD = 200
_TOKEN_BYTES = 32
_CHUNK_BYTES = 1 << 20
_LIE = bytes((byte + 1) % 256 for byte in range(256))  # of a float it changes the exponent too
CALL = "call "  # before the name of a collective and its bytes, in the note that a rank sends of it


@dataclass(frozen=True)
class Event:
    """One line of the log: what a rank did. A message has a peer and bytes; a note has words only."""

    rank: int
    what: str
    peer: int = -1
    num_bytes: int = 0


@dataclass
class Log:
    """What the ranks did, in the order in which the switch learnt of it; `broken` says what it refused."""

    world_size: int
    events: list[Event] = field(default_factory=list)
    deadlock: str = ""
    broken: str = ""

    def sent(self, rank: int) -> list[Event]:
        """The messages that a rank sent."""
        return [event for event in self.events if event.rank == rank and event.what == "send"]

    def sent_bytes(self, rank: int) -> int:
        """How many bytes it sent."""
        return sum(event.num_bytes for event in self.sent(rank))

    def calls(self) -> list[tuple[int, str]]:
        """The collectives that were called, ruled out or not: the rank and the name of each, in order."""
        called = [event for event in self.events if event.what.startswith(CALL)]
        return [(event.rank, event.what.split()[1]) for event in called]

    def parts(self, rank: int, begin: str) -> list[list[Event]]:
        """What a rank did after each of its notes that say `begin`, one list for each."""
        found: list[list[Event]] = []
        for event in self.events:
            if event.rank == rank and event.what == begin:
                found.append([])
            elif event.rank == rank and found:
                found[-1].append(event)
        return found

    def notes(self, rank: int) -> list[str]:
        """What it noted: collectives that it called, and what the lab's own code says."""
        return [event.what for event in self.events if event.rank == rank and event.what != "send"]


@dataclass(frozen=True)
class Plug:
    """What a rank needs to join: where the switch is, and the word that says which rank it is."""

    path: str
    token: str
    world_size: int
    rank: int


class Switch:
    """Use as a context: ranks join with their own of `plugs`; `log` is whole when the context is left.

    is_lying: each message arrives with other numbers than were sent.
    """

    def __init__(self, world_size: int, is_lying: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dpcourse-switch-"))
        self.log = Log(world_size)
        path = str(self.folder / "switch")
        self.plugs = [
            Plug(path, secrets.token_hex(_TOKEN_BYTES // 2), world_size, r) for r in range(world_size)
        ]
        tokens = {plug.token.encode(): plug.rank for plug in self.plugs}
        self._exchange = _Exchange(self.log, tokens, is_lying)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self.folder.chmod(0o711)
        Path(path).chmod(0o666)  # ranks may run as somebody else; the token says who may speak
        self._listener.listen(world_size)
        self._bell, self._rung = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="dpcourse-switch", daemon=True)

    def __enter__(self) -> "Switch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bell.close()
        self._thread.join()
        self._listener.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._rung:
            selector.register(self._rung, selectors.EVENT_READ)
            selector.register(self._listener, selectors.EVENT_READ)
            self._loop(selector)
        self._exchange.close()

    def _loop(self, selector: selectors.BaseSelector) -> None:
        while True:
            for key, mask in selector.select():
                if key.fileobj is self._rung:
                    return
                if key.fileobj is self._listener:
                    line = _Line(self._listener.accept()[0])
                    selector.register(line.sock, selectors.EVENT_READ, line)
                elif not self._exchange.attend(key.data, mask):
                    selector.unregister(key.fileobj)
                    key.data.sock.close()
            for line in self._exchange.lines.values():
                if line.sock.fileno() >= 0 and line.sock in selector.get_map():
                    selector.modify(line.sock, line.interest, line)


class _Line:
    """The switch's end of one rank's connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock, self.rank = sock, -1
        self.incoming, self.outgoing = bytearray(), deque[memoryview]()
        self.waits_for: int | None = None  # the number of the message that its main thread stands at
        self.is_done = False

    @property
    def interest(self) -> int:
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if self.outgoing else 0)

    def read(self) -> bool:
        """Take what has come; False when the rank has gone, also with a message that it did not read."""
        with contextlib.suppress(BlockingIOError):
            try:
                data = self.sock.recv(_CHUNK_BYTES)
            except ConnectionError:
                return False
            self.incoming += data
            return bool(data)
        return True

    def write(self) -> None:
        """Send what can be sent now."""
        with contextlib.suppress(BlockingIOError):
            while self.outgoing:
                sent = self.sock.send(self.outgoing[0])
                rest = self.outgoing.popleft()[sent:]
                if len(rest):
                    self.outgoing.appendleft(rest)

    def push(self, frame: Frame) -> None:
        """Have a frame sent to the rank."""
        self.outgoing.extend(memoryview(part) for part in frame.encode())

    def frames(self) -> list[Frame]:
        """The whole frames that have come."""
        found = []
        while len(self.incoming) >= frames.HEAD_BYTES:
            frame, num_bytes = frames.decode(self.incoming[: frames.HEAD_BYTES])
            end = frames.HEAD_BYTES + num_bytes
            if len(self.incoming) < end:
                break
            payload = bytes(self.incoming[frames.HEAD_BYTES : end])
            found.append(Frame(frame.kind, frame.number, frame.peer, frame.tag, payload))
            del self.incoming[:end]
        return found


_Way = tuple[int, int, int]  # from a rank, to a rank, with a tag


class _Exchange:
    """Brings messages together with those who are ready for them; knows when nobody can go on."""

    def __init__(self, log: Log, tokens: dict[bytes, int], is_lying: bool) -> None:
        self.log, self.tokens, self.is_lying = log, tokens, is_lying
        self.lines: dict[int, _Line] = {}
        self.messages: defaultdict[_Way, deque[Frame]] = defaultdict(deque)
        self.ready: defaultdict[_Way, deque[Frame]] = defaultdict(deque)
        self.open: dict[int, dict[int, str]] = defaultdict(dict)  # a rank's messages not yet handed over
        self.num_held_bytes = 0

    def attend(self, line: _Line, mask: int) -> bool:
        """Do what a connection has ready; False when it is over."""
        try:
            if mask & selectors.EVENT_WRITE:
                line.write()
            is_open = line.read() if mask & selectors.EVENT_READ else True
            self._hear(line)
        except (OSError, ValueError) as error:
            self.log.broken = self.log.broken or f"rank {line.rank} sent {error}"
            is_open = False
        if not is_open:
            # One that went without a word has failed: the launcher says how, which says more than who waits.
            line.is_done = line.is_done or bool(self.log.broken)
            self._look_for_deadlock()
        return is_open

    def close(self) -> None:
        for line in self.lines.values():
            line.sock.close()

    def _hear(self, line: _Line) -> None:
        if line.rank < 0 and not self._greet(line):
            return
        for frame in line.frames():
            self._take(line, frame)
        self._look_for_deadlock()

    def _greet(self, line: _Line) -> bool:
        """Learn from its token which rank this is; a token serves once."""
        if len(line.incoming) < _TOKEN_BYTES:
            return False
        rank = self.tokens.pop(bytes(line.incoming[:_TOKEN_BYTES]), None)
        if rank is None:
            raise ValueError("a word that is nobody's")
        del line.incoming[:_TOKEN_BYTES]
        line.rank, self.lines[rank] = rank, line
        return True

    def _take(self, line: _Line, frame: Frame) -> None:
        rank = line.rank
        if frame.kind == frames.NOTE:
            self._write(Event(rank, bytes(frame.payload).decode("utf-8", "replace")[:_MAX_WORD]))
        elif frame.kind == frames.DONE:
            line.is_done = True
        elif frame.kind == frames.WAIT:
            line.waits_for = frame.number
        elif frame.kind in (frames.SEND, frames.READY):
            if frame.peer not in range(self.log.world_size):
                raise ValueError(f"a message to or from rank {frame.peer}, which there is not")
            self._queue(rank, frame)
        else:
            raise ValueError(f"a frame of no kind, {frame.kind!r}")

    def _write(self, event: Event) -> None:
        if len(self.log.events) >= _MAX_EVENTS:
            raise ValueError(f"more than {_MAX_EVENTS:,} messages")
        self.log.events.append(event)

    def _queue(self, rank: int, frame: Frame) -> None:
        is_send = frame.kind == frames.SEND
        way = (rank, frame.peer, frame.tag) if is_send else (frame.peer, rank, frame.tag)
        if is_send:
            self._write(Event(rank, "send", frame.peer, len(frame.payload)))
            self.num_held_bytes += len(frame.payload)
            if self.num_held_bytes > _HELD_BYTES:
                raise ValueError(f"messages of {_HELD_BYTES:,} bytes that nobody takes")
        verb = "send to" if is_send else "receive from"
        self.open[rank][frame.number] = f"{verb} rank {frame.peer}"
        (self.messages if is_send else self.ready)[way].append(frame)
        while self.messages[way] and self.ready[way]:
            self._hand_over(way, self.messages[way].popleft(), self.ready[way].popleft())

    def _hand_over(self, way: _Way, message: Frame, ready: Frame) -> None:
        source, target, tag = way
        self.num_held_bytes -= len(message.payload)
        del self.open[source][message.number], self.open[target][ready.number]
        if source in self.lines:
            self._push(self.lines[source], Frame(frames.TAKEN, message.number))
        payload = bytes(message.payload).translate(_LIE) if self.is_lying else message.payload
        self._push(self.lines[target], Frame(frames.DATA, ready.number, source, tag, payload))

    def _push(self, line: _Line, frame: Frame) -> None:
        line.push(frame)
        with contextlib.suppress(OSError):  # it has gone, and its own end says so
            line.write()

    def _look_for_deadlock(self) -> None:
        """When every rank waits for a message that nobody can send any more, say so to all of them."""
        waiting = {rank: self.open[rank].get(line.waits_for or -1) for rank, line in self.lines.items()}
        stuck = {rank: what for rank, what in waiting.items() if what and not self.lines[rank].is_done}
        num_over = sum(line.is_done for line in self.lines.values())
        if not stuck or len(stuck) + num_over < self.log.world_size:
            return
        whole = [f"rank {rank} waits to {what}" for rank, what in sorted(stuck.items())]
        whole += [f"rank {rank} is done" for rank, line in sorted(self.lines.items()) if line.is_done]
        self.log.deadlock = self.log.deadlock or ", ".join(whole)
        for rank in stuck:
            self.lines[rank].waits_for = None
            self._push(self.lines[rank], Frame(frames.STOP, payload=self.log.deadlock.encode()))
