"""`--json`, as every command understands it: one document on stdout, all words on stderr."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Let a command be asked for its result as JSON; `what` names the result."""
    text = f"print {what} as one JSON document; everything else goes to stderr"
    parser.add_argument("--json", action="store_true", help=text)


@contextlib.contextmanager
def words_aside(is_json: bool) -> Iterator[None]:
    """Send to stderr what is printed meanwhile, so that nothing stands on stdout beside the document."""
    with contextlib.redirect_stdout(sys.stderr) if is_json else contextlib.nullcontext():
        yield


def show(document: Any) -> None:
    """Print the one document."""
    print(json.dumps(document, indent=1))
