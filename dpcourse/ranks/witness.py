"""A rank's answers about itself: where it stands, which collectives it called, how it failed.

One daemon thread in each rank waits for questions on the control socket, so that an answer comes even
while the main thread waits inside a collective.
"""

import contextlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections import deque
from typing import Any

from dpcourse.ranks import channel
from dpcourse.ranks.processes import sleep_until

_MAX_FRAMES = 60
_MAX_TEXT = 4000
_OWN = "dpcourse-"  # how the names of the course's own threads begin: they do what the main thread asks for
_NAME = f"{_OWN}witness"
_MAX_NOTED = 400  # as many as torch's recorder keeps in a rank
_noted: deque[dict[str, Any]] = deque(maxlen=_MAX_NOTED)


class Reporter:
    """Sends a rank's messages, and answers questions from a thread of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._dismissed = threading.Event()

    def start(self) -> None:
        """Begin to answer questions."""
        threading.Thread(target=self._answer_questions, name=_NAME, daemon=True).start()

    def send(self, kind: str, payload: bytes = b"", **fields: Any) -> None:
        with self._lock, contextlib.suppress(OSError):
            channel.send(self._sock, kind, payload, **fields)

    def wait_until_dismissed(self) -> None:
        """Stay, so that no peer's connection breaks, until the launcher says that the run is over."""
        if not any(thread.name == _NAME for thread in threading.enumerate()):
            self.start()  # it failed before it joined
        self._dismissed.wait()

    def _answer_questions(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                message = channel.receive(self._sock)
                if message.kind == "leave":
                    self._dismissed.set()
                    return
                self.send("stands", **stands())
        os._exit(1)  # the launcher has gone


def stands() -> dict[str, Any]:
    """Say where this rank's main thread stands, from another thread."""
    return {
        "stack": _stack_of(threading.main_thread().ident or 0),
        "calls": calls(),
        "cpu_seconds": time.process_time(),
        "is_alone": not any(map(_could_act, threading.enumerate())),
    }


def _could_act(thread: threading.Thread) -> bool:
    """Whether a thread may yet do something unasked: none of ours does, unless it sleeps until a time."""
    if thread in (threading.main_thread(), threading.current_thread()):
        return False
    if not thread.name.startswith(_OWN):
        return True
    stack = _stack_of(thread.ident or 0)
    return bool(stack) and stack[-1][2] == sleep_until.__name__


def _stack_of(thread: int) -> list[list[Any]]:
    """Where a thread stands, outermost call first: file, line and function.

    A frame that is looked at keeps its call's variables alive, also once the call is over: whole tensors that
    a meter of memory would count. So it is let go at once, and no source is read meanwhile.
    """
    frame, stack = sys._current_frames().get(thread), []
    while frame is not None:
        line_number = frame.f_lineno or frame.f_code.co_firstlineno  # None between two lines
        stack.append([frame.f_code.co_filename, line_number, frame.f_code.co_name])
        frame = frame.f_back
    return stack[::-1][-_MAX_FRAMES:]


def calls() -> list[dict[str, Any]]:
    """The collectives this rank has called, oldest first: from torch's flight recorder, and those noted here.

    Each: group (its ranks), number (its place among that group's calls), name, sizes, dtypes, is_pending.
    Point-to-point messages are not recorded.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_initialized():
        return []
    members = _members()
    found = [_call(entry, members) for entry in recorded_entries() if not entry["is_p2p"]]
    own = ({**call, "group": members.get(call["group_name"], [])} for call in _noted.copy())
    return [*own, *found]


_RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")


def recorded_entries() -> list[dict[str, Any]]:
    """What torch's flight recorder has, oldest first: NCCL keeps one of its own, in the same form as gloo's.

    Of the two, the one that has something: a rank's groups are all of one kind.
    """
    c10d = sys.modules["torch"]._C._distributed_c10d
    for dump in (getattr(c10d, name, None) for name in _RECORDERS):
        if dump and (entries := json.loads(dump(True, False)).get("entries")):
            return entries
    return []


def note_call(
    group_name: str, number: int, name: str, sizes: list[list[int]], dtypes: list[str]
) -> dict[str, Any]:
    """Note a collective that torch does not record; whoever carries it out sets is_pending to False."""
    record = _noted[-1]["record"] + 1 if _noted else 0
    _noted.append(
        {
            "group_name": group_name,
            "number": number,
            "name": name,
            "record": record,
            "sizes": sizes,
            "dtypes": dtypes,
            "is_pending": True,
        }
    )
    return _noted[-1]


def _members() -> dict[str, list[int]]:
    from torch.distributed.distributed_c10d import _world

    # Copies, made at once: the main thread may be adding a group.
    names, members = _world.pg_names.copy(), _world.pg_group_ranks.copy()
    return {names[group]: sorted(ranks) for group, ranks in members.items() if group in names}


def _call(entry: dict[str, Any], members: dict[str, list[int]]) -> dict[str, Any]:
    name = entry["process_group"][0]
    return {
        "group_name": name,
        "group": members.get(name, []),
        "number": entry["collective_seq_id"],
        "name": entry["profiling_name"].partition(":")[2],
        "record": entry["record_id"],
        "sizes": entry["input_sizes"],
        "dtypes": entry["input_dtypes"],
        "is_pending": not entry["retired"],
    }


def describe(error: BaseException) -> list[dict[str, Any]]:
    """An exception and its causes, first cause first, as JSON: type, text and frames."""
    chain: list[dict[str, Any]] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        chain.insert(0, _one(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)  # type: ignore[assignment]
    return chain


def _cut(text: str) -> str:
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[:_MAX_TEXT]} ... ({len(text):,} characters in all)"


def _one(error: BaseException) -> dict[str, Any]:
    formatted = traceback.TracebackException.from_exception(error, lookup_lines=False)
    return {
        "type": type(error).__name__,
        "text": _cut("".join(formatted.format_exception_only()).strip()),
        "frames": [[entry.filename, entry.lineno, entry.name] for entry in formatted.stack[-_MAX_FRAMES:]],
    }
