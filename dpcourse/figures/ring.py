"""A ring's all-reduce at one step: which rank passes which piece on, and how complete each piece is."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.tables import bytes_text
from dpcourse.theory import ring

_NAMES = {"reduce_scatter": "reduce-scatter", "all_gather": "all-gather"}
_COLUMN, _ROW = 1.18, 0.95  # inches from piece to piece and from rank to rank, with room for what travels
_WHOLE, _PART = canvas.SERIES[2], canvas.SERIES[5]
_ARROW: Any = {
    "arrowstyle": "-|>,head_length=0.5,head_width=0.28",
    "linewidth": 2.4,
    "color": canvas.SERIES[1],
}


def ring_step(num_ranks: int, step: int, payload_bytes: int) -> canvas.Figure:
    """Draw what stands where after `step` steps (0 to 2(n - 1)), with the step's messages as arrows."""
    last, each = ring.num_steps(num_ranks), payload_bytes / num_ranks
    formula = ring.all_reduce_sent_bytes(payload_bytes, num_ranks)
    moves = [move for move in ring.moves(num_ranks) if move.step == step]
    sent = f"each rank has sent {bytes_text(step * each)} of {bytes_text(formula)}"
    of = f"2({num_ranks} - 1)/{num_ranks} x {bytes_text(payload_bytes)}"
    name = _NAMES[moves[0].collective] if moves else "before the first step"
    at = f"Step {step} of {last}, {name}" if moves else f"Step 0 of {last}, {name}"
    title = f"{at}: {sent} ({of})"
    return canvas.Figure(title, _words(num_ranks, step, moves), lambda: _draw(num_ranks, step, moves))


def _words(num_ranks: int, step: int, moves: Sequence[ring.Move]) -> str:
    parts = ring.parts_after(step, num_ranks)
    sent = "; ".join(f"rank {m.source} sends piece {m.piece} to rank {m.target}" for m in moves)
    held = "; ".join(
        f"rank {rank} has {', '.join(f'{count} of {num_ranks}' for count in row)}"
        for rank, row in enumerate(parts)
    )
    moved = sent or "Nothing has been sent"
    return f"A row of pieces for each rank. {moved}. Ranks summed in each piece: {held}"


def _draw(num_ranks: int, step: int, moves: Sequence[ring.Move]) -> Any:
    """One row a rank, one column a piece: what moves goes down one row, and from the last to the first."""
    parts = ring.parts_after(step, num_ranks)
    ax = canvas.axes(width=max(_COLUMN * num_ranks + 2.6, 7.2), height=_ROW * num_ranks + 0.9)
    arrived = {(move.target, move.piece) for move in moves}
    for rank, row in enumerate(parts):
        for piece, count in enumerate(row):
            _piece(ax, rank, piece, count, num_ranks, (rank, piece) in arrived)
    for move in moves:
        _arrow(ax, move)
    ax.set_xlim(-0.62, num_ranks - 0.38)
    ax.set_ylim(num_ranks - 0.42, -0.75)
    ax.set_xticks(range(num_ranks), [f"piece {piece}" for piece in range(num_ranks)])
    ax.set_yticks(range(num_ranks), [f"rank {rank}" for rank in range(num_ranks)])
    ax.tick_params(length=0, labeltop=True, labelbottom=False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    _legend(ax, num_ranks)
    return ax.figure


_WIDE, _HIGH = 0.56, 0.44  # of a piece, in columns and rows
_ROUND = 0.16  # columns beside a piece, for the way from the last rank round to the first


def _piece(ax: Any, rank: int, piece: int, count: int, num_ranks: int, is_new: bool) -> None:
    """A box filled as far as the sum is complete, with the count in it."""
    from matplotlib.patches import Rectangle

    left, top = piece - _WIDE / 2, rank - _HIGH / 2
    colour = _WHOLE if count == num_ranks else _PART
    ax.add_patch(Rectangle((left, top), _WIDE * count / num_ranks, _HIGH, color=colour, linewidth=0))
    edge: Any = {"edgecolor": canvas.SERIES[1] if is_new else canvas.INK, "linewidth": 3 if is_new else 1}
    ax.add_patch(Rectangle((left, top), _WIDE, _HIGH, fill=False, **edge))
    weight = "bold" if count == num_ranks else "normal"
    ax.text(piece, rank, f"{count}/{num_ranks}", ha="center", va="center", fontsize=13, fontweight=weight)


def _arrow(ax: Any, move: ring.Move) -> None:
    """From the sender's piece down to its neighbour's; the last rank's goes round beside the column."""
    if move.target:
        ends = (move.piece, move.source + _HIGH / 2), (move.piece, move.target - _HIGH / 2)
        ax.annotate("", ends[1], xytext=ends[0], arrowprops=_ARROW | {"shrinkA": 1, "shrinkB": 1})
        return
    side = move.piece + _WIDE / 2
    out = side + _ROUND
    ax.plot([side, out, out], [move.source, move.source, move.target], color=_ARROW["color"], linewidth=2.4)
    ax.annotate("", (side, move.target), xytext=(out, move.target), arrowprops=_ARROW | {"shrinkA": 0})


def _legend(ax: Any, num_ranks: int) -> None:
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=_PART, edgecolor=canvas.INK, label="a partial sum: how many ranks are in it"),
        Patch(facecolor=_WHOLE, edgecolor=canvas.INK, label=f"the whole sum (all {num_ranks})"),
        Patch(facecolor=canvas.PAPER, edgecolor=canvas.SERIES[1], linewidth=3, label="came in this step"),
    ]
    ax.figure.legend(handles=handles, loc="outside lower center", ncols=3)
