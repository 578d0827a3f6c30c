"""An offline kit: every wheel of requirements.lock and the course's own, in build/wheelhouse/.

`make wheelhouse` makes it with a network. Without one, beside a clone or a release of the course:

    PIP_NO_INDEX=1 PIP_FIND_LINKS=/path/to/wheelhouse make lab

The wheels are for this Python and this kind of machine; for others name them, as in
ARGS="--python-version 3.12 --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64". Torch comes
from TORCH_INDEX where one is named.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from downloads import bytes_text

ROOT = Path(__file__).resolve().parent.parent
WHEELHOUSE = ROOT / "build" / "wheelhouse"
_NEWER_PIP = "pip>=23.2"  # what the set-up brings first, where a Python came with an older one
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def requirements(lock: Path, torch_index: str) -> list[tuple[list[str], list[str]]]:
    """What is fetched: lines of the lock, and how pip is to find them.

    A torch for GPUs pins its own libraries, which the lock leaves out: it is fetched with all it needs. One
    for CPUs needs nothing that the lock lacks.
    """
    lines = [line for line in lock.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    lines.append(_NEWER_PIP)
    if not torch_index:
        return [(lines, [])]
    torch = [line for line in lines if line.startswith("torch==")]
    rest = [line for line in lines if line not in torch]
    return [(torch, ["--no-deps", "--index-url", torch_index]), (rest, ["--no-deps"])]


def fetch(lines: Sequence[str], options: Sequence[str], folder: Path) -> None:
    """Bring the wheels of some requirements; what is there already is not fetched again."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(lines))
        file.flush()
        wanted = ("--only-binary=:all:", "--find-links", str(folder), "--dest", str(folder), "-r", file.name)
        subprocess.run([*_PIP, "download", "--progress-bar=off", *wanted, *options], check=True)


def build_own(folder: Path) -> None:
    """Make the course's own wheel, by the setuptools that stands in this environment."""
    made = ("--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    subprocess.run([*_PIP, "wheel", "--quiet", *made], check=True)


def main(arguments: Sequence[str] = ()) -> int:
    """Fill the wheelhouse, and say how large it is and how it is used."""
    WHEELHOUSE.mkdir(parents=True, exist_ok=True)
    # Another Python or machine: pip then wants to be told that nothing is to be worked out.
    others = [*arguments, "--no-deps"] if arguments else []
    try:
        for lines, options in requirements(ROOT / "requirements.lock", os.environ.get("TORCH_INDEX", "")):
            fetch(lines, [*options, *others], WHEELHOUSE)
        build_own(WHEELHOUSE)
    except subprocess.CalledProcessError as error:
        print(f"The wheelhouse is not whole: pip ended with {error.returncode}; its words are above.")
        return 1
    wheels = list(WHEELHOUSE.glob("*.whl"))
    num_bytes = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{WHEELHOUSE}: {len(wheels)} wheels, {bytes_text(num_bytes)}. Without a network, in a clone:")
    print("  PIP_NO_INDEX=1 PIP_FIND_LINKS=/path/to/wheelhouse make lab")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
