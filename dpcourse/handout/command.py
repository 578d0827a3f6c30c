"""The command: `dpcourse release OUT`."""

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpcourse.handout.contents import release_files
from dpcourse.handout.solutions import leaks, solutions
from dpcourse.handout.write import read, remove, write
from dpcourse.json_output import add_json, show
from dpcourse.tables import bytes_text
from dpcourse.workspace import course_root

EXAMPLES = """\
examples:
  dpcourse release participants.zip    one file to hand out; it unpacks to the folder dpcourse/
  dpcourse release FOLDER              the same as a folder

What is in it: notebooks and labs without outputs, the package, the lock of all versions, and a README that
begins with `make lab`. What is not: the labs' sources with their solutions, the tests. The same course gives
the same bytes. What was written is read again and searched for every solution.

exit codes: 0 written; 1 a solution was found in it, and it was removed; 2 it could not be written;
130 interrupted: nothing is left
"""


def main(arguments: Sequence[str]) -> int:
    """Write a release and search it; 1 where a solution is in it, 2 where it cannot be written."""
    options = _parser().parse_args(arguments)
    root = course_root()
    try:
        write(release_files(root), options.out)
    except ValueError as error:
        print(f"dpcourse release: {error}", file=sys.stderr)
        return 2
    written, wanted = read(options.out), solutions(root / "labs" / "source")
    if found := leaks(written, wanted):
        remove(options.out)
        print("dpcourse release: removed again:", *found, sep="\n  ", file=sys.stderr)
        return 1
    _deliver(_document(options.out, written, len(wanted)), options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpcourse release",
        description="Write what a participant gets, as a folder or a zip file.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="a new folder, or a new file that ends in .zip")
    add_json(parser, "what is in it")
    return parser


def _document(out: Path, files: dict[str, bytes], num_solutions: int) -> dict[str, Any]:
    hashes = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    return {
        "out": str(out),
        "num_bytes": sum(map(len, files.values())),
        "num_solutions_searched_for": num_solutions,
        "sha256": hashes,
    }


def _deliver(document: dict[str, Any], is_json: bool) -> None:
    if is_json:
        show(document)
        return
    names, searched = document["sha256"], document["num_solutions_searched_for"]
    notebooks = [name for name in names if name.endswith(".ipynb")]
    print(*notebooks, sep="\n")
    print(f"{document['out']}: {len(names)} files, {bytes_text(document['num_bytes'])}")
    print(f"{len(notebooks)} notebooks without outputs; none of {searched} solutions is in it")
