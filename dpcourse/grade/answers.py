"""Finds the answer to a question among a student's cells, with the helpers it uses; runs nothing."""

import ast
import builtins
import re
from collections.abc import Sequence
from dataclasses import dataclass

from dpcourse.grade.reading import Cell
from dpcourse.labs.question import Question

_MAGIC = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """The text that answers a question, a note on how it was found, or the problem that leaves none."""

    text: str = ""
    note: str = ""
    problem: str = ""


def find_answer(question: Question, cells: Sequence[Cell], stub: str = "") -> Answer:
    """The student's answer: the cell of that name, else the last code cell that defines what it asks for.

    A cell that still is the released `stub` gives way to another one that answers.
    """
    named = [cell for cell in cells if cell.grade_id == question.name]
    code = [cell for cell in named if cell.kind == "code"]
    defining = [cell for cell in code if _defines(cell.source, question.entry)]
    elsewhere = [cell for cell in cells if cell.kind == "code" and _defines(cell.source, question.entry)]
    others = [cell for cell in elsewhere if cell not in code]
    if defining and not (others and _is_same(defining[-1].source, stub)):
        note = f"{question.name} stands {len(code)} times; the last one counts" if len(code) > 1 else ""
        return Answer(defining[-1].source, note)
    if others:
        return Answer(others[-1].source, f"{question.name} was found by what it defines, in another cell")
    if any(cell.kind != "code" for cell in named):
        return Answer(problem="its cell was turned into text")
    if code:
        return Answer(code[-1].source)
    return Answer(problem="its cell is not in the notebook")


def _is_same(first: str, second: str) -> bool:
    return "".join(first.split()) == "".join(second.split())


def _defines(source: str, entry: str) -> bool:
    tree = parse(source)
    if tree is None:  # a syntax error somewhere: the text must do
        return re.search(rf"^(def\s+{entry}\s*\(|{entry}\s*=)", source, re.MULTILINE) is not None
    return any(entry in defined_names(statement) for statement in tree.body)


def parse(source: str) -> ast.Module | None:
    """The syntax tree, or None where the text is no Python."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def without_magics(source: str) -> str:
    """The text with its magic lines (`%time`, `!ls`) left out; text that is Python already stays as it is."""
    if parse(source) is not None:
        return source
    return _MAGIC.sub(lambda match: f"{match[1]}pass  # a magic line was left out", source)


def defined_names(statement: ast.stmt) -> set[str]:
    """The names that a statement at the left margin defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return set()


def used_names(tree: ast.AST) -> set[str]:
    """The names that code reads without being builtins."""
    names = {
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    return names - set(dir(builtins))


def with_helpers(answer: str, cells: Sequence[Cell], known: set[str]) -> str:
    """The answer with the student's own definitions that it uses and that stand in other cells before it.

    Only definitions and imports are taken, each once, so that one question's answer cannot end another's.
    """
    tree = parse(answer)
    if tree is None:
        return answer
    library = _definitions(cells)
    defined = known | {name for statement in tree.body for name in defined_names(statement)}
    helpers: list[ast.stmt] = []
    wanted = sorted(used_names(tree) - defined)
    while wanted:
        name = wanted.pop()
        if name not in defined and name in library:
            helpers.append(library[name])
            defined |= defined_names(library[name])
            wanted += sorted(used_names(library[name]) - defined)
    lines = [ast.unparse(statement) for statement in reversed(helpers)]
    return "\n\n\n".join([*lines, answer])


def _definitions(cells: Sequence[Cell]) -> dict[str, ast.stmt]:
    """Each name that the code cells define at the left margin, with its last definition."""
    trees = [parse(without_magics(cell.source)) for cell in cells if cell.kind == "code"]
    return {
        name: statement
        for tree in trees
        if tree is not None
        for statement in tree.body
        for name in defined_names(statement)
    }
