"""Reads a notebook file in whatever state it arrives, and says what was mended or why it cannot be read."""

import codecs
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

_CONFLICT_MARKERS = ("<<<<<<< ", ">>>>>>> ")
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_OWN_KERNELS = ("", "python3", "python")


class Unreadable(Exception):
    """The file is no notebook that could be read; the text says why, with the line where one is known."""


@dataclass(frozen=True)
class Cell:
    """One cell: "code" or "markdown", its text, and its name in nbgrader's metadata."""

    kind: str
    source: str
    grade_id: str = ""


@dataclass(frozen=True)
class Notebook:
    """The cells, what was mended on the way, and what stands against grading it all the same."""

    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()
    problem: str = ""


def read_notebook(data: bytes) -> Notebook:
    """The cells of a notebook file of any format version, with notes on what is unusual.

    Raises:
        Unreadable: no notebook can be made of the bytes.
    """
    text, notes = _decode(data)
    tree, more = _parse(text)
    cells = _raw_cells(tree)
    notes += more + _format_notes(tree, cells)
    metadata = _dict(tree.get("metadata"))
    notes += _kernel_notes(metadata)
    return Notebook(tuple(map(_cell, cells)), tuple(map(_writable, notes)), _writable(_foreign(metadata)))


def _writable(text: str) -> str:
    """The text with half characters, which JSON can hold and no file can, as Python's escapes for them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _decode(data: bytes) -> tuple[str, list[str]]:
    if not data.strip():
        raise Unreadable("the file is empty")
    if data.startswith(codecs.BOM_UTF8):
        return data.decode("utf-8-sig", "replace"), ["began with a byte-order mark"]
    if data[:2] in _UTF_16 or data[1:2] == b"\0":
        encoding = _UTF_16.get(data[:2], "utf-16-le")
        return data.decode(encoding, "replace"), ["was written in UTF-16"]
    try:
        return data.decode("utf-8"), []
    except UnicodeDecodeError:
        return data.decode("latin-1"), ["was not written in UTF-8; read as Latin-1"]


def _parse(text: str) -> tuple[dict[str, Any], list[str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(_CONFLICT_MARKERS):
            raise Unreadable(f"conflict markers of a version control system at line {number}")
    text = text.lstrip()
    try:
        tree, end = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise Unreadable(f"not JSON: {what} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise Unreadable("nested too deeply") from None
    except ValueError:  # the one other limit of the decoder: Python makes no number of so many digits
        raise Unreadable("not a notebook: it holds a number of thousands of digits") from None
    if type(tree) is not dict:
        raise Unreadable("not a notebook: the file holds JSON, but no notebook")
    return tree, ["text after the last brace was left out"] if text[end:].strip() else []


def _raw_cells(tree: dict[str, Any]) -> list[dict[str, Any]]:
    worksheets = tree.get("worksheets")
    cells: Any = tree.get("cells")
    if type(worksheets) is list and worksheets:  # format 3 and older
        cells = [cell for sheet in worksheets for cell in _list(_dict(sheet).get("cells"))]
    if type(cells) is not list:
        raise Unreadable("not a notebook: it has no list of cells")
    return [cell for cell in cells if type(cell) is dict]


def _cell(raw: dict[str, Any]) -> Cell:
    source = raw.get("source", raw.get("input", ""))
    text = "".join(map(str, source)) if type(source) is list else str(source)
    grader = _dict(_dict(raw.get("metadata")).get("nbgrader"))
    return Cell(str(raw.get("cell_type")), _writable(text), _writable(str(grader.get("grade_id", ""))))


def _format_notes(tree: dict[str, Any], cells: list[dict[str, Any]]) -> list[str]:
    major, minor = tree.get("nbformat"), tree.get("nbformat_minor", 0)
    notes = [] if major == 4 else [f"was written in notebook format {str(major)[:10]}"]
    ids = [cell.get("id") for cell in cells]
    has_ids = major == 4 and type(minor) is int and minor >= 5
    bad = sum(not (type(name) is str and 0 < len(name) <= 64) for name in ids) if has_ids else 0
    early = sum("id" in cell for cell in cells) if major == 4 and not has_ids else 0
    doubled = sum(count - 1 for count in Counter(str(name) for name in ids if name).values())
    notes += [f"{bad} cells without a valid id"] if bad else []
    notes += [f"{early} cells with an id, which format 4.{str(minor)[:10]} does not have"] if early else []
    return notes + ([f"{doubled} cell ids that stand twice"] if doubled else [])


def _kernel_notes(metadata: dict[str, Any]) -> list[str]:
    name = str(_dict(metadata.get("kernelspec")).get("name", ""))[:60]
    return [] if name in _OWN_KERNELS else [f"asked for kernel {name!r}; graded with the grader's own"]


def _foreign(metadata: dict[str, Any]) -> str:
    """Why a notebook of another language cannot be graded; empty for Python and for no language at all."""
    spec, info = _dict(metadata.get("kernelspec")), _dict(metadata.get("language_info"))
    language = str(info.get("name") or spec.get("language") or "python")[:30]
    is_python = language.lower() in ("python", "ipython")
    return "" if is_python else f"written in {language}; this lab is answered in Python"


def _dict(value: Any) -> dict[str, Any]:
    return value if type(value) is dict else {}


def _list(value: Any) -> list[Any]:
    return value if type(value) is list else []
