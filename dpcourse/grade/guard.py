"""Watches what students' code holds together, which no limit of the kernel's on one process bounds."""

import contextlib
import os
import threading
from pathlib import Path

import psutil

from dpcourse.grade.limits import Caps

_SECONDS = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Guard:
    """While open, ends the processes below this one when they hold too much; `reason` says what it was.

    folder: the one that they write to, where nothing else bounds its size.
    """

    def __init__(self, caps: Caps, folder: Path | None) -> None:
        self.caps, self.folder, self.reason = caps, folder, ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Guard":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self.reason and not self._over.wait(_SECONDS):
            processes = psutil.Process().children(recursive=True)
            self.reason = self._what_is_passed(processes)
            if self.reason:
                end(processes)

    def _what_is_passed(self, processes: list[psutil.Process]) -> str:
        memory, disk = self.caps.memory_bytes, self.caps.disk_bytes
        # A cheap number that counts shared pages often; the exact one only where that comes near.
        if _own_bytes(processes) > memory and _shared_out_bytes(processes) > memory:
            return f"its processes held more than {memory / 1e9:.3g} GB of memory together"
        if self.folder and _folder_bytes(self.folder) > disk:
            return f"its files held more than {disk / 1e6:.0f} MB together"
        return ""


def end(processes: list[psutil.Process]) -> None:
    """Kill the processes, those that hold most first."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()


def _own_bytes(processes: list[psutil.Process]) -> int:
    return sum(_own(process.pid) for process in processes)


def _own(pid: int) -> int:
    """What a process holds beside files; pages that a fork left shared count for each."""
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    except (OSError, ValueError):  # gone meanwhile
        return 0
    return (int(resident) - int(shared)) * _PAGE


def _shared_out_bytes(processes: list[psutil.Process]) -> int:
    """What the processes hold, a page that n of them share counted as 1/n of a page in each."""
    return sum(_shared_out(process.pid) for process in processes)


def _shared_out(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # gone meanwhile, or shut to this user
        return _own(pid)
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _folder_bytes(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total
