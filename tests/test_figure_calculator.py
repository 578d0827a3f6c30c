"""The calculator's picture: no text under a bar or the card's line, and an axis in the units of its texts."""

import pytest

from dpcourse.widgets.memory import memory_bars_of

SHAPES = [
    (7000, 8, "mixed-adam", "zero3", 80),
    (262_144, 64, "bf16", "ddp", 512),
    (10, 1, "fp32", "ddp", 1024),
    (7000, 8, "fp32", "zero2", 1),
]


def drawn(shape):
    ax = memory_bars_of(*shape).draw().axes[0]
    ax.figure.canvas.draw()
    return ax


@pytest.mark.parametrize("shape", SHAPES)
def test_texts_stand_clear_of_bars_lines_and_each_other(shape):
    ax = drawn(shape)
    boxes = [text.get_window_extent() for text in ax.texts]
    assert len(boxes) == 5  # of each bar one, and the card's
    bars = ax.get_window_extent()
    assert not any(box.overlaps(bars) for box in boxes)
    names = [name.get_window_extent() for name in ax.get_yticklabels()]
    everything = [*boxes, *names]
    assert not any(one.overlaps(other) for one in everything for other in everything if one is not other)


def test_the_axis_has_the_unit_of_what_stands_beside_it():
    ax = drawn(SHAPES[1])
    assert ax.get_xlabel().startswith("TB")
    assert "2.62 TB" in ax.texts[2].get_text()
