"""Pages of notebooks that need no network: formulas as MathML, which browsers draw, and no scripts loaded.

nbconvert's pages load MathJax and more from the network; without one, formulas would stay raw LaTeX.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

_FROM_ELSEWHERE = re.compile(r"""<script[^>]*\bsrc=["']https?://[^>]*>\s*</script>""")
_IMPORTING = re.compile(
    r"""<script type="module">(?:(?!</script>).)*?\bimport\b.*?https?://.*?</script>""", re.DOTALL
)


class _WithMathMl(IPythonRenderer):
    """Markdown as HTML, with each formula as MathML in place of LaTeX for MathJax."""

    def block_math(self, body: str) -> str:
        return convert(body, display="block")

    def inline_math(self, body: str) -> str:
        return convert(body)


def html_of(markdown: str, folder: str | Path = ".") -> str:
    """Turn a cell's text into HTML, with images of the folder in it."""
    renderer = _WithMathMl(escape=False, embed_images=True, path=str(folder))
    return str(MarkdownWithMath(renderer=renderer).render(markdown))


def with_mathml(exporter: HTMLExporter, folder: str | Path) -> HTMLExporter:
    """Have an exporter of nbconvert's write text as `html_of` does."""
    exporter.register_filter("markdown2html", partial(html_of, folder=folder))
    return exporter


def page_of(notebook: Any, name: str, folder: str | Path) -> str:
    """Make a notebook's page, which loads nothing."""
    exporter = with_mathml(HTMLExporter(embed_images=True), folder)
    body, _ = exporter.from_notebook_node(
        notebook, resources={"metadata": {"name": name, "path": str(folder)}}
    )
    return without_scripts(body)


def without_scripts(page: str) -> str:
    """Take out the scripts that a page of nbconvert's would load: MathJax, require.js, jQuery, mermaid."""
    return _IMPORTING.sub("", _FROM_ELSEWHERE.sub("", page))
