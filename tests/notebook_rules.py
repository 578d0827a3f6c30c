"""What every notebook of the course keeps to, checked on the file alone, without a kernel.

Each rule takes a notebook and gives the lines that say where it is broken. nbval and papermill run notebooks;
these rules catch what a run lets pass: an unknown magic, a traceback switched off, an image without alt text.

    python tests/notebook_rules.py notebooks/*.ipynb labs/*.ipynb
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from nbformat import NotebookNode

Rule = Callable[[NotebookNode], list[str]]

MAX_LINES, MAX_DEFINITIONS, MAX_CODE_CELLS_IN_A_ROW = 20, 3, 2
# Of a lab: what is given around the lines that a learner writes, and what they write in half an hour.
MAX_STUB_LINES, MAX_SOLUTION_LINES = 30, 45
WORDS, CELLS = range(1200, 2201), range(35, 61)
ALLOWED_MAGICS = {"matplotlib", "time", "timeit", "pinfo", "pinfo2"}
HIDES_ERRORS = ("set_custom_exc", "showtraceback", "tracebacklimit", "excepthook", "input_transformers")
# A path that only exists on somebody's machine.
OWN_PATH = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp|var|opt|usr|mnt|private)/\S+|\b[A-Z]:\\\S+")
# Splits a cell into what stands outside of solutions and in them, in turn.
SOLUTION = re.compile(r"^ *### (?:BEGIN|END) SOLUTION\n?", re.MULTILINE)
IMAGE = re.compile(r"!\[(?P<markdown>[^\]]*)\]\(|<img\b(?P<html>[^>]*)>", re.IGNORECASE)
ALT = re.compile(r"""\balt\s*=\s*(?:"\s*[^"\s][^"]*"|'\s*[^'\s][^']*')""", re.IGNORECASE)


def code_cells(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    return ((number, cell) for number, cell in enumerate(notebook.cells) if cell.cell_type == "code")


def outputs(notebook: NotebookNode) -> Iterator[tuple[int, NotebookNode]]:
    return ((number, output) for number, cell in code_cells(notebook) for output in cell.outputs)


def tree_of(cell: NotebookNode) -> ast.Module:
    """The cell as Python sees it, magics turned into calls; empty where it does not parse."""
    try:
        return ast.parse(TransformerManager().transform_cell(cell.source))
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def is_well_formed(notebook: NotebookNode) -> list[str]:
    ids = [cell.get("id") for cell in notebook.cells]
    problems = [f"cell id {name} stands twice" for name in sorted({i for i in ids if i and ids.count(i) > 1})]
    if (notebook.nbformat, notebook.nbformat_minor) < (4, 5):
        return [*problems, f"is of format {notebook.nbformat}.{notebook.nbformat_minor}, not 4.5"]
    if problems:
        return problems  # nbformat would give the second cell another id
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        problems.append(f"is no valid notebook: {error.message}")
    return problems


def parses(notebook: NotebookNode) -> list[str]:
    problems = []
    for number, cell in code_cells(notebook):
        try:
            ast.parse(TransformerManager().transform_cell(cell.source))
        except SyntaxError as error:
            problems.append(f"cell {number} does not parse: {error.msg}")
    return problems


def has_a_parameters_cell(notebook: NotebookNode) -> list[str]:
    tagged = [cell for _, cell in code_cells(notebook) if "parameters" in cell.metadata.get("tags", [])]
    return [] if len(tagged) == 1 else [f"has {len(tagged)} cells tagged parameters, not 1"]


def has_short_cells(notebook: NotebookNode) -> list[str]:
    found = []
    for number, cell in code_cells(notebook):
        parts, is_stub = SOLUTION.split(cell.source), cell.metadata.get("nbgrader", {}).get("solution")
        most = MAX_STUB_LINES if is_stub else MAX_LINES
        for n, limit in ((num_lines(parts[::2]), most), (num_lines(parts[1::2]), MAX_SOLUTION_LINES)):
            found += [f"cell {number} has {n} lines, over {limit}"] if n > limit else []
    return found


def num_lines(parts: list[str]) -> int:
    """Lines of one side of a lab's cell: its stub, which is read, or its solution, which is written."""
    return sum(len(part.splitlines()) for part in parts)


def has_few_definitions(notebook: NotebookNode) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    counts = {
        number: sum(isinstance(node, kinds) for node in tree_of(cell).body)
        for number, cell in code_cells(notebook)
    }
    return [
        f"cell {number} defines {n} things, over 3" for number, n in counts.items() if n > MAX_DEFINITIONS
    ]


def has_text_between_code(notebook: NotebookNode) -> list[str]:
    row = 0
    for number, cell in enumerate(notebook.cells):
        row = row + 1 if cell.cell_type == "code" else 0
        if row > MAX_CODE_CELLS_IN_A_ROW:
            return [f"cell {number} is the third code cell in a row"]
    return []


