"""A zip file with each student's page, named as their submission came, so that a system can hand it back."""

import io
import zipfile
from collections.abc import Iterable
from typing import Any

from dpcourse.grade.record import Book, file_key

_NO_TIME = (1980, 1, 1, 0, 0, 0)  # the same reports give the same file


def feedback_zip(book: Book, records: Iterable[dict[str, Any]]) -> bytes:
    """A folder for each student who handed something in, with their report in it.

    The folder is called as the file or folder that came: Moodle takes such a zip file back ("Upload multiple
    feedback files in a zip"), and so does Canvas where the file's own name is kept.
    """
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for record in records:
            report = book.report_path(record["student"])
            if record["arrived"] and report.exists():
                name = f"{_safe(record['arrived'])}/{book.lab.name}.html"
                archive.writestr(zipfile.ZipInfo(name, _NO_TIME), report.read_bytes(), zipfile.ZIP_DEFLATED)
    return data.getvalue()


def _safe(name: str) -> str:
    """The name as it came, unless it could lead out of its folder."""
    return file_key(name) if {"/", "\\", ".."} & {name, *name} or name.startswith(".") else name
