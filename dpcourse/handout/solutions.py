"""Looks for the labs' solutions where participants could read them."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dpcourse.labs.release import solutions_in

# A part of a solution that says nothing by itself, such as `self.whole = None`.
_LEAST_CHARACTERS = 24


def solutions(source: Path) -> dict[str, str]:
    """Each solution of the labs in a folder of sources: its name, and its lines without indentation."""
    found = {}
    for path in sorted(source.glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            for number, text in enumerate(solutions_in("".join(cell["source"])), 1):
                found[f"{path.stem}, {cell.get('id', 'a cell')}, {number}"] = _bare(text)
    return {name: text for name, text in found.items() if len(text) >= _LEAST_CHARACTERS}


def leaks(files: dict[str, bytes], wanted: dict[str, str]) -> list[str]:
    """Where a solution stands in a file, notebooks read as their cells and outputs: a line for each."""
    return [
        f"{name} has the solution of {solution}"
        for name, content in files.items()
        if (bare := _bare_texts(name, content))
        for solution, text in wanted.items()
        if text in bare
    ]


def _bare_texts(name: str, content: bytes) -> str:
    text = content.decode("utf-8", errors="replace")
    if not name.endswith(".ipynb"):
        return _bare(text)
    try:
        return "\n\n".join(_bare(found) for found in _texts(json.loads(text)))
    except ValueError:
        return _bare(text)


def _texts(value: Any) -> Iterator[str]:
    """Every text of a JSON value; a list of texts is one, as notebooks keep their cells."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        yield "".join(value)
    elif isinstance(value, dict | list):
        items: Iterable[Any] = value.values() if isinstance(value, dict) else value
        for item in items:
            yield from _texts(item)


def _bare(text: str) -> str:
    """Lines that hold code, without indentation, so that a solution is found however it is laid out."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("#"))
