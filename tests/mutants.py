"""Small changes to a right answer, made on its syntax tree; a check worth its name refuses every one."""

import ast
import copy
from collections.abc import Callable, Iterator

_SWAPPED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """Pairs of (what was changed, source): statements dropped, operations swapped, off by one."""
    tree = ast.parse(source)
    for position, node in enumerate(ast.walk(tree)):
        for what, change in _changes(node):
            mutant = copy.deepcopy(tree)
            change(list(ast.walk(mutant))[position])
            yield (
                f"line {getattr(node, 'lineno', '?')}: {what}",
                ast.unparse(ast.fix_missing_locations(mutant)),
            )


Change = tuple[str, Callable[[ast.AST], None]]


def _changes(node: ast.AST) -> Iterator[Change]:
    yield from _dropped_statements(node)
    yield from _swapped_operations(node)
    yield from _off_by_one(node)


def _dropped_statements(node: ast.AST) -> Iterator[Change]:
    body = getattr(node, "body", None)
    if isinstance(node, ast.Module) or not isinstance(body, list):
        return
    for number, statement in enumerate(body):
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring does nothing

        def drop(target: ast.AST, number: int = number) -> None:
            target.body[number] = ast.Pass()

        yield f"without {ast.unparse(statement).splitlines()[0]}", drop


def _swapped_operations(node: ast.AST) -> Iterator[Change]:
    operation = getattr(node, "op", None) or next(iter(getattr(node, "ops", [])), None)
    swapped = _SWAPPED.get(type(operation))
    if swapped is None:
        return

    def swap(target: ast.AST) -> None:
        if hasattr(target, "ops"):
            target.ops[0] = swapped()
        else:
            target.op = swapped()

    yield f"{type(operation).__name__} becomes {swapped.__name__} in {ast.unparse(node)}", swap


def _off_by_one(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        for step in (1, -1):

            def shift(target: ast.AST, step: int = step) -> None:
                target.value += step

            yield f"{node.value} becomes {node.value + step}", shift
    for bound in ("lower", "upper"):
        if isinstance(node, ast.Slice) and getattr(node, bound) is not None:
            yield from _shifted_bounds(node, bound)


def _shifted_bounds(node: ast.Slice, bound: str) -> Iterator[Change]:
    for operation in (ast.Add, ast.Sub):

        def shift(target: ast.AST, operation: type[ast.operator] = operation) -> None:
            setattr(target, bound, ast.BinOp(getattr(target, bound), operation(), ast.Constant(1)))

        yield f"{bound} bound {ast.unparse(getattr(node, bound))} {operation.__name__} 1", shift
