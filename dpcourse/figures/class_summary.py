"""A class over a lab's questions: one bar a question, right, wrong and unanswered end to end."""

from collections.abc import Sequence
from typing import Any

from dpcourse.figures import canvas

_PARTS = (("right", canvas.SERIES[2]), ("wrong", canvas.SERIES[4]), ("unanswered", "#dddddd"))
_HEIGHT = 0.6


def class_summary(summaries: Sequence[Any]) -> canvas.Figure:
    """Draw what became of each question, with the most common mistake beside the bar.

    summaries: with name, num_right, num_wrong, num_unanswered, mistake and num_mistaken, as in
    dpcourse.grade.summary.
    """
    return canvas.Figure("How the class did", _words(summaries), lambda: _draw(summaries))


def _words(summaries: Sequence[Any]) -> str:
    return "; ".join(
        f"{item.name}: {item.num_right} right, {item.num_wrong} wrong, {item.num_unanswered} unanswered"
        + (f", most often {item.mistake} ({item.num_mistaken})" if item.mistake else "")
        for item in summaries
    )


def _draw(summaries: Sequence[Any]) -> Any:
    ax = canvas.axes(width=9.5, height=1.2 + 0.62 * len(summaries))
    for row, item in enumerate(summaries):
        left = 0
        for part, colour in _PARTS:
            width = getattr(item, f"num_{part}")
            ax.barh(
                row,
                width,
                _HEIGHT,
                left=left,
                color=colour,
                edgecolor=canvas.PAPER,
                label=part if row == 0 else None,
            )
            if width:
                ax.text(left + width / 2, row, str(width), ha="center", va="center", fontweight="bold")
            left += width
        if item.mistake:
            ax.text(
                left,
                row,
                f"  most often: {item.mistake.replace('_', ' ')} ({item.num_mistaken})",
                va="center",
            )
    ax.set_yticks(range(len(summaries)), [item.name for item in summaries])
    ax.invert_yaxis()
    most = max(1.0, ax.dataLim.x1)
    ax.set_xlim(0, 1.55 * most)  # the mistakes' names stand behind the bars, where no submission is
    ax.set_xticks([tick for tick in ax.get_xticks() if tick == int(tick) and tick <= most])
    ax.spines["bottom"].set_bounds(0, most)
    ax.set_xlabel("submissions")
    canvas.legend_below(ax)
    return ax.figure
