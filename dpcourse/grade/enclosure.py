"""A worker's side of the isolation: the user it acts as, the command that shuts a program in, the wiping."""

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from dpcourse.grade import room
from dpcourse.grade.folders import empty_folder, remove_folder
from dpcourse.grade.limits import Caps
from dpcourse.ranks.processes import die_with_parent

_ENTER = str(Path(__file__).with_name("enter.py"))
_FOR_EVERYONE = ("/tmp", "/var/tmp", "/dev/shm")


@dataclass(frozen=True)
class Enclosure:
    """One worker's isolation: its kind, the user of students' code (None: the grader's own), its folder."""

    kind: str
    uid: int | None
    is_offline: bool
    folder: Path

    def enter(self) -> None:
        """Make the folder, and act as the user of students' code without being it.

        What this process makes is then that user's. The real user stays root, so that students' code can
        neither stop nor trace this process.
        """
        self.folder.mkdir(mode=0o700, exist_ok=self.kind == "bwrap")
        if self.kind == "bwrap":
            room.TMP.mkdir()
            room.SHM.mkdir()
        if self.uid is None:
            return
        for path in (self.folder, *self.folder.iterdir()):
            os.chown(path, self.uid, self.uid)
        parent = os.getppid()
        os.setgroups([])
        os.setresgid(os.getgid(), self.uid, os.getgid())
        os.setresuid(os.getuid(), self.uid, os.getuid())
        die_with_parent(parent)  # cancelled by the change of user

    def command(self) -> tuple[str, ...]:
        """What stands before a command to shut it in; nothing where nothing is kept apart."""
        if self.kind == "none":
            return ()
        words = [f"user={self.uid}"] if self.uid is not None else []
        if self.kind == "bwrap":
            before = [*(_enter(*words) if words else ()), *room.inner()]
            return (*before, *_enter("passing", *Caps().words()))
        return _enter(*words, *(["offline"] if self.is_offline else []), "passing", *Caps().words())

    def wipe(self) -> None:
        """Remove every file that a request left behind."""
        if self.kind == "none":
            return
        keep = (room.TMP, room.SHM) if self.kind == "bwrap" else ()
        empty_folder(self.folder, keep)
        for path in keep:
            empty_folder(path)
        if self.kind == "user":
            self._wipe_elsewhere()

    def _wipe_elsewhere(self) -> None:
        """Remove what the user left in the folders that are open to everyone."""
        for place in _FOR_EVERYONE:
            for path in Path(place).iterdir():
                with contextlib.suppress(OSError):
                    if path.lstat().st_uid == self.uid and path != self.folder:
                        remove_folder(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def leave(self) -> None:
        """Remove the folder; a room's own ends with the room."""
        if self.kind != "bwrap":
            if self.uid is not None:
                os.seteuid(os.getuid())
            remove_folder(self.folder)


def _enter(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", _ENTER, *words, "--")


def from_words(folder: str, kind: str = "none", uid: str = "", is_offline: str = "0") -> Enclosure:
    """The enclosure that a worker's command line names."""
    return Enclosure(kind, int(uid) if uid else None, is_offline == "1", Path(folder))
