"""Pages of notebooks, which load nothing from the network: formulas are MathML, and no script is loaded."""

import re
import sys
from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat.v4 import new_markdown_cell, new_notebook

from dpcourse.pages import html_of, page_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import make_slides as slides  # noqa: E402 - a tool is no module of the package

CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$", re.DOTALL)
LOADED = re.compile(
    r"""(?:<(?:script|img|iframe)[^>]*\bsrc|<link[^>]*\bhref)=["'](https?://[^"']+)|import [^;]*?(https?://[^"']+)"""
)
COPY = {
    "dist/reveal.js": "Reveal = 1",
    "plugin/notes/notes.js": "RevealNotes = 2",
    "dist/reveal.css": "@import url(https://x.org/font);\np { color: red }",
    "dist/theme/simple.css": "p { margin: 0 }",
}


def loaded(page: str) -> list[str]:
    """What a page asks the network for."""
    return [first or second for first, second in LOADED.findall(page)]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_each_formula_of_a_chapter_is_drawn_without_a_word_of_latex_left(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "markdown":
            drawn = re.findall(r"<math.*?</math>", html_of(cell.source, path.parent), re.DOTALL)
            assert len(drawn) == len(FORMULA.findall(re.sub(r"`[^`]*`", "", cell.source)))
            assert [formula for formula in drawn if "\\" in formula or "merror" in formula] == []


def test_a_page_asks_the_network_for_nothing():
    path = ROOT / "notebooks" / "04_ring_all_reduce.ipynb"  # the one with most formulas, and a picture
    assert loaded(page_of(nbformat.read(path, as_version=4), path.stem, path.parent)) == []


def test_nbconverts_own_page_would_ask_for_mathjax():
    page, _ = HTMLExporter().from_notebook_node(new_notebook(cells=[new_markdown_cell("$N$")]))
    assert any("mathjax" in address for address in loaded(page))
    assert "<math" not in page


def test_a_formula_is_mathml_and_what_stands_around_it_is_text():
    cells = [new_markdown_cell("So $2(N-1)/N$, `$HOME` and **1 < 2**.\n\n$$\\frac{S}{B}$$")]
    page = page_of(new_notebook(cells=cells), "x", ".")
    assert re.search(r"<mfrac>\W*(<mrow>)?<mi>S</mi>", page)
    assert 'display="block"' in page
    assert "<code>$HOME</code>" in page
    assert "<strong>1 &lt; 2</strong>" in page


@pytest.fixture
def copy(tmp_path):
    for name, text in COPY.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_slides_ask_the_network_for_reveal_alone_and_for_nothing_with_a_copy_inside(copy):
    made = slides.arranged(new_notebook(cells=[new_markdown_cell("# One\n\n$N$")]))
    assert not [a for a in loaded(slides.page_of(made, "x")) if "mathjax" in a.lower()]
    page = slides.page_of(made, "x", copy)
    assert loaded(page) == []
    assert "x.org" not in page
    assert all(text.splitlines()[-1] in page for text in COPY.values())
    assert "<mi>N</mi>" in page


def test_a_folder_that_is_no_copy_of_reveal_is_refused(copy, capsys):
    (copy / "dist/reveal.js").unlink()
    assert slides.main(["00", "--reveal", str(copy), "--out", str(copy / "out")]) == 2
    assert "has no dist/reveal.js; unpack what `npm pack reveal.js@4.0.2` brings" in capsys.readouterr().err
    assert not (copy / "out").exists()
