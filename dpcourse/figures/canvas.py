"""What all figures share: a canvas readable in both themes and from the back of a room, and its words."""

import base64
import io
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from dpcourse.show import Shown, is_reference

# Okabe and Ito's colours: told apart by all common kinds of colour blindness, and in grey by order.
COLOURS = {
    "parameters": "#0072B2",
    "gradients": "#E69F00",
    "optimizer": "#009E73",
    "buckets": "#D55E00",
    "gathered": "#CC79A7",
    "activations": "#56B4E9",
    "other": "#999999",
    "computation": "#0072B2",
    "communication": "#D55E00",
    "init": "#999999",
    "forward": "#56B4E9",
    "backward": "#E69F00",
    "step": "#009E73",
    "sent": "#666666",
}
# Of owners whose colours are alike in grey.
_HATCHES = {"gradients": "//", "optimizer": "--", "buckets": "..", "gathered": "\\\\", "activations": "xx"}
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
INK, PAPER = "#1a1a1a", "#ffffff"
_STYLE: Any = {
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "legend.frameon": False,
    "legend.fontsize": 11,
    "font.family": ["DejaVu Sans"],
}
_DOTS_PER_INCH = 144


@dataclass(frozen=True, repr=False)
class Figure(Shown):
    """A drawing and its words: `title` names it, `alt` says what it shows to who cannot see it.

    draw: makes the matplotlib figure, when it is first shown. The reference configuration shows the title.
    """

    title: str
    alt: str
    draw: Callable[[], Any]

    def png(self) -> bytes:
        """The picture as a PNG file's bytes."""
        import matplotlib

        file = io.BytesIO()
        with matplotlib.rc_context(_STYLE):
            self.draw().savefig(file, format="png", dpi=_DOTS_PER_INCH, bbox_inches="tight", pad_inches=0.15)
        return file.getvalue()

    def save(self, path: str) -> None:
        """Write the picture to a PNG file."""
        with open(path, "wb") as file:
            file.write(self.png())

    def __str__(self) -> str:
        return f"[figure] {self.title}" if is_reference() else f"[figure] {self.title}. {self.alt}"

    def to_html(self) -> str:
        # JupyterLab drops the alternative text of a plain PNG output, so the picture travels in HTML; at half
        # its size in dots, so that it is sharp on a fine screen.
        png = self.png()
        data, width = base64.b64encode(png).decode(), struct.unpack(">I", png[16:20])[0] // 2
        style = f"width:{width}px;max-width:100%"
        picture = f'<img alt="{escape(self.alt)}" src="data:image/png;base64,{data}" style="{style}">'
        return (
            f'<figure style="margin:0.5em 0">{picture}<figcaption>{escape(self.title)}</figcaption></figure>'
        )


def axes(width: float = 9.0, height: float = 3.6, columns: int = 1) -> Any:
    """New matplotlib axes (a list of them for several columns), free of pyplot's global state."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(width, height), layout="constrained")
    return canvas.subplots(1, columns)


_BYTE_UNITS = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def byte_unit(largest: float) -> tuple[str, float]:
    """Choose the unit of an axis of bytes, and its size."""
    return next((unit, size) for unit, size in _BYTE_UNITS if largest >= size or size == 1.0)


def outline(ax: Any, y: float, left: float, width: float, height: float, label: str | None = None) -> None:
    """Draw what theory says: an outline, everywhere; what was measured is solid."""
    ax.barh(y, width, height, left=left, fill=False, edgecolor=INK, linewidth=1.6, label=label)


def stack(
    ax: Any, y: float, widths: dict[str, float], height: float, is_outline: bool = False, label: str = "{}"
) -> float:
    """Lay named parts end to end, measured in their colours or expected as outlines; gives where they end."""
    left = 0.0
    for name, width in widths.items():
        if width and is_outline:
            outline(ax, y, left, width, height)
        elif width:
            ax.barh(y, width, height, left=left, color=COLOURS[name], label=label.format(name))
        left += width
    return left


def computed_stack(ax: Any, y: float, widths: Mapping[str, float], height: float) -> float:
    """Lay parts end to end that are computed and stand alone: outlines, with their colours faint inside."""
    from matplotlib.colors import to_rgba

    left = 0.0
    for name, width in widths.items():
        look: Any = {"facecolor": to_rgba(COLOURS[name], 0.45), "edgecolor": INK, "linewidth": 1.2}
        if width:
            ax.barh(y, width, height, left=left, label=name, hatch=_HATCHES.get(name), **look)
        left += width
    return left


def where(found: Any) -> str:
    """Say what of a run or an experiment was emulated: a picture may be shown without its title."""
    links = f"{found.links.kind} links" if found.links else ""
    staged = "messages through host memory" if getattr(found, "backend", "") == "staged" else ""
    cards = getattr(found, "cards_text", "")
    return ", ".join(filter(None, (links, "paced computation" if found.pace_compute else "", cards, staged)))


def legend_below(ax: Any, num_columns: int = 4) -> None:
    """Put the legend of all axes of a figure under them, where it hides no bar."""
    order = {name: place for place, name in enumerate(COLOURS)}
    pairs = [
        pair
        for each in ax.figure.axes
        for pair in zip(*reversed(each.get_legend_handles_labels()), strict=True)
    ]
    known = dict(sorted(pairs, key=lambda pair: order.get(pair[0], len(order))))
    # Outside the axes, where the layout makes room, however low the figure is.
    ax.figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=num_columns)
