"""Make slides of the chapters: build/slides/NAME.slides.html, through nbconvert.

    .venv/bin/python tools/make_slides.py               all chapters, with the outputs kept in them
    .venv/bin/python tools/make_slides.py 03 05         these
    .venv/bin/python tools/make_slides.py --executed    those that `make course` has run: figures and times
    .venv/bin/python tools/make_slides.py --reveal DIR  with reveal.js inside, for a room without a network

A page loads reveal.js from the network. DIR is a copy: `npm pack reveal.js@4.0.2`, unpacked, its package/.

No notebook holds anything for slides. A rule sets each cell's slide_type: a heading, or a question to guess,
begins a slide; what is more than a screen goes on below it; a question's answer comes at the next key press.
A long text is cut between paragraphs, and of a long output the beginning is shown.
"""

import argparse
import ast
import copy
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).parents[1]
OUT, EXECUTED = ROOT / "build" / "slides", ROOT / "build" / "course"
SCREEN_LINES = 26  # what a slide has room for, at the size of type below
OUTPUT_LINES = 18  # of one output
LETTERS = 95  # of a line of text
PICTURE_LINES = 16
PREDICT = "**Predict.**"
MATHJAX = re.compile(r"""<script[^>]*\bsrc=["'][^"']*mathjax[^>]*>\s*</script>""", re.IGNORECASE)
RENDER_AGAIN = "Reveal.addEventListener('slidechanged', update);"  # formulas, by MathJax
REVEAL_LINK = re.compile(r"""<link[^>]*href="https://unpkg.com/reveal.js@[\d.]+/([^"]+)"[^>]*>""")
REVEAL_SCRIPTS = ("dist/reveal.js", "plugin/notes/notes.js")
REQUIRE = "function require(settings, names, start) { start(Reveal, RevealNotes); }"  # as the page calls it
STYLE_IMPORT = re.compile(r"@import[^;]*;")  # a font from the network
STYLE = """<style>
.reveal { font-size: 24px; } .reveal pre, .reveal .jp-OutputArea-output { font-size: 0.68em; }
.reveal .jp-OutputArea-output pre { white-space: pre; }
.reveal h1 { font-size: 1.9em; } .reveal h2 { font-size: 1.5em; } .reveal img { max-height: 62vh; }
</style>"""


@dataclass(frozen=True)
class Slide:
    """What stands on one screen."""

    cells: tuple[NotebookNode, ...]

    @property
    def num_lines(self) -> int:
        return sum(map(lines_of, self.cells))


# -- cells


def paragraphs(text: str) -> list[str]:
    """Cut a text at empty lines outside of code fences."""
    found: list[list[str]] = [[]]
    is_code = False
    for line in text.splitlines():
        is_code ^= line.startswith("```")
        if not line.strip() and not is_code:
            found.append([])
        else:
            found[-1].append(line)
    return ["\n".join(lines) for lines in found if lines]


def begins_a_slide(text: str) -> bool:
    return bool(re.match(r"#{1,2} ", text)) or text.startswith(PREDICT)


def text_lines(text: str) -> int:
    """Lines on the screen: each written line of a list or a table, else the paragraph as it flows."""
    lines = text.splitlines()
    if re.match(r"([-*|]|\d+\.) ?|```|\$\$", text):
        return sum(ceil(len(line) / LETTERS) or 1 for line in lines) + 1
    heading = 2 if text.startswith("#") else 0
    return heading + ceil(len(" ".join(lines)) / LETTERS) + 1


def cut(cell: NotebookNode) -> Iterator[NotebookNode]:
    """Cut a text at what begins a slide, and between paragraphs where it is more than a screen."""
    room, kept = 0, []
    for paragraph in paragraphs(cell.source):
        size = text_lines(paragraph)
        if kept and (begins_a_slide(paragraph) or size > room):
            yield _text(kept)
            kept = []
        room = (room if kept else SCREEN_LINES) - size
        kept.append(paragraph)
    if kept:
        yield _text(kept)


def _text(kept: Sequence[str]) -> NotebookNode:
    return nbformat.v4.new_markdown_cell("\n\n".join(kept))


def is_set_up(cell: NotebookNode) -> bool:
    """Parameters and imports: nothing to look at."""
    if cell.cell_type != "code":
        return False
    kinds = ast.Import | ast.ImportFrom
    try:
        is_imports = all(isinstance(node, kinds) for node in ast.parse(cell.source).body)
    except SyntaxError:  # a magic
        is_imports = False
    return is_imports or "parameters" in cell.metadata.get("tags", [])


def shortened(cell: NotebookNode) -> NotebookNode:
    """A code cell with the beginning of each long output, so that it fits below its code."""
    cell = copy.deepcopy(cell)
    used = len(cell.source.splitlines()) + 1 + len(cell.outputs)
    room = min(OUTPUT_LINES, SCREEN_LINES - used)
    shown = []
    for output in cell.outputs:
        if room > 0:
            room -= _shorten(output, room)
            shown.append(output)
    cell.outputs = shown
    return cell


def _shorten(output: NotebookNode, room: int) -> int:
    """Cut the text of an output to so many lines, the last of which says what is left; give their number."""
    place, key = (output, "text") if "text" in output else (output.get("data", {}), "text/plain")
    lines = "".join(place.get(key, "")).splitlines()
    if len(lines) > room:
        left = len(lines) - room + 1
        place[key] = "\n".join([*lines[: room - 1], f"... and {left} lines more, in the notebook"])
    return min(len(lines), room)


def lines_of(cell: NotebookNode) -> int:
    """Say how many lines of a screen a cell takes."""
    if cell.cell_type != "code":
        return sum(map(text_lines, paragraphs(cell.source)))
    return len(cell.source.splitlines()) + 1 + sum(map(_output_lines, cell.outputs))


