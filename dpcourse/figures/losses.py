"""Losses over steps, and losses over learning rates."""

from typing import Any

from dpcourse.figures import canvas

_STYLES = ("-", "--", "-.", ":")


def loss_lines(curves: Any) -> canvas.Figure:
    """Draw a LossCurves: one line a run; equal runs lie on each other, so that the later ones are dashed."""
    return canvas.Figure(
        "Losses, step by step", f"Lines over the steps. {curves.words()}", lambda: _losses(curves)
    )


def _losses(curves: Any) -> Any:
    left, right = canvas.axes(width=11.0, height=4.0, columns=2)
    for number, name in enumerate(curves.runs):
        look: Any = {"linewidth": 5.0, "alpha": 0.35} if number == 0 else {"linewidth": 1.8}
        look["color"] = canvas.SERIES[number % len(canvas.SERIES)]
        look["linestyle"] = _STYLES[max(0, number - 1) % 4]
        steps = range(1, len(curves.first) + 1)
        left.plot(steps, curves.runs[name], label=name, **look)
        right.plot(steps, curves.differences(name), **look)
    for ax, said in ((left, "loss"), (right, "distance from the first run's")):
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_xlabel("step")
        ax.set_ylabel(said)
    canvas.legend_below(left, num_columns=2)
    return left.figure


def range_lines(test: Any) -> canvas.Figure:
    """Draw a RangeTest: loss against learning rate, the best rate of each global batch marked."""
    words = "; ".join(f"{r.batch_size} samples: lowest at {r.best_rate:.3f}" for r in test.runs)
    title = "Learning-rate range test"
    return canvas.Figure(
        title, f"Loss against a rising learning rate. {words}. {test.words()}", lambda: _range(test)
    )


def _range(test: Any) -> Any:
    ax = canvas.axes(height=4.0)
    for number, run in enumerate(test.runs):
        colour, marker = canvas.SERIES[number % len(canvas.SERIES)], "os^Dvx*"[number % 7]
        label = f"{run.batch_size} samples on {run.ranks} rank{'s' if run.ranks > 1 else ''}"
        ax.plot(run.rates, run.losses, color=colour, marker=marker, markersize=4, label=label)
        ax.axvline(run.best_rate, color=colour, linestyle=_STYLES[1 + number % 3], linewidth=1.4)
    ax.set_xscale("log")
    ax.set_ylim(0, 1.15 * max(run.losses[0] for run in test.runs))
    ax.set_xlabel("learning rate of the step")
    ax.set_ylabel("loss")
    canvas.legend_below(ax, num_columns=2)
    return ax.figure
