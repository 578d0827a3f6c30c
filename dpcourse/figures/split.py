"""How much each sample counts when a batch is cut unevenly: in a mean of means, and as it should."""

from typing import Any

from dpcourse.figures import canvas

_HEIGHT = 0.62


def split_bars(split: Any) -> canvas.Figure:
    """Draw a split (with `sizes`, `weights`, `error`): the weight of each rank's mean, and the right one."""
    sizes = " + ".join(map(str, split.sizes))
    title = f"{sizes} samples: a mean of means is {100 * split.error:.0f} % off"
    weights = ", ".join(f"{weight:.2f}" for weight in split.weights)
    return canvas.Figure(
        title,
        f"One bar a rank. A mean of means counts each rank once; right is {weights}",
        lambda: _draw(split),
    )


def _draw(split: Any) -> Any:
    ax = canvas.axes(width=8, height=1.4 + 0.4 * len(split.sizes))
    for rank, weight in enumerate(split.weights):
        ax.barh(rank, 1.0, _HEIGHT, color=canvas.SERIES[0], label="weight in a mean of means")
        canvas.outline(ax, rank, 0, weight, _HEIGHT, label="weight that is right")
    names = [f"rank {rank}: {size} samples" for rank, size in enumerate(split.sizes)]
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.1 * max(1.0, *split.weights))
    canvas.legend_below(ax)
    return ax.figure
