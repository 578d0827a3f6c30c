"""The small files of a room: written whole or not at all, read as if anybody could have put them there.

The folder is named by DPCOURSE_ROOM, or by an argument. A file's own name is made of hashes and random
numbers, never of what somebody wrote. Nothing else is written, nothing is sent.
"""

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpcourse.show import is_reference

GUESS, PLACE = "dpcourse guess", "dpcourse place"
_SUBJECTS = {GUESS: "question", PLACE: "at"}
_MOST_BYTES, _MOST_FILES, _NAME_LETTERS, _REASON_LETTERS = 4096, 5000, 40, 100
_LARGEST = 1e100  # beyond it, or as near to 0, a number is no guess, and no axis has room for it
_SHOWN_SKIPPED = 5


@dataclass(frozen=True)
class Paper:
    """One file that can be read: what it says, and when it was written."""

    plain: Mapping[str, Any]
    written_at: float

    @property
    def name(self) -> str:
        """The name that its writer chose to show; empty for none."""
        return clean(self.plain.get("name", ""))


@dataclass
class Folder:
    """A room's folder, read again and again: a file that has not changed is not opened a second time.

    skipped: files that are none of a room's, each with why, as of the last reading.
    """

    path: Path
    skipped: tuple[str, ...] = ()
    _known: dict[str, tuple[tuple[int, int, int], Paper | str]] = field(default_factory=dict)

    def papers(self, kind: str) -> list[Paper]:
        """Every file of a kind, in the order of their names.

        Raises ValueError where there is no such folder.
        """
        return [paper for paper in self._all() if paper.plain["kind"] == kind]

    def _all(self) -> Iterator[Paper]:
        files = self._files()
        known, skipped = {}, []
        for entry in files[:_MOST_FILES]:
            known[entry.name] = found = self._found(entry)
            if isinstance(found[1], str):
                skipped.append(f"{clean(entry.name)} ({found[1]})")
        if len(files) > _MOST_FILES:
            skipped.append(f"{len(files) - _MOST_FILES} files beyond {_MOST_FILES}")
        self._known, self.skipped = known, tuple(skipped)
        return (paper for _, paper in known.values() if isinstance(paper, Paper))

    def _files(self) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.path) as entries:
                found = [entry for entry in entries if not entry.name.startswith(".")]
        except OSError as error:
            why = error.strerror or error
            raise ValueError(
                f"there is no room at {self.path} ({why}): give the folder, or set DPCOURSE_ROOM to its path"
            ) from None
        return sorted(found, key=lambda entry: entry.name)

    def _found(self, entry: os.DirEntry[str]) -> tuple[tuple[int, int, int], Paper | str]:
        """A file's stamp, and what it says or why it cannot be read."""
        try:
            seen = entry.stat(follow_symlinks=False)
            stamp = (seen.st_ino, seen.st_mtime_ns, seen.st_size)
            known = self._known.get(entry.name)
            if known and known[0] == stamp:
                return known
            return stamp, Paper(_read(entry.path), seen.st_mtime)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return (0, 0, 0), clean(str(error) or type(error).__name__, _REASON_LETTERS)


def room_folder(asked: Any = None) -> Path | None:
    """The room's folder, from the argument or DPCOURSE_ROOM; None where there is no room.

    Raises TypeError for what is no path.
    """
    if asked is not None and not isinstance(asked, str | os.PathLike):
        raise TypeError(f"room={asked!r}: give the path of a folder that all learners can reach")
    named = asked or os.environ.get("DPCOURSE_ROOM")
    return Path(named) if named and not is_reference() else None


def opened(folder: Any = None) -> Folder:
    """A room's folder, to be read.

    Raises ValueError where none is named; TypeError for what is no path.
    """
    path = room_folder(folder)
    if path is None:
        raise ValueError("no room is named: give the folder, or set DPCOURSE_ROOM to its path")
    return Folder(path)


def is_there(folder: Path) -> bool:
    """Whether a folder can be reached: below a closed one even that question is refused."""
    try:
        return folder.is_dir()
    except OSError:
        return False


def file_of(folder: Path, subject: str, learner: str) -> Path:
    """Where a learner's file on a subject lies."""
    return folder / f"{_hash(subject)}-{_hash(learner)}.json"


def chosen_name() -> str:
    """The name that a learner chose to show, in DPCOURSE_NAME; empty for none."""
    return clean(os.environ.get("DPCOURSE_NAME", ""))


def put(path: Path, plain: Mapping[str, Any]) -> None:
    """Write a file under a name that nobody can know before, then give it its own.

    Raises OSError where that cannot be done; nothing is left then.
    """
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps(dict(plain)).encode())
        os.chmod(part, 0o644)  # all in the room may read it
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


def _read(file: str) -> dict[str, Any]:
    """Read a small regular file as JSON; a link is not followed, and a pipe is not waited for."""
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as opened:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("no regular file")
        content = opened.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"over {_MOST_BYTES} bytes")
    try:
        plain = json.loads(content.decode())
    except (ValueError, RecursionError):
        raise ValueError("no JSON") from None
    if not isinstance(plain, dict) or plain.get("kind") not in _SUBJECTS:
        raise ValueError("neither a guess nor a place")
    if not _is_plain(plain.get(_SUBJECTS[plain["kind"]])):
        raise ValueError("its subject is no plain text")
    if plain["kind"] == GUESS:
        _check_number(plain.get("guess"))
    return plain


def _is_plain(text: Any) -> bool:
    """Whether it is text that shows as it is: nothing that turns lines round, rings, or is half a letter."""
    return isinstance(text, str) and all(letter.isprintable() or letter in "\n\t" for letter in text)


def _check_number(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("its guess is no number")
    if not is_finite(value):
        raise ValueError("its guess is no finite number of a size to draw")


def is_finite(value: float) -> bool:
    """Whether a guess is a number that a file and an axis have room for."""
    return value == 0 or 1 / _LARGEST <= abs(value) <= _LARGEST  # nan is not


def clean(text: Any, num_letters: int = _NAME_LETTERS) -> str:
    """Text as it may stand in a figure: printable, not long, and nothing that is drawn as a formula."""
    kept = "".join(letter for letter in str(text) if letter.isprintable() and letter != "$")
    return kept.strip()[:num_letters] if isinstance(text, str) else ""


def skipped_words(skipped: tuple[str, ...]) -> str:
    """Say which files were skipped; nothing where none was."""
    if not skipped:
        return ""
    more = len(skipped) - _SHOWN_SKIPPED
    also = f" and {more} more" if more > 0 else ""
    return f"Skipped: {'; '.join(skipped[:_SHOWN_SKIPPED])}{also}."


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
