"""The list of fonts, which matplotlib takes seconds to make in a new home: made once, put into each."""

from functools import cache
from pathlib import Path


@cache
def _made() -> dict[Path, str]:
    """The files that matplotlib keeps its list in; made here, before any kernel runs in this home."""
    import matplotlib.font_manager

    folder = Path(matplotlib.get_cachedir() or "/nowhere")
    matplotlib.font_manager.get_font_names()
    return {path: path.read_text() for path in folder.glob("fontlist-*.json")}


def put() -> None:
    """Have the list in this process's home; no student's process may be running."""
    for path, text in _made().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
