"""Remake the locks from pyproject.toml: `make lock`. Versions that still fit are kept.

requirements.lock is what everyone gets; what some tests need beyond it has locks of their own.

torch pins its own GPU libraries (nvidia-*, cuda-*, triton), another set for each build, so they stay out: a
lock with them would bring gigabytes to machines without a GPU.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
PINNED_BY_TORCH = re.compile(r"^(nvidia-|cuda-|triton)")
WINDOWS_ONLY = re.compile(r"; (sys_platform == 'win32'|os_name == 'nt')$")
# What some tests need beside requirements.lock, and the extra that names it.
BESIDE = {"browser": "tests/browser/requirements.lock", "cluster": "tests/cluster/requirements.lock"}
HEADER = """\
# Every version of the environment, for Python 3.11 to 3.13 on Linux and macOS. Made by `make lock`.
# torch's own GPU libraries are left out: each build of torch pins them itself.
"""
BESIDE_HEADER = """\
# What the {extra} tests need beside requirements.lock, in its versions of all else. Made by `make lock`.
"""


def compiled(uv: str, previous: str, *extras: str) -> str:
    """uv's resolution for all platforms at once, with `previous` as the versions it prefers."""
    lock = ROOT / "build" / "requirements.new"
    lock.parent.mkdir(exist_ok=True)
    lock.write_text(previous, encoding="utf-8")
    options = ["--universal", "--python-version", "3.11", "--no-annotate", "--no-header"]
    options += [f"--extra={extra}" for extra in extras]
    command = [uv, "pip", "compile", *options, "--quiet", "-o", str(lock), "pyproject.toml", "-"]
    subprocess.run(command, cwd=ROOT, input=TORCH, text=True, check=True, stdout=subprocess.DEVNULL)
    return lock.read_text(encoding="utf-8")


def kept_lines(text: str) -> list[str]:
    """The lines of uv's resolution that the lock needs: torch pins its own libraries; no Windows."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [line for line in lines if not PINNED_BY_TORCH.match(line) and not WINDOWS_ONLY.search(line)]


def main(uv: str) -> None:
    """Write all locks anew, with as few changes as the declared ranges allow."""
    previous = _text("requirements.lock")
    lines = kept_lines(compiled(uv, previous, "dev"))
    _write("requirements.lock", HEADER, lines)
    for extra, lock in BESIDE.items():
        both = kept_lines(compiled(uv, "\n".join([*lines, _text(lock)]), "dev", extra))
        _write(lock, BESIDE_HEADER.format(extra=extra), [line for line in both if line not in lines])


def _text(name: str) -> str:
    path = ROOT / name
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _write(name: str, header: str, lines: list[str]) -> None:
    (ROOT / name).write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} packages in {name}")


if __name__ == "__main__":
    main(sys.argv[1])
