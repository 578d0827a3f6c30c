"""Slides of every chapter: they build from the notebooks as they are, and each is one screen of something."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import make_slides as slides  # noqa: E402 - a tool is no module of the package

CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))


def problems(made: nbformat.NotebookNode) -> list[str]:
    """What is wrong with slides: one without content, one without an end, text that went missing."""
    found = []
    for number, slide in enumerate(slides.slides_of(made), 1):
        if not any(cell.source.strip() for cell in slide.cells):
            found.append(f"slide {number} is empty")
        if slide.num_lines > slides.SCREEN_LINES:
            found.append(f"slide {number} has {slide.num_lines} lines")
    return found


def words(notebook: nbformat.NotebookNode) -> list[str]:
    return " ".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown").split()


def kinds(*cells: nbformat.NotebookNode) -> list[str]:
    made = slides.arranged(new_notebook(cells=list(cells)))
    return [cell.metadata["slideshow"]["slide_type"] for cell in made.cells]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_makes_slides_that_are_one_screen_each(path):
    notebook = nbformat.read(path, as_version=4)
    made = slides.arranged(notebook)
    assert problems(made) == []
    assert words(made) == words(notebook)
    assert [c.source for c in made.cells if c.cell_type == "code"] == [
        c.source for c in notebook.cells if c.cell_type == "code"
    ]
    assert 15 <= len(slides.slides_of(made)) <= 60


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_the_page_has_each_slide(path):
    made = slides.arranged(nbformat.read(path, as_version=4))
    page = slides.page_of(made, path.stem)
    types = [cell.metadata["slideshow"]["slide_type"] for cell in made.cells]
    screens = types.count("slide") + types.count("subslide")
    assert len(re.findall(r"<section[ >]", page)) == types.count("slide") + screens  # one round each column
    assert page.count("class='fragment'") + page.count('class="fragment"') >= types.count("fragment") > 0
    assert slides.STYLE in page


def test_a_slide_without_content_and_one_without_an_end_are_found():
    def shown(*cells):
        for cell in cells:
            cell.metadata["slideshow"] = {"slide_type": "slide"}
        return new_notebook(cells=list(cells))

    assert problems(shown(new_markdown_cell(" "))) == ["slide 1 is empty"]
    assert problems(shown(new_code_cell("x = 1\n" * 40))) == ["slide 1 has 41 lines"]


def test_a_heading_and_a_question_begin_slides_and_an_answer_waits():
    text = "# Title\n\nWords.\n\n## Part\n\nMore.\n\n**Predict.** How many?"
    answer = new_code_cell("held.reveal(formula=1)")
    assert kinds(new_markdown_cell(text), new_code_cell("held"), answer) == [
        *("slide", "slide", "slide"),
        *("-", "fragment"),
    ]


def test_what_is_more_than_a_screen_goes_on_below():
    long = [new_code_cell("x = 1\n" * 15) for _ in range(2)]
    assert kinds(new_markdown_cell("# Title"), *long) == ["slide", "-", "subslide"]
    many = new_markdown_cell("\n\n".join(["word " * 60] * 12))
    assert kinds(many) == ["slide", "subslide", "subslide"]


def test_parameters_and_imports_are_left_out():
    parameters = new_code_cell("ranks = 4", metadata={"tags": ["parameters"]})
    imports = new_code_cell("import dpcourse as dc\nfrom torch import nn")
    assert kinds(parameters, imports, new_code_cell("%time 1")) == ["skip", "skip", "slide"]


def test_of_a_long_output_the_beginning_is_shown_and_the_notebook_keeps_all():
    said = "\n".join(f"line {number}" for number in range(50))
    cell = new_code_cell("table", outputs=[new_output("stream", text=said)])
    made = slides.arranged(new_notebook(cells=[cell]))
    text = made.cells[0].outputs[0].text
    assert text.startswith("line 0\n")
    assert text.endswith("... and 33 lines more, in the notebook")
    assert cell.outputs[0].text == said


def test_a_list_and_code_in_a_text_are_not_cut_in_two():
    text = "Words.\n\n```\nfirst\n\nsecond\n```\n\n- one\n- two"
    assert slides.paragraphs(text) == ["Words.", "```\nfirst\n\nsecond\n```", "- one\n- two"]


def run(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "tools" / "make_slides.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


def test_the_command_writes_a_page_and_names_a_chapter_that_there_is_not(tmp_path):
    done = run("00", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["00_start_here.slides.html"]
    wrong = run("77", "--out", str(tmp_path))
    assert wrong.returncode == 2
    assert "no chapter 77 in notebooks/; there is 00_start_here" in wrong.stderr


def test_a_folder_without_chapters_says_how_to_fill_it(tmp_path):
    with pytest.raises(ValueError, match="there is nothing: run `make course` first"):
        slides.chosen([], tmp_path)
