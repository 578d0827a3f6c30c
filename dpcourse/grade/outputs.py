"""What a batch leaves beside the records: grades, other systems' columns, the class, and feedback."""

import time

from dpcourse.grade.exports import EXPORTS
from dpcourse.grade.feedback import feedback_zip
from dpcourse.grade.record import Book, grades_csv, write_whole
from dpcourse.grade.summary import page

_SECONDS = 2.0


class Grades:
    """grades.csv while a batch goes on: written again every two seconds, and with all the rest at the end."""

    def __init__(self, book: Book) -> None:
        self.book, self._written_at = book, float("-inf")

    def refresh(self) -> None:
        """Write grades.csv, unless it was written just now."""
        if time.monotonic() - self._written_at >= _SECONDS:
            write_whole(self.book.folder / "grades.csv", grades_csv(self.book.lab, self.book.all_records()))
            self._written_at = time.monotonic()


def write_outputs(book: Book) -> None:
    """Write grades.csv and everything that is made of the records."""
    records = book.all_records()
    write_whole(book.folder / "grades.csv", grades_csv(book.lab, records))
    for name, export in EXPORTS.items():
        write_whole(book.folder / name, export(book.lab, records))
    write_whole(book.folder / "summary.html", page(book.lab, records))
    write_whole(book.folder / "feedback.zip", feedback_zip(book, records))
