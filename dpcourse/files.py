"""Files that are there whole or not at all."""

import os
import uuid
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, whole: what stood there stays until then, and nothing is left where it cannot be done.

    Raises OSError.
    """
    part = path.with_name(f".{path.name[:100]}.{uuid.uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            part.chmod(path.stat().st_mode & 0o777)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
