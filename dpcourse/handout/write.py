"""Writes a release as a folder or as a zip file: whole or not at all, the same bytes every time."""

import os
import shutil
import tempfile
import zipfile
from pathlib import Path

_ROOT = "dpcourse"  # the one folder that a zip file unpacks to
_OTHER_ARCHIVES = (".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
_DATE = (1980, 1, 1, 0, 0, 0)  # the oldest that a zip file can say: the day of the writing changes no byte


def write(files: dict[str, bytes], out: Path) -> None:
    """Write `files` to `out`: a zip file where its name ends so, else a folder.

    Raises:
        ValueError: there is something of that name, or no folder to write it to.
    """
    if out.suffix.lower() in _OTHER_ARCHIVES:
        raise ValueError(
            f"{out}: a release is a zip file or a folder; give a name that ends in .zip, or in nothing"
        )
    if out.exists() or out.is_symlink():
        raise ValueError(f"{out} is there already; name another, or move it away")
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):
        raise ValueError(f"{out}: {out.parent} is no folder that can be written; make it first")
    try:
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=".release-") as name:
            part = Path(name) / out.name
            (_write_zip if _is_zip(out) else _write_folder)(files, part)
            part.rename(out)
    except OSError as error:
        raise ValueError(f"{out}: it could not be written ({error.strerror}), and nothing is left") from None


def read(out: Path) -> dict[str, bytes]:
    """What was written."""
    if _is_zip(out):
        with zipfile.ZipFile(out) as archive:
            return {name.removeprefix(f"{_ROOT}/"): archive.read(name) for name in archive.namelist()}
    paths = [path for path in out.rglob("*") if path.is_file()]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in paths}


def remove(out: Path) -> None:
    """Take away what was written."""
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink(missing_ok=True)


def _is_zip(out: Path) -> bool:
    return out.suffix.lower() == ".zip"


def _mode(name: str) -> int:
    return 0o755 if name.endswith(".sh") else 0o644


def _write_zip(files: dict[str, bytes], part: Path) -> None:
    with zipfile.ZipFile(part, "x", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(f"{_ROOT}/{name}", _DATE)
            entry.external_attr, entry.create_system = _mode(name) << 16, 3  # as written on Unix
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])


def _write_folder(files: dict[str, bytes], part: Path) -> None:
    part.mkdir()
    for name, content in files.items():
        path = part / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(_mode(name))
