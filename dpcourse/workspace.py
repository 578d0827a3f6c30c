"""my/: the learner's own copies of the notebooks and labs. Copied once, never overwritten.

The course's files stay as they are, so an update of the course never meets a learner's work. Copies that
nobody edited follow the course, those that were only run among them; edited ones stay, and a line says so.
A copy begins without outputs: those of the course hold the answers to its own questions.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from dpcourse.files import write_whole
from dpcourse.notebook_files import cleared, source_hash

STATE = ".dpcourse.json"  # in my/: for each copy, the hash of the course's version that it was made from


class WorkspaceError(Exception):
    """Something about my/ that the learner has to mend; str() is the one line that says so."""


@dataclass(frozen=True)
class Change:
    """What happened to one copy: "new", "updated", "reset" or "kept" (edited; there is a newer one)."""

    what: str
    name: str
    kept_as: str = ""

    def __str__(self) -> str:
        stem = self.name.removesuffix(".ipynb")
        if self.what == "kept":
            return (
                f"{self.name}: the course has a newer version; yours is edited and stays. "
                f"`dpcourse reset {stem}` brings the new one and keeps yours beside it."
            )
        if self.what == "reset":
            return f"{self.name}: as the course has it again" + (
                f"; your version is {self.kept_as}" if self.kept_as else ""
            )
        return f"{self.name}: {self.what}"


def course_root() -> Path:
    """The folder of the course: DPCOURSE_HOME, else the clone that this package stands in."""
    named = os.environ.get("DPCOURSE_HOME")
    root = Path(named).resolve() if named else Path(__file__).resolve().parent.parent
    if not (root / "notebooks").is_dir():
        raise WorkspaceError(
            f"The course's notebooks are needed, but {root} has no notebooks folder: "
            "set DPCOURSE_HOME to a clone of the course."
        )
    return root


def course_files(root: Path) -> list[str]:
    """Names of what a learner gets, relative to the course: notebooks/*.ipynb and labs/*.ipynb."""
    return sorted(
        path.relative_to(root).as_posix()
        for folder in ("notebooks", "labs")
        for path in (root / folder).glob("*.ipynb")
    )


def hash_of(path: Path) -> str:
    """A hash of what is written in a notebook, whatever it shows: equal hashes, no edit between them."""
    return source_hash(path.read_bytes())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, content)


class Workspace:
    """A learner's folder of copies."""

    def __init__(self, root: Path | None = None, my: Path | None = None):
        self.root = root or course_root()
        self.my = my or self.root / "my"
        if self.my.exists() and not self.my.is_dir():
            raise WorkspaceError(
                f"{self.my} should be a folder for your copies, but is a file: move it away."
            )

    def update(self) -> list[Change]:
        """Copy what is new, refresh what nobody edited, leave the rest; say what happened to whom."""
        origins = self._origins()
        changes = [change for name in course_files(self.root) if (change := self._update(name, origins))]
        self._remember(origins)
        return changes

    def _update(self, name: str, origins: dict[str, str]) -> Change | None:
        copy, current = self.my / name, hash_of(self.root / name)
        if not copy.exists():
            # A copy that was made once and is gone was removed by its owner: `dpcourse reset` brings it back.
            return None if name in origins else self._copy(name, origins, "new")
        if hash_of(copy) == current:
            origins[name] = current
            return None
        if origins.get(name) == current:
            return None
        if origins.get(name) == hash_of(copy):
            return self._copy(name, origins, "updated")
        return Change("kept", name)

    def _copy(self, name: str, origins: dict[str, str], what: str) -> Change:
        content = (self.root / name).read_bytes()
        _write(self.my / name, cleared(content))
        origins[name] = source_hash(content)
        return Change(what, name)

    def reset(self, wanted: str) -> Change:
        """Bring one copy back to the course's version. An edited one is kept beside it under another name."""
        name, origins = self.find(wanted), self._origins()
        copy = self.my / name
        is_edited = copy.exists() and hash_of(copy) not in (origins.get(name), hash_of(self.root / name))
        kept_as = free_name(copy) if is_edited else None
        if kept_as:
            shutil.copy2(copy, kept_as)  # a copy first: at no moment is the learner's version in no file
        self._copy(name, origins, "reset")
        self._remember(origins)
        return Change("reset", name, kept_as.relative_to(self.my).as_posix() if kept_as else "")

    def find(self, wanted: str) -> str:
        """The file meant by "03", "03_ddp", "labs/03" or a path. A bare number or name means the notebook."""
        parts = Path(wanted).as_posix().removesuffix(".ipynb").split("/")
        folder = parts[-2] if len(parts) > 1 else "notebooks"
        stem = parts[-1]
        names = [name for name in course_files(self.root) if name.startswith(f"{folder}/")]
        exact = [name for name in names if name == f"{folder}/{stem}.ipynb"]
        found = exact or [name for name in names if name.split("/")[1].startswith(f"{stem}_")]
        if len(found) == 1:
            return found[0]
        there = ", ".join(name.removesuffix(".ipynb") for name in course_files(self.root))
        raise WorkspaceError(f"{wanted!r} is not in the course, which has: {there}.")

    def _origins(self) -> dict[str, str]:
        try:
            origins = json.loads((self.my / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}  # nothing known: every copy that differs from the course counts as edited
        return origins if isinstance(origins, dict) else {}

    def _remember(self, origins: dict[str, str]) -> None:
        _write(self.my / STATE, json.dumps(origins, indent=1, sort_keys=True).encode())


def free_name(path: Path) -> Path:
    """03_ddp.ipynb -> 03_ddp.mine.ipynb, or .mine-2 and so on where that is taken."""
    number = 1
    while True:
        beside = path.with_name(f"{path.stem}.mine{'' if number == 1 else f'-{number}'}{path.suffix}")
        if not beside.exists():
            return beside
        number += 1