def calls(cell: NotebookNode) -> Iterator[tuple[str, str]]:
    """(kind of call, first argument) for every magic and shell line, as IPython turns them into calls."""
    for node in ast.walk(tree_of(cell)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.func.attr, first.value


def uses_known_magics(notebook: NotebookNode) -> list[str]:
    return [
        f"cell {number} uses the magic {name}, which is not one of {', '.join(sorted(ALLOWED_MAGICS))}"
        for number, cell in code_cells(notebook)
        for kind, name in calls(cell)
        if kind in ("run_line_magic", "run_cell_magic") and name not in ALLOWED_MAGICS
    ]


def starts_no_shell(notebook: NotebookNode) -> list[str]:
    return [
        f"cell {number} runs a shell line: {line}"
        for number, cell in code_cells(notebook)
        for kind, line in calls(cell)
        if kind in ("system", "getoutput", "getoutput_split")
    ]


def is_silent_handler(node: ast.AST) -> bool:
    """`except:` or `except Exception:` with nothing but pass in it."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    name = node.type.id if isinstance(node.type, ast.Name) else ""
    is_broad = node.type is None or name in ("Exception", "BaseException")
    return is_broad and all(isinstance(child, ast.Pass) for child in node.body)


def hides_no_error(notebook: NotebookNode) -> list[str]:
    problems = []
    for number, cell in code_cells(notebook):
        words = [word for word in HIDES_ERRORS if word in cell.source]
        problems += [f"cell {number} hides tracebacks with {word}" for word in words]
        if any(is_silent_handler(node) for node in ast.walk(tree_of(cell))):
            problems.append(f"cell {number} swallows every error")
    return problems


def texts(output: NotebookNode) -> str:
    """All the text of an output, whatever its kind."""
    parts = [output.get("text", ""), *output.get("traceback", []), *output.get("data", {}).values()]
    return "\n".join(part if isinstance(part, str) else str(part) for part in parts)


def names_no_machine(notebook: NotebookNode) -> list[str]:
    places = [(number, texts(output)) for number, output in outputs(notebook)]
    places += [(number, cell.source) for number, cell in enumerate(notebook.cells)]
    found = [(number, match.group()) for number, text in places for match in OWN_PATH.finditer(text)]
    return [f"cell {number} names a path of one machine: {path}" for number, path in found]


def keeps_text_only(notebook: NotebookNode) -> list[str]:
    return [
        f"cell {number} keeps an output of type {kind}: run it in the reference configuration"
        for number, output in outputs(notebook)
        for kind in output.get("data", {})
        if kind != "text/plain"
    ]


def keeps_outputs(notebook: NotebookNode) -> list[str]:
    """nbval compares kept outputs: a notebook without them tests nothing."""
    filled = [cell for _, cell in code_cells(notebook) if cell.source.strip()]
    counts = [cell.execution_count for cell in filled]
    problems = [] if any(cell.outputs for cell in filled) else ["keeps no outputs, so that it tests nothing"]
    if counts != list(range(1, len(counts) + 1)):
        problems.append("was not run from top to bottom in one go")
    return problems


def describes_images(notebook: NotebookNode) -> list[str]:
    places = [(n, cell.source) for n, cell in enumerate(notebook.cells) if cell.cell_type == "markdown"]
    places += [(number, texts(output)) for number, output in outputs(notebook)]
    return [
        f"cell {number} has an image without alt text"
        for number, text in places
        for match in IMAGE.finditer(text)
        if not (ALT.search(match["html"]) if match["html"] is not None else match["markdown"].strip())
    ]


def has_the_length_of_a_lesson(notebook: NotebookNode) -> list[str]:
    words = sum(len(cell.source.split()) for cell in notebook.cells if cell.cell_type == "markdown")
    problems = [] if words in WORDS else [f"has {words} words, not {WORDS[0]} to {WORDS[-1]}"]
    cells = len(notebook.cells)
    return problems + ([] if cells in CELLS else [f"has {cells} cells, not {CELLS[0]} to {CELLS[-1]}"])


EVERYWHERE: tuple[Rule, ...] = (
    is_well_formed,
    parses,
    has_a_parameters_cell,
    has_short_cells,
    has_few_definitions,
    uses_known_magics,
    starts_no_shell,
    hides_no_error,
    names_no_machine,
    keeps_text_only,
    describes_images,
)
# A lab's exercise is a task, then stub, run and check: three code cells in a row are right there.
IN_CHAPTERS: tuple[Rule, ...] = (has_text_between_code, keeps_outputs, has_the_length_of_a_lesson)


def problems_of(path: Path) -> list[str]:
    """Every broken rule of one file; a chapter stands in notebooks/."""
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=nbformat.NO_CONVERT)
    except Exception as error:  # whatever nbformat makes of a file that is none
        return [f"can't be read as a notebook: {type(error).__name__}"]
    rules = EVERYWHERE + (IN_CHAPTERS if path.parent.name == "notebooks" else ())
    return [problem for rule in rules for problem in rule(notebook)]


def main(paths: list[str]) -> int:
    found = [f"{path}: {problem}" for path in paths for problem in problems_of(Path(path))]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
