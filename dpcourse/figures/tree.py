"""A tree of questions, each drawn once, with the way that was taken lit.

Of a question's two replies one goes down and one goes to the right; a reply that leads to a question which
stands elsewhere bears its number.
"""

import textwrap
from dataclasses import dataclass
from typing import Any

from dpcourse.figures import canvas

_COLUMN, _ROW = 3.3, 1.2  # inches from box to box
_WIDE, _HIGH = 2.86, 0.8  # of a box, inches
_LETTERS, _BECAUSE_LETTERS = 31, 29  # of a line in a box, and of one below it
_FONT, _SMALL = 11.5, 10
_DULL, _LIT_EDGE = "#6b6b6b", canvas.SERIES[0]
_FILL = {"question": "#fff2c2", "answer": "#bfe8d9"}  # of what is lit; all else is white


@dataclass(frozen=True)
class _Node:
    """Where a node stands; `children` are its replies: "yes" or "no", and the key of what follows."""

    node: Any
    column: int
    row: int
    children: tuple[tuple[str, str], ...]

    @property
    def kind(self) -> str:
        return "question" if self.children else "answer"


def decision_tree(root: Any, path: Any = None, title: str = "Which strategy?") -> canvas.Figure:
    """Draw questions (with `key`, `text`, `yes`, `no`) and answers (`key`, `text`).

    path: with `steps`, each of a `question`, `is_yes` and `because`, and an `answer`; None lights nothing.
    """
    nodes = arranged(root)
    return canvas.Figure(title, _words(nodes, path), lambda: _draw(nodes, path))


def arranged(root: Any) -> dict[str, _Node]:
    """Give every node a column and a row, by its key: what goes on downwards stands in one column."""
    nodes: dict[str, _Node] = {}
    reserved: set[str] = set()

    def put(node: Any, column: int, row: int) -> int:
        down = _downwards(node, reserved)
        reserved.update(each.key for each in down)
        for each in down:
            nodes[each.key] = _Node(each, column, row, _children(each))
            below = row + 1
            if _children(each) and (aside := _aside(each)).key not in reserved:
                below = put(aside, column + 1, row)
            row = max(row + 1, below)
        return row

    put(root, 0, 0)
    return dict(sorted(nodes.items(), key=lambda item: (item[1].row, item[1].column)))


def _children(node: Any) -> tuple[tuple[str, str], ...]:
    return (("yes", node.yes.key), ("no", node.no.key)) if hasattr(node, "yes") else ()


def _size(node: Any) -> int:
    return 1 + _size(node.yes) + _size(node.no) if _children(node) else 1


def _next_down(node: Any) -> Any:
    """The reply that goes on downwards: no, unless yes leads to far more."""
    return node.yes if _size(node.yes) > 2 * _size(node.no) else node.no


def _aside(node: Any) -> Any:
    return node.no if _next_down(node) is node.yes else node.yes


def _downwards(node: Any, reserved: set[str]) -> list[Any]:
    """A node and what follows it downwards, as far as nothing of it stands elsewhere."""
    found = [node]
    while _children(found[-1]) and _next_down(found[-1]).key not in reserved:
        found.append(_next_down(found[-1]))
    return found


def _words(nodes: dict[str, _Node], path: Any) -> str:
    num_questions = sum(node.kind == "question" for node in nodes.values())
    of = f"A tree of {num_questions} questions and {len(nodes) - num_questions} answers"
    if path is None:
        numbers = _numbers(nodes)
        rows = [f"{numbers[key]}. {node.node.text}" for key, node in nodes.items() if key in numbers]
        return f"{of}. {' '.join(rows)}"
    steps = [f"{s.question.text} {'Yes' if s.is_yes else 'No'}: {s.because}" for s in path.steps]
    return f"{of}. The way taken: {'. '.join(steps)}. {path.answer.text}"


def _numbers(nodes: dict[str, _Node]) -> dict[str, int]:
    questions = [key for key, node in nodes.items() if node.kind == "question"]
    return {key: number for number, key in enumerate(questions, 1)}


# -- drawing: in inches, downwards


