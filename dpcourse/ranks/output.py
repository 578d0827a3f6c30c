"""What ranks print: whole lines, marked with the rank, in the cell that runs them, as they come."""

import codecs
import sys
from collections import deque

from dpcourse.show import is_reference

_LAST_WORDS_LINES = 12


class Lines:
    """One stream of one rank (or of one host): takes chunks of bytes, gives marked lines."""

    def __init__(self, number: int, what: str = "rank") -> None:
        self._mark_text = f"[{what} {number}]"
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._parts: list[str] = []
        self.last: deque[str] = deque(maxlen=_LAST_WORDS_LINES)

    def feed(self, data: bytes) -> str:
        """The marked lines that `data` completed."""
        *whole, rest = self._decoder.decode(data).split("\n")
        if whole:
            whole[0] = "".join(self._parts) + whole[0]
            self._parts = []
        self._parts.append(rest)
        return self._mark(whole)

    def finish(self) -> str:
        """The last line, if it came without an end."""
        rest = "".join(self._parts) + self._decoder.decode(b"", final=True)
        self._parts = []
        return self._mark([rest]) if rest else ""

    def _mark(self, lines: list[str]) -> str:
        self.last.extend(lines)
        return "".join(f"{self._mark_text} {line}\n" for line in lines)


class Console:
    """Shows the lines of all ranks; in the reference configuration at the end, in order of rank."""

    def __init__(self, num_ranks: int) -> None:
        self._lines = {
            (rank, name): Lines(rank) for rank in range(num_ranks) for name in ("stdout", "stderr")
        }
        self._kept: dict[tuple[int, str], list[str]] = {key: [] for key in self._lines}
        self._is_kept = is_reference()

    def feed(self, rank: int, stream: str, data: bytes) -> None:
        """Show what a rank has written; an empty `data` is the end of the stream."""
        lines = self._lines[rank, stream]
        self._show(rank, stream, lines.feed(data) if data else lines.finish())

    def finish(self) -> None:
        """Show the lines that are not whole, and all that was kept."""
        for rank, stream in self._lines:
            self._show(rank, stream, self._lines[rank, stream].finish())
        for (_, stream), texts in self._kept.items():
            _write(stream, "".join(texts))

    def last_words(self, rank: int) -> str:
        """The last lines of a rank's standard error, where C++ libraries say why they abort."""
        return "\n".join(self._lines[rank, "stderr"].last)

    def _show(self, rank: int, stream: str, text: str) -> None:
        if self._is_kept:
            self._kept[rank, stream].append(text)
        elif text:
            _write(stream, text)


def _write(stream: str, text: str) -> None:
    if text:
        file = getattr(sys, stream)
        file.write(text)
        file.flush()
