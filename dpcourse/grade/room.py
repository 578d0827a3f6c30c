"""The rooms that bubblewrap makes: what a worker sees of the machine, and what students' code sees of that.

Two, one in the other. The outer one is the worker's: the system and the installed course, read-only, and one
folder in memory that ends with it. The inner one is made of the outer one, with processes, network and user
of its own: no path in it leads to what the outer one lacks.
"""

import os
import shutil
import site
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import dpcourse

FOLDER = Path("/grading")
# Students' code writes here as /tmp and /dev/shm; it all lies in the one folder, which is limited and wiped.
TMP, SHM = FOLDER / "tmp", FOLDER / "shm"
_NAME = "grading"
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SETTINGS = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "fonts", "localtime", "mime.types")
HOSTS = f"127.0.0.1 localhost {_NAME}\n::1 localhost {_NAME}\n"


def program() -> str:
    """Where bubblewrap is, or nothing."""
    return shutil.which("bwrap") or ""


def needed_paths() -> list[Path]:
    """The folders outside /usr without which neither Python nor the course would start."""
    executable = Path(sys.executable).resolve()
    user_site = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    places: list[str | Path] = [
        sys.prefix,
        sys.base_prefix,
        executable.parents[1],
        *site.getsitepackages(),
        *user_site,
    ]
    package = Path(dpcourse.__file__).parent
    found: list[Path] = []
    for path in sorted({package, *[Path(place) for place in places]}, key=lambda path: len(path.parts)):
        if path.is_dir() and not any(path.is_relative_to(other) for other in (Path("/usr"), *found)):
            found.append(path)
    return found


def users(uid: int) -> str:
    """What /etc/passwd says in the room."""
    return f"root:x:0:0:root:/:/bin/false\nstudent:x:{uid}:{uid}:student:{FOLDER}:/bin/sh\n"


def outer(disk_bytes: int, hosts: int, passwd: int) -> list[str]:
    """The command that starts a worker in its room; two open files hold what stands in /etc there."""
    words = [program(), "--die-with-parent", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--hostname", _NAME, *_open_parents(), *_bound([Path("/usr"), *needed_paths()])]
    for path in (Path("/", name) for name in _SYSTEM):
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            words += _bound([path])
    words += _bound([Path("/etc", name) for name in _SETTINGS if Path("/etc", name).exists()])
    for number, name in ((hosts, "/etc/hosts"), (passwd, "/etc/passwd")):
        words += ["--perms", "0644", "--ro-bind-data", str(number), name]
    # The system's own list of processes: a new one would keep the inner room from having one.
    words += ["--bind", "/proc", "/proc", "--dev", "/dev", "--dir", "/tmp"]
    return [*words, "--size", str(disk_bytes), "--tmpfs", str(FOLDER), "--chdir", str(FOLDER)]


def inner() -> list[str]:
    """The command, within the outer room, that starts a program in the inner one.

    The program is process 1 there, which no process inside can stop or kill; it must collect orphans.
    """
    own = {"proc", "dev", "tmp", FOLDER.name}
    words = [program(), "--die-with-parent", "--new-session", "--unshare-all", "--unshare-user"]
    words += ["--disable-userns", "--hostname", _NAME]
    words += ["--unsetenv", "JPY_PARENT_PID"]  # a kernel would look for it among its own processes, and end
    for path in sorted(Path("/").iterdir()):
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.name not in own:
            words += _bound([path])
    words += ["--proc", "/proc", "--dev", "/dev", "--bind", str(FOLDER), str(FOLDER)]
    words += ["--bind", str(TMP), "/tmp", "--bind", str(SHM), "/dev/shm"]
    return [*words, "--as-pid-1", "--remount-ro", "/dev", "--remount-ro", "/"]


def _open_parents() -> list[str]:
    """Folders on the way to what is bound: without this they would be open to their owner only."""
    parents = {parent for path in needed_paths() for parent in path.parents} | {Path("/etc")}
    ways = sorted(str(path) for path in parents - {Path("/")})
    return [word for way in ways for word in ("--perms", "0755", "--dir", way)]


def _bound(paths: Iterable[Path]) -> Sequence[str]:
    return [word for path in paths for word in ("--ro-bind", str(path), str(path))]
