"""Who handed something in, by the name that a learning management system gave the file or folder."""

import re
from dataclasses import dataclass

# "Ada Lovelace_1234_assignsubmission_file_", a folder or the beginning of a file's name.
_MOODLE = re.compile(r"^(?P<name>.+?)_(?P<number>\d+)_assignsubmission_(?:file|onlinetext)(?:_|$)")
# "lovelaceada_LATE_1234_56789_lab.ipynb": letters of the name, the user's number, the submission's.
_CANVAS = re.compile(r"^(?P<name>[^_/]+)_(?P<late>LATE_)?(?P<number>\d+)_\d+_(?P<file>.+)$")


@dataclass(frozen=True)
class Sender:
    """What a name says: of whom it is, their number in the system, and whether it says that it was late."""

    name: str
    number: str = ""
    system: str = ""
    is_late: bool = False


NOBODY = Sender("")


def sender_of(name: str) -> Sender:
    """The sender in the name of a file or folder; a name of no known pattern is the sender's own."""
    if found := _MOODLE.match(name):
        return Sender(found["name"], found["number"], "moodle")
    if found := _CANVAS.match(name):
        return Sender(found["name"], found["number"], "canvas", is_late=bool(found["late"]))
    return Sender(name)