def _output_lines(output: NotebookNode) -> int:
    data = output.get("data", {})
    if "image/png" in data or "<img" in "".join(data.get("text/html", "")):
        return PICTURE_LINES
    return len("".join(output.get("text", data.get("text/plain", ""))).splitlines()) + 1


# -- slides


def arranged(notebook: NotebookNode) -> NotebookNode:
    """A copy whose cells are cut, shortened, and marked for nbconvert's slides."""
    made, room = nbformat.v4.new_notebook(metadata=copy.deepcopy(notebook.metadata)), 0
    for cell in notebook.cells:
        parts = [shortened(cell)] if cell.cell_type == "code" else list(cut(cell))
        for part in parts:
            kind = _kind(part, room, not any(_is_shown(done) for done in made.cells))
            if kind in ("slide", "subslide"):
                room = SCREEN_LINES
            room -= 0 if kind == "skip" else lines_of(part)
            part.metadata["slideshow"] = {"slide_type": kind}
            made.cells.append(part)
    return made


def _is_shown(cell: NotebookNode) -> bool:
    return cell.metadata["slideshow"]["slide_type"] != "skip"


def _kind(cell: NotebookNode, room: int, is_first: bool) -> str:
    if is_set_up(cell) or not cell.source.strip():
        return "skip"
    if is_first or begins_a_slide(cell.source):
        return "slide"
    if lines_of(cell) > room:
        return "subslide"
    return "fragment" if ".reveal(" in cell.source else "-"


def slides_of(made: NotebookNode) -> list[Slide]:
    """Group the cells of an arranged notebook as nbconvert does, in the order in which they are shown."""
    screens: list[list[NotebookNode]] = []
    for cell in filter(_is_shown, made.cells):
        if cell.metadata["slideshow"]["slide_type"] in ("slide", "subslide"):
            screens.append([])
        screens[-1].append(cell)
    return [Slide(tuple(cells)) for cells in screens]


def page_of(made: NotebookNode, title: str, reveal: Path | None = None) -> str:
    """Make the HTML, which loads reveal.js from the network unless a copy of it is given."""
    from nbconvert import SlidesExporter
    from traitlets.config import Config

    from dpcourse.pages import with_mathml

    settings = {"reveal_theme": "simple", "reveal_transition": "none", "reveal_scroll": True}
    settings |= {"reveal_width": "1280", "reveal_height": "800"}
    if reveal:
        settings["reveal_scroll"] = False  # it would need jQuery
    exporter = with_mathml(SlidesExporter(config=Config({"SlidesExporter": settings})), ROOT / "notebooks")
    exporter.exclude_input_prompt = exporter.exclude_output_prompt = True
    body, _ = exporter.from_notebook_node(made, resources={"metadata": {"name": title}})
    body = MATHJAX.sub("", body).replace(RENDER_AGAIN, "")
    body = body.replace("</head>", f"{STYLE}\n</head>", 1)
    return with_reveal(body, reveal) if reveal else body


def with_reveal(page: str, reveal: Path) -> str:
    """Put a copy of reveal.js into the page, so that it loads nothing."""
    from dpcourse.pages import without_scripts

    def written(link: re.Match) -> str:
        return f"<style>\n{STYLE_IMPORT.sub('', (reveal / link[1]).read_text(encoding='utf-8'))}\n</style>"

    scripts = [(reveal / name).read_text(encoding="utf-8") for name in REVEAL_SCRIPTS]
    inside = "".join(f"<script>{text}</script>\n" for text in [*scripts, REQUIRE])
    page = REVEAL_LINK.sub(written, without_scripts(page))
    return page.replace("</head>", f"{inside}</head>", 1)


def chosen(names: Sequence[str], folder: Path) -> list[Path]:
    """Find chapters by their beginning, such as 03; none named: all."""
    paths = sorted(path for path in folder.glob("[0-9][0-9]_*.ipynb") if not path.stem.endswith(".out"))
    found = [path for path in paths if not names or any(path.stem.startswith(name) for name in names)]
    unknown = [name for name in names if not any(path.stem.startswith(name) for path in paths)]
    if unknown or not found:
        there = ", ".join(path.stem for path in paths) or "nothing: run `make course` first"
        raise ValueError(f"no chapter {', '.join(unknown)} in {folder.name}/; there is {there}")
    return found


def check_reveal(folder: Path | None) -> None:
    """Refuse a folder that is no copy of reveal.js."""
    missing = [name for name in REVEAL_SCRIPTS if folder and not (folder / name).is_file()]
    if missing:
        raise ValueError(
            f"--reveal {folder} has no {missing[0]}; unpack what `npm pack reveal.js@4.0.2` brings, and give "
            "its folder package"
        )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Slides of the chapters, through nbconvert.")
    parser.add_argument("chapters", nargs="*", help="such as 03 05; none: all")
    parser.add_argument("--executed", action="store_true", help="take what `make course` has run")
    parser.add_argument("--reveal", type=Path, help="a copy of reveal.js 4, to put into each page")
    parser.add_argument("--out", type=Path, default=OUT, help="where to (build/slides)")
    asked = parser.parse_args(arguments)
    try:
        paths = chosen(asked.chapters, EXECUTED if asked.executed else ROOT / "notebooks")
        check_reveal(asked.reveal)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    for path in paths:
        made = arranged(nbformat.read(path, as_version=4))
        page = asked.out / f"{path.stem}.slides.html"
        page.write_text(page_of(made, path.stem, asked.reveal), encoding="utf-8")
        print(f"{len(slides_of(made)):3} slides  {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
