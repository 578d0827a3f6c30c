"""Notebooks as files: what a learner wrote in one, and what running it has added."""

import hashlib
import json
from typing import Any

_KEPT, _KEPT_OF_CELLS = ("kernelspec", "language_info"), ("nbgrader", "tags")


def _kept(metadata: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: metadata[name] for name in names if name in metadata} if isinstance(metadata, dict) else {}


def notebook_text(notebook: dict[str, Any]) -> str:
    """The notebook as JupyterLab writes it."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def cleared(content: bytes) -> bytes:
    """A notebook file without outputs, so that no answer is read before it is guessed; others as they are.

    Nor has it what tools leave in its metadata: times, states of widgets, paths of the machine that ran it.
    """
    notebook = _parsed(content)
    if notebook is None:
        return content
    notebook["metadata"] = _kept(notebook.get("metadata", {}), _KEPT)
    for cell in notebook["cells"]:
        cell["metadata"] = _kept(cell.get("metadata", {}), _KEPT_OF_CELLS)
        if cell.get("cell_type") == "code":
            cell["outputs"], cell["execution_count"] = [], None
    return notebook_text(notebook).encode()


def source_hash(content: bytes) -> str:
    """A SHA-256 of what is written in a notebook's cells: running it and saving it change nothing.

    Anything that is no notebook is hashed as it is.
    """
    notebook = _parsed(content)
    written = content if notebook is None else json.dumps([_written(c) for c in notebook["cells"]]).encode()
    return hashlib.sha256(written).hexdigest()


def _written(cell: dict[str, Any]) -> list[Any]:
    return [cell.get("cell_type"), "".join(cell.get("source", "")), cell.get("metadata", {}).get("tags", [])]


def _parsed(content: bytes) -> dict[str, Any] | None:
    """The notebook in a file, or None where there is none that can be read."""
    try:
        notebook = json.loads(content)
        is_one = all(isinstance(cell, dict) and _is_cell(cell) for cell in notebook["cells"])
    except (ValueError, TypeError, KeyError):
        return None
    return notebook if is_one else None


def _is_cell(cell: dict[str, Any]) -> bool:
    source, metadata = cell.get("source", ""), cell.get("metadata", {})
    is_text = isinstance(source, str) or all(isinstance(line, str) for line in source)
    return is_text and isinstance(metadata, dict)
