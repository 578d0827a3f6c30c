"""Removes the folders in which students' code ran."""

import contextlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

_SECONDS = 5.0


def remove_folder(folder: Path) -> None:
    """Remove a folder with all in it, whatever modes were set there and whoever still writes to it."""
    deadline = time.monotonic() + _SECONDS
    while folder.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            _open_all(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _open_all(folder: Path) -> None:
    os.chmod(folder, 0o700)
    for place, names, _ in os.walk(folder):
        for name in names:
            if not os.path.islink(path := os.path.join(place, name)):
                os.chmod(path, 0o700)


def empty_folder(folder: Path, keep: Sequence[Path] = ()) -> None:
    """Remove all that a folder holds but the folders to keep."""
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            if path not in keep:
                remove_folder(path)
        else:
            path.unlink(missing_ok=True)
