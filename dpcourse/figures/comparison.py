"""Several runs side by side: bytes held and bytes sent, measured in colour, expected as outlines."""

import textwrap
from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas
from dpcourse.ledger import STATES, select, sums_by

_HEIGHT = 0.6
_NAME_LETTERS = 30  # of a line of a run's name, so that bars have the most of the width


def compare_bars(runs: Sequence[Any]) -> canvas.Figure:
    """Draw runs: model states held while gradients exist (left), bytes sent in a step (right)."""
    title = "Held and sent: " + ", ".join(run.title for run in runs)
    return canvas.Figure(title, "; ".join(map(_words, runs)), lambda: _draw(runs, _names(runs)))


def _names(runs: Sequence[Any]) -> list[str]:
    """Name the runs by what tells them apart."""
    heads, tails = zip(*(run.title.split(": ", 1) for run in runs), strict=True)
    is_enough = len(set(tails)) == 1 and len(set(heads)) == len(runs)
    return list(heads) if is_enough else [run.title for run in runs]


def _words(run: Any) -> str:
    held = f"{run.title}: {run.memory.bytes_per_parameter():.2f} bytes held per parameter"
    sent = _sent_bytes(run)
    return f"{held}, {'no kernel count' if sent is None else f'{sent:.2f} bytes sent per parameter-byte'}"


def _sent_bytes(run: Any) -> float | None:
    """What the kernel counted, for each byte of parameters; of a run that never was, what is expected."""
    return run.traffic.sent_per_parameter_byte() if run.is_measured else _expected_sent(run)


def _expected_sent(run: Any) -> float:
    return run.traffic.expected_sent_bytes() / run.parameter_bytes


def _draw(runs: Sequence[Any], names: Sequence[str]) -> Any:
    held, sent = canvas.axes(width=11, height=1.6 + 0.6 * len(runs), columns=2)
    for row, run in enumerate(runs):
        _held(held, row, run)
        _sent(sent, row, run)
    held.set_yticks(range(len(runs)), [textwrap.fill(name, _NAME_LETTERS) for name in names])
    sent.set_yticks(range(len(runs)), [""] * len(runs))
    how = "solid: measured, outline: expected" if any(run.is_measured for run in runs) else "expected"
    for ax, label in (
        (held, "bytes held per parameter on rank 0,\ngradients in place"),
        (sent, f"bytes sent per parameter-byte by rank 0\n({how})"),
    ):
        ax.invert_yaxis()
        ax.set_xlim(0, max(0.1, 1.2 * ax.dataLim.x1))
        ax.set_xlabel(label)
    canvas.legend_below(held, num_columns=6)
    return held.figure


def _held(ax: Any, row: int, run: Any) -> None:
    held, expected = _by_owner(run, run.memory.measured), _by_owner(run, run.memory.expected)
    end = canvas.stack(ax, row, held, _HEIGHT)
    if run.is_measured:
        canvas.outline(ax, row, 0, sum(expected.values()), _HEIGHT)
    else:
        canvas.computed_stack(ax, row, expected, _HEIGHT)
    text = f"  {run.memory.bytes_per_parameter():.2f}"
    ax.text(max(end, sum(expected.values())), row, text, va="center")


def _by_owner(run: Any, holdings: Sequence[Any]) -> dict[str, float]:
    """Bytes for each parameter while gradients exist."""
    sums = sums_by(select(holdings, phase="backward", rank=run.first_rank), "owner")
    return {owner: sums.get(owner, 0) / run.num_params for owner in STATES}


def _sent(ax: Any, row: int, run: Any) -> None:
    sent, expected = _sent_bytes(run), _expected_sent(run)
    if not run.is_measured:
        canvas.computed_stack(ax, row, {"sent": expected}, _HEIGHT)
    else:
        canvas.stack(ax, row, {"sent": sent or 0}, _HEIGHT)
        canvas.outline(ax, row, 0, expected, _HEIGHT)
    words = "  no kernel count" if sent is None else f"  {sent:.2f}"
    ax.text(max(sent or 0, expected), row, words, va="center")