def _draw(nodes: dict[str, _Node], path: Any) -> Any:
    from matplotlib.figure import Figure as Canvas

    width = _COLUMN * (max(node.column for node in nodes.values()) + 1)
    height = _ROW * (max(node.row for node in nodes.values()) + 1)
    figure = Canvas(figsize=(width, height))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_axis_off()
    ax.set_xlim(0, width)
    ax.set_ylim(height, 0)
    taken = {step.question.key: step for step in path.steps} if path else {}
    lit = {*taken, path.answer.key} if path else set()
    numbers = _numbers(nodes)
    for node in nodes.values():
        step = taken.get(node.node.key)
        for reply, to in node.children:
            is_taken = step is not None and step.is_yes == (reply == "yes")
            _edge(ax, node, nodes[to], reply, numbers.get(to), is_taken)
    for key, node in nodes.items():
        _box(ax, node, numbers.get(key), key in lit, path is None)
        if key in taken:
            _because(ax, node, taken[key])
    return figure


def _corner(node: _Node) -> tuple[float, float]:
    return 0.1 + node.column * _COLUMN, 0.06 + node.row * _ROW


def _box(ax: Any, node: _Node, number: int | None, is_lit: bool, is_plain: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = _corner(node)
    rounding = 0.06 if node.kind == "question" else 0.3
    look: Any = {"boxstyle": f"round,pad=0,rounding_size={rounding}", "zorder": 2}
    look["facecolor"] = _FILL[node.kind] if is_lit else canvas.PAPER
    look["edgecolor"] = _LIT_EDGE if is_lit else canvas.INK if is_plain else _DULL
    ax.add_patch(FancyBboxPatch((x, y), _WIDE, _HIGH, linewidth=3 if is_lit else 1.1, **look))
    text = f"{number}. {node.node.text}" if number else node.node.text
    colour = canvas.INK if is_lit or is_plain else _DULL
    ax.text(
        x + _WIDE / 2, y + _HIGH / 2, textwrap.fill(text, _LETTERS), color=colour, fontsize=_FONT,
        ha="center", va="center", linespacing=1.08, zorder=3,
    )  # fmt: skip


def _because(ax: Any, node: _Node, step: Any) -> None:
    """The number that settles it, below the box and right of the way down."""
    x, y = _corner(node)
    text = textwrap.fill(step.because, _BECAUSE_LETTERS)
    ax.text(
        x + 0.42, y + _HIGH + 0.05, text, color=_LIT_EDGE, fontsize=_SMALL, fontweight="bold", va="top",
        linespacing=1.02, zorder=3,
    )  # fmt: skip


def _edge(ax: Any, start: _Node, end: _Node, reply: str, number: int | None, is_taken: bool) -> None:
    x, y = _corner(start)
    to_x, to_y = _corner(end)
    right, below = x + _WIDE, y + _HIGH
    if end.column == start.column + 1 and end.row == start.row:
        _arrow(ax, (right, y + _HIGH / 2), (to_x, y + _HIGH / 2), is_taken)
        _reply(ax, (right + to_x) / 2, y + _HIGH / 2 - 0.05, reply, is_taken, ha="center", va="bottom")
    elif end.column == start.column and end.row > start.row:
        _arrow(ax, (x + 0.25, below), (x + 0.25, to_y), is_taken)
        _reply(ax, x + 0.17, below + 0.04, reply, is_taken, ha="right", va="top")
    else:
        _arrow(ax, (x + 0.25, below), (x + 0.25, below + 0.3), is_taken)
        _reply(ax, x + 0.17, below + 0.04, f"{reply} \u2192 {number}", is_taken, ha="right", va="top")


def _arrow(ax: Any, start: tuple[float, float], end: tuple[float, float], is_taken: bool) -> None:
    colour, width = (_LIT_EDGE, 3.2) if is_taken else (_DULL, 1.1)
    arrow: Any = {"arrowstyle": "-|>", "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, xytext=start, arrowprops=arrow, zorder=1)


def _reply(ax: Any, x: float, y: float, text: str, is_taken: bool, **place: Any) -> None:
    weight, colour = ("bold", _LIT_EDGE) if is_taken else ("normal", _DULL)
    ax.text(x, y, text, fontsize=_SMALL, fontweight=weight, color=colour, **place)
