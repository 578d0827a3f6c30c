"""What goes into a release: the notebooks and labs to work on, and what runs them."""

import subprocess
import tomllib
from pathlib import Path

from dpcourse.course import title_of
from dpcourse.notebook_files import cleared
from dpcourse.workspace import WorkspaceError, course_files

# As patterns below the course's folder; notebooks and labs come on top. Never labs/source.
_AS_THEY_ARE = (
    "dpcourse/**/*.py",
    "notebooks/cheat_sheet.md",
    "notebooks/glossary.md",
    "notebooks/images/*",
    "notebooks/reading.md",
    "tools/*",
    "Makefile",
    "environment.yml",
    "pyproject.toml",
    "requirements.lock",
)
_NEEDED = ("pyproject.toml", "requirements.lock", "dpcourse/__init__.py")

_README = """\
# Data parallelism, run for real

With Python 3.11 to 3.13 and make, on Linux or macOS, in this folder:

    make lab

It says how much it downloads, makes an environment in `.venv`, and opens JupyterLab on your own copies of the
notebooks and labs, in `my/`. Begin with `00_start_here`. Without an NVIDIA GPU, name an index of small CPU
builds of torch (PyTorch's installation page has its address): `make lab TORCH_INDEX=ADDRESS`.

Before a workshop, let the machine be looked at, and send the report to your instructor:

    .venv/bin/dpcourse doctor --report doctor.json

Without a network, with the folder of wheels that your instructor hands out beside this one:

    PIP_NO_INDEX=1 PIP_FIND_LINKS=/path/to/wheelhouse make lab

In a room with a shared folder, `DPCOURSE_ROOM=FOLDER make lab` lays each guess that you lock there. It bears
no name unless you set `DPCOURSE_NAME`; where you are is shown only with `DPCOURSE_PLACE=on`, as the last cell
that you ran. Beside the chapters there are a cheat sheet, a glossary and a reading list, in `notebooks/`.

## Chapters

{chapters}

## Labs

{labs}

A lab's `lab.check(...)` runs your answer on real ranks and says where it first goes wrong. You hand in the
notebook from `my/labs/`. `.venv/bin/dpcourse reset labs/01` brings a lab back as it was; your version stays
beside it.
"""


def release_files(root: Path) -> dict[str, bytes]:
    """Every file of a release: its name in it and its content.

    Raises:
        WorkspaceError: `root` is no whole clone of the course.
    """
    missing = [name for name in _NEEDED if not (root / name).is_file()]
    if missing:
        raise WorkspaceError(f"a release is made from a clone of the course, and {root} has no {missing[0]}")
    patterns = (*_AS_THEY_ARE, *_package_data(root))
    paths = {path for pattern in patterns for path in root.glob(pattern) if _is_the_course_s(path, root)}
    tracked = _tracked(root)
    names = {path.relative_to(root).as_posix(): path for path in paths}
    files = {name: path.read_bytes() for name, path in names.items() if tracked is None or name in tracked}
    files |= {name: cleared((root / name).read_bytes()) for name in course_files(root)}
    return files | {"README.md": _readme(root).encode()}


def _is_the_course_s(path: Path, root: Path) -> bool:
    """Whether it is a file of its own, and neither hidden nor in a hidden folder."""
    is_hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return path.is_file() and not path.is_symlink() and not is_hidden


def _tracked(root: Path) -> set[str] | None:
    """The files that git keeps: what somebody has left lying about is none of them. None without git."""
    if not (root / ".git").exists():
        return None
    command = ["git", "-c", f"safe.directory={root}", "-C", str(root), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return set(listed.decode().split("\0"))


def _package_data(root: Path) -> list[str]:
    """Patterns of what the package has beside Python, as pyproject.toml names it."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    return [f"dpcourse/{pattern}" for pattern in project["tool"]["setuptools"]["package-data"]["dpcourse"]]


def _readme(root: Path) -> str:
    lists = {"notebooks": "", "labs": ""}
    for name in course_files(root):
        lists[name.split("/")[0]] += f"- `{Path(name).stem}`: {_title(root / name)}\n"
    texts = {folder: text.rstrip() or "None yet." for folder, text in lists.items()}
    return _README.format(chapters=texts["notebooks"], labs=texts["labs"])


def _title(path: Path) -> str:
    import nbformat

    return title_of(nbformat.read(path, as_version=4), path.stem)
