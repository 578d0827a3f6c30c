"""How students' code is kept apart from the grader's machine: the kinds, and whether they work here."""

import os
import pwd
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from dpcourse.grade import room
from dpcourse.grade.limits import Caps

MEANINGS = {
    "bwrap": (
        "students' code ran in namespaces of its own (bubblewrap), without a network, and saw only the "
        "system's programs and the course's package, read-only; time, output, memory, processes and files "
        "limited"
    ),
    "user": (
        "students' code ran as a user of its own, which may read what every user may; time, output, memory, "
        "processes and files limited"
    ),
    "none": "students' code ran as the grader's user, with its files and network; time and output limited",
}
_OFFLINE, _ONLINE = "; without a network", "; the network was NOT kept out"
_TRIAL_SECONDS = 30.0
_TRIAL = (sys.executable, "-P", "-m", "dpcourse.grade.trial")
_ALLOW = (
    "this system does not let bubblewrap make namespaces: on Ubuntu, sysctl "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container, start it with --security-opt "
    "seccomp=unconfined --security-opt systempaths=unconfined, or, as root in it, ask for --isolation user"
)


@dataclass(frozen=True)
class Isolation:
    """A kind of isolation that was found to work here, and what it means in words."""

    kind: str = "none"
    meaning: str = MEANINGS["none"]
    is_offline: bool = False

    def as_dict(self) -> dict[str, Any]:
        """What a record says of it."""
        caps = {} if self.kind == "none" else Caps().as_dict()
        return {"kind": self.kind, "meaning": self.meaning, "limits": caps}

    def environment(self) -> dict[str, str]:
        """The variables that a worker gets: of the grader's own none but where students' code is trusted."""
        if self.kind == "none":
            return dict(os.environ)
        return {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "USER": "student",
            "LOGNAME": "student",
            "CUDA_VISIBLE_DEVICES": "",
            "JUPYTER_PREFER_ENV_PATH": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def start(self, program: Sequence[str], folder: Path, channel: int, **options: Any) -> subprocess.Popen:
        """Start a worker's program, which makes `folder` and talks on the open file `channel`."""
        words = [str(folder), str(channel)]
        if self.kind == "none":
            return subprocess.Popen([*program, *words], pass_fds=[channel], **options)
        uid = unused_uid() if os.getuid() == 0 else None
        words += [self.kind, "" if uid is None else str(uid), str(int(self.is_offline))]
        environment = self.environment()
        if self.kind == "user":
            return subprocess.Popen([*program, *words], pass_fds=[channel], env=environment, **options)
        texts = [_open_text(room.HOSTS), _open_text(room.users(uid if uid is not None else os.getuid()))]
        try:
            command = [*room.outer(Caps().disk_bytes, *texts), "--", *program, *words]
            return subprocess.Popen(command, pass_fds=[channel, *texts], env=environment, **options)
        finally:
            for number in texts:
                os.close(number)

    def folder(self, name: str) -> Path:
        """Where a worker's folder is, as the worker sees it."""
        return room.FOLDER if self.kind == "bwrap" else Path(tempfile.gettempdir()) / name


NO_ISOLATION = Isolation()


def _open_text(text: str) -> int:
    number = os.memfd_create("text")
    os.write(number, text.encode())
    os.lseek(number, 0, os.SEEK_SET)
    return number


def unused_uid() -> int:
    """A number from high up that is no user's and no process's; in a container, one that it has."""
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    top = min(max(int(line.split()[0]) + int(line.split()[2]) for line in lines), 2**31) - 2
    known = {user.pw_uid for user in pwd.getpwall()}
    known |= {uid for process in psutil.process_iter(["uids"]) for uid in (process.info["uids"] or ())}
    return random.SystemRandom().choice(
        [uid for uid in random.sample(range(top - min(100_000, top // 10), top), 100) if uid not in known]
    )


def find(kind: str, private: Sequence[Path] = (), *, trial_seconds: float = _TRIAL_SECONDS) -> Isolation:
    """The isolation of that kind, tried for real.

    private: what students' code must not read: solutions, submissions, results. trial_seconds: how long a
    trial may take.

    Raises:
        ValueError: there is no such kind, or it does not work here; never is a weaker one taken instead.
    """
    if kind not in MEANINGS:
        raise ValueError(f"there is no isolation {kind!r}; there is: {', '.join(MEANINGS)}")
    if kind == "none":
        return Isolation()
    if problem := _missing(kind):
        raise ValueError(f"isolation {kind!r} does not work here: {problem}")
    seen = _seen(kind, private)
    if seen:
        raise ValueError(seen)
    return _tried(kind, trial_seconds)


def _missing(kind: str) -> str:
    """What the kind lacks on this machine, without trying."""
    if not sys.platform.startswith("linux"):
        return "it needs Linux; on other systems grade in a container, or only what you trust (none)"
    if kind == "user":
        root = "only root can change to another user; run the grader as root, or ask for bwrap"
        return "" if os.getuid() == 0 else root
    if not room.program():
        return "bubblewrap is not installed (Debian, Ubuntu: apt-get install bubblewrap)"
    text = subprocess.run([room.program(), "--help"], capture_output=True, text=True, timeout=10).stdout
    if "--disable-userns" not in text or "--size" not in text:
        return "bubblewrap is too old; it needs version 0.8 or newer"
    hidden = [path for path in room.needed_paths() if path.is_relative_to("/tmp")]
    own_tmp = "stands in /tmp, in place of which students' code has a folder of its own; move it"
    return f"{hidden[0]} {own_tmp}" if hidden else ""


def _seen(kind: str, private: Sequence[Path]) -> str:
    """Which of the private paths students' code could read all the same, and what to do."""
    for path in (path.resolve() for path in private if path.exists()):
        if kind == "bwrap":
            for place in room.needed_paths():
                if path.is_relative_to(place.resolve()):
                    return f"{path} stands in {place}, which students' code sees; move it out of there"
        elif is_open(path):
            return f"{path} can be read by every user, so by students' code too: chmod -R go= {path}"
    return ""


def is_open(path: Path) -> bool:
    """Whether any user may read the file or folder at `path`."""
    is_reached = all(parent.stat().st_mode & 0o001 for parent in path.parents)
    return is_reached and bool(path.stat().st_mode & (0o005 if path.is_dir() else 0o004))


def _tried(kind: str, seconds: float) -> Isolation:
    """The isolation, after a small program has really been shut in."""
    offline = Isolation(kind, MEANINGS[kind] + (_OFFLINE if kind == "user" else ""), is_offline=True)
    online = replace(offline, meaning=MEANINGS[kind] + _ONLINE, is_offline=False)
    problems = []
    for isolation in (offline, online) if kind == "user" else (offline,):
        problem = _trial(isolation, seconds)
        if not problem:
            return isolation
        problems.append(problem)
    if kind == "bwrap":
        raise ValueError(f"isolation 'bwrap' does not work here: {problems[-1]}; {_ALLOW}")
    raise ValueError(
        f"isolation 'user' does not work here: {problems[-1]}; if Python stands in a private folder, make "
        "the environment elsewhere, or let other users pass through (chmod o+x)"
    )


def _trial(isolation: Isolation, seconds: float) -> str:
    """What went wrong when a small program was shut in, or nothing."""
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o711)
        folder = room.FOLDER if isolation.kind == "bwrap" else Path(base) / "trial"
        options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        with open(os.devnull) as nothing:
            process = isolation.start(
                _TRIAL, folder, nothing.fileno(), stderr=subprocess.PIPE, text=True, **options
            )
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return f"a trial did not end within {seconds:g} s"
    lines = said.strip().splitlines() or ["it ended without a word"]
    return lines[-1] if process.returncode else ""
