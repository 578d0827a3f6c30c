"""Several runs side by side: bytes held and bytes sent, measured in colour, expected as outlines."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.ledger import STATES, select, sums_by

_HEIGHT = 0.6


def compare_bars(runs: Sequence[Any]) -> canvas.Figure:
    """Draw runs: model states held while gradients exist (left), bytes sent in a step (right)."""
    title = "Held and sent: " + ", ".join(run.title for run in runs)
    return canvas.Figure(title, "; ".join(map(_words, runs)), lambda: _draw(runs))


def _words(run: Any) -> str:
    sent = run.traffic.sent_per_parameter_byte()
    wire = "no kernel count" if sent is None else f"{sent:.2f} bytes sent per parameter-byte"
    return f"{run.title}: {run.memory.bytes_per_parameter():.2f} bytes held per parameter, {wire}"


def _draw(runs: Sequence[Any]) -> Any:
    held, sent = canvas.axes(width=11, height=1.6 + 0.6 * len(runs), columns=2)
    for row, run in enumerate(runs):
        _held(held, row, run)
        _sent(sent, row, run)
    held.set_yticks(range(len(runs)), [run.title for run in runs])
    sent.set_yticks(range(len(runs)), [""] * len(runs))
    for ax, label in (
        (held, "bytes held per parameter on rank 0,\ngradients in place"),
        (sent, "bytes sent per parameter-byte by rank 0\n(solid: measured, outline: expected)"),
    ):
        ax.invert_yaxis()
        ax.set_xlim(0, max(0.1, 1.2 * ax.dataLim.x1))
        ax.set_xlabel(label)
    canvas.legend_below(held, num_columns=6)
    return held.figure


def _held(ax: Any, row: int, run: Any) -> None:
    sums = sums_by(select(run.memory.measured, phase="backward", rank=run.first_rank), "owner")
    held = {owner: sums.get(owner, 0) / run.num_params for owner in STATES}
    end = canvas.stack(ax, row, held, _HEIGHT)
    expected = sums_by(select(run.memory.expected, phase="backward", rank=run.first_rank), "owner")
    expected_end = sum(expected.get(owner, 0) for owner in STATES) / run.num_params
    canvas.outline(ax, row, 0, expected_end, _HEIGHT)
    text = f"  {run.memory.bytes_per_parameter():.2f}"
    ax.text(max(end, expected_end), row, text, va="center")


def _sent(ax: Any, row: int, run: Any) -> None:
    sent = run.traffic.sent_per_parameter_byte()
    if sent:
        ax.barh(row, sent, _HEIGHT, color=canvas.COLOURS["sent"], label="sent")
    expected = run.traffic.expected_sent_bytes() / run.parameter_bytes
    canvas.outline(ax, row, 0, expected, _HEIGHT)
    words = "  no kernel count" if sent is None else f"  {sent:.2f}"
    ax.text(max(sent or 0, expected), row, words, va="center")
