"""Refuses files over 500 kB: a repository keeps every version of them for ever. Used before each commit."""

import sys
from pathlib import Path

LIMIT_BYTES = 500_000


def too_large(paths: list[str]) -> list[str]:
    """A line for each file over the limit."""
    sizes = {path: Path(path).stat().st_size for path in paths if Path(path).is_file()}
    return [
        f"{path} has {size:,} bytes, over {LIMIT_BYTES:,}: make it smaller, or let a script make it"
        for path, size in sizes.items()
        if size > LIMIT_BYTES
    ]


if __name__ == "__main__":
    found = too_large(sys.argv[1:])
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)
