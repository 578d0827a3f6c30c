"""A sign of life for runs of over two seconds: one line, in the cell or the terminal, gone when they end."""

import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from dpcourse.show import is_reference

_QUIET_SECONDS = 2.0
_CLEAR_LINE = "\r\033[K"
Item = TypeVar("Item")


class Progress:
    """Says how long the ranks have been running; nothing in the reference configuration or into a file."""

    def __init__(self, num_ranks: int) -> None:
        self.what = f"{num_ranks} rank{'s' if num_ranks > 1 else ''}"
        self.started = time.monotonic()
        self.line = _line()

    def tick(self, doing: str = "running") -> None:
        """Show the line if it is time; call it as often as you like."""
        seconds = time.monotonic() - self.started
        if self.line and seconds > _QUIET_SECONDS:
            self.line.show(f"{self.what} {doing}: {seconds:.0f} s")

    def close(self) -> None:
        """Take the line away."""
        if self.line:
            self.line.show("")


def with_progress(items: Sequence[Item]) -> Iterable[Item]:
    """Go through runs, with a bar once they take over two seconds."""
    line = _line()
    if isinstance(line, _CellLine):
        return _with_a_bar(items, line)
    from tqdm import tqdm

    is_hidden = is_reference() or _is_in_a_kernel()
    return tqdm(items, unit="run", delay=_QUIET_SECONDS, leave=False, disable=is_hidden)


def _with_a_bar(items: Sequence[Item], line: "_CellLine") -> Iterator[Item]:
    """What a cell writes to stderr looks like an error there, so the bar is an output, gone at the end."""
    started = time.monotonic()
    try:
        for number, item in enumerate(items):
            if time.monotonic() - started > _QUIET_SECONDS:
                bar = f'<progress value="{number}" max="{len(items)}"></progress>'
                line.show(f"run {number + 1} of {len(items)}", bar)
            yield item
    finally:
        line.show("")


class _TerminalLine:
    def __init__(self) -> None:
        self.text = ""

    def show(self, text: str) -> None:
        if text != self.text:
            sys.stderr.write(_CLEAR_LINE + text)
            sys.stderr.flush()
            self.text = text


class _CellLine:
    def __init__(self) -> None:
        self.text = ""
        self.handle = None

    def show(self, text: str, bar: str = "") -> None:
        if text == self.text:
            return
        from IPython.display import display

        bundle = {"text/plain": text, "text/html": f"{bar} <small>{text}</small>" if text else ""}
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)
        self.text = text


def _line() -> _TerminalLine | _CellLine | None:
    if is_reference() or threading.current_thread() is not threading.main_thread():
        return None  # a thread has no cell of its own: who runs in one says for itself how far it is
    if _is_in_a_kernel():
        return _CellLine()
    return _TerminalLine() if sys.stderr.isatty() and not _has_bar() else None


def _is_in_a_kernel() -> bool:
    ipython = sys.modules.get("IPython")
    return bool(ipython and hasattr(ipython.get_ipython(), "kernel"))


def _has_bar() -> bool:
    """Tell whether a progress bar stands in the terminal's last line, which has room for one of the two."""
    tqdm = sys.modules.get("tqdm")
    return any(not bar.disable for bar in getattr(getattr(tqdm, "tqdm", None), "_instances", ()))
