"""Every notebook of the course keeps the rules, and each rule is shown a notebook that breaks it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from dpcourse.workspace import course_files
from tests import notebook_rules as rules

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(
    path for folder in ("notebooks", "labs", "labs/source") for path in (ROOT / folder).glob("*.ipynb")
)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_notebook_of_the_course_keeps_the_rules(path):
    assert rules.problems_of(path) == []


def test_the_course_has_notebooks_and_labs():
    assert {path.parent.name for path in NOTEBOOKS} == {"notebooks", "labs", "source"}


def lost_links(name: str, text: str) -> list[str]:
    """Links of a notebook to what a learner's own copy of the course lacks."""
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", text)
    here = [target for target in targets if "://" not in target]
    return [t for t in here if os.path.normpath(f"{Path(name).parent}/{t}") not in course_files(ROOT)]


@pytest.mark.parametrize("name", course_files(ROOT))
def test_a_notebook_links_only_to_what_a_learner_has(name):
    cells = nbformat.read(ROOT / name, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert lost_links(name, text) == []


def test_a_link_to_what_only_a_clone_has_is_caught():
    text = "[labs](../labs/README.md), [here](03_ddp.ipynb#buckets), [there](https://pytorch.org)"
    assert lost_links("notebooks/04_ring_all_reduce.ipynb", text) == ["../labs/README.md"]


def solved(stub_lines: int, solution_lines: int) -> str:
    """A lab's cell with both, which have limits of their own."""
    solution = "x = 1\n" * solution_lines
    return "x = 1\n" * stub_lines + f"### BEGIN SOLUTION\n{solution}### END SOLUTION"


def text(words: int = 60) -> nbformat.NotebookNode:
    return new_markdown_cell("word " * words)


def code(source: str, count: int | None = None, *shown: nbformat.NotebookNode) -> nbformat.NotebookNode:
    return new_code_cell(source, execution_count=count, outputs=list(shown))


def parameters() -> nbformat.NotebookNode:
    return new_code_cell("ranks = 4", execution_count=1, metadata={"tags": ["parameters"]})


def stream(said: str) -> nbformat.NotebookNode:
    return new_output("stream", name="stdout", text=said)


def data(kind: str, value: str) -> nbformat.NotebookNode:
    return new_output("display_data", data={kind: value})


def good() -> nbformat.NotebookNode:
    """A chapter that keeps every rule."""
    cells = [text(), parameters(), text()]
    for count in range(2, 20):
        cells += [code(f"%time ranks + {count}", count, stream("6\n")), text()]
    return new_notebook(cells=cells)


def with_cell(*cells: nbformat.NotebookNode) -> nbformat.NotebookNode:
    notebook = good()
    notebook.cells[3:5] = cells
    return notebook


def test_a_good_notebook_breaks_no_rule():
    assert [problem for rule in rules.EVERYWHERE + rules.IN_CHAPTERS for problem in rule(good())] == []


@pytest.mark.parametrize(
    ("rule", "cell", "said"),
    [
        (rules.parses, code("def broken(:"), "does not parse"),
        (rules.has_a_parameters_cell, parameters(), "has 2 cells tagged parameters"),
        (rules.has_short_cells, code("x = 1\n" * 21), "has 21 lines"),
        (rules.has_short_cells, code(solved(1, 46)), "has 46 lines, over 45"),
        (rules.has_short_cells, code(solved(21, 1)), "has 21 lines"),
        (rules.has_few_definitions, code("def a(): ...\n" * 3 + "class B: ..."), "defines 4 things"),
        (rules.uses_known_magics, code("%%writefile train.py\nx = 1"), "the magic writefile"),
        (rules.uses_known_magics, code("x = 1\n%nosuchmagic 2"), "the magic nosuchmagic"),
        (rules.uses_known_magics, code("%xmode Minimal"), "the magic xmode"),
        (rules.uses_known_magics, code("%%capture\n1 / 0"), "the magic capture"),
        (rules.starts_no_shell, code("!python train.py"), "a shell line: python train.py"),
        (rules.starts_no_shell, code("x = 1\nfound = !ls"), "a shell line: ls"),
        (rules.hides_no_error, code("import sys\nsys.tracebacklimit = 0"), "tracebacklimit"),
        (rules.hides_no_error, code("get_ipython().set_custom_exc((Exception,), print)"), "set_custom_exc"),
        (rules.hides_no_error, code("try:\n    1 / 0\nexcept Exception:\n    pass"), "swallows every error"),
        (rules.hides_no_error, code("try:\n    1 / 0\nexcept:\n    pass"), "swallows every error"),
        (rules.names_no_machine, code("1", 2, stream("File /home/ann/course/x.py")), "/home/ann/course/x.py"),
        (rules.names_no_machine, code("open(r'C:\\Users\\ann\\x')"), "C:\\Users"),
        (rules.names_no_machine, new_markdown_cell("see /tmp/run.json"), "/tmp/run.json"),
        (rules.keeps_text_only, code("1", 2, data("image/png", "iVBO")), "type image/png"),
        (rules.keeps_text_only, code("1", 2, data("text/html", "<b>1</b>")), "type text/html"),
        (rules.keeps_outputs, code("1", None), "was not run from top to bottom"),
        (rules.describes_images, new_markdown_cell("![](ring.svg)"), "without alt text"),
        (rules.describes_images, new_markdown_cell("<img src='a.png' alt=''>"), "without alt text"),
        (rules.describes_images, code("1", 2, data("text/html", "<figure><img src=x></figure>")), "alt text"),
        (rules.has_the_length_of_a_lesson, text(1500), "words, not 1200 to 2200"),
    ],
)
def test_a_broken_rule_is_found_and_named(rule, cell, said):
    assert rule(good()) == []
    assert said in "\n".join(rule(with_cell(cell, text())))


def test_an_image_with_alt_text_is_right():
    cells = [new_markdown_cell("![a ring](r.svg) <img alt='a star' src=s>"), text()]
    assert rules.describes_images(with_cell(*cells)) == []


def test_addresses_and_relative_paths_are_no_paths_of_a_machine():
    said = "see https://pytorch.org/docs/home/x, ../labs/01.ipynb, 4/4/8 and either/or"
    assert rules.names_no_machine(with_cell(new_markdown_cell(said), text())) == []


def test_a_handler_that_says_something_hides_nothing():
    cell = code("try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    print(error)")
    assert rules.hides_no_error(with_cell(cell, text())) == []


def test_three_code_cells_in_a_row_are_found():
    assert rules.has_text_between_code(with_cell(code("1"), code("2"), text())) == []
    assert rules.has_text_between_code(with_cell(code("1"), code("2"), code("3"), text())) != []


def test_a_notebook_without_outputs_is_found():
    notebook = good()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    assert rules.keeps_outputs(notebook) == ["keeps no outputs, so that it tests nothing"]


def test_two_cells_of_one_id_and_an_older_format_are_found():
    twice = good()
    twice.cells[1].id = twice.cells[0].id
    assert any("stands twice" in problem for problem in rules.is_well_formed(twice))
    older = good()
    older.nbformat_minor = 4
    assert rules.is_well_formed(older) == ["is of format 4.4, not 4.5"]
    invalid = good()
    invalid.cells[0].metadata = 3
    assert any("no valid notebook" in problem for problem in rules.is_well_formed(invalid))


@pytest.mark.parametrize("content", ["", "{", "[]", "<<<<<<< HEAD"])
def test_a_file_that_is_no_notebook_is_named(tmp_path, content):
    path = tmp_path / "x.ipynb"
    path.write_text(content)
    assert len(rules.problems_of(path)) == 1
    assert rules.problems_of(path)[0].startswith("can't be read as a notebook")


def test_the_rules_run_as_a_command_for_the_hook(tmp_path):
    (tmp_path / "notebooks").mkdir()
    paths = [tmp_path / "notebooks" / "good.ipynb", tmp_path / "notebooks" / "bad.ipynb"]
    nbformat.write(good(), paths[0])
    nbformat.write(with_cell(code("!ls"), text()), paths[1])
    command = [sys.executable, str(ROOT / "tests" / "notebook_rules.py"), *map(str, paths)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert found.returncode == 1
    assert all("bad.ipynb" in line for line in found.stdout.splitlines())
    assert "a shell line: ls" in found.stdout
