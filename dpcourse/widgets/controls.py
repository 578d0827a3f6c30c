"""Controls that a keyboard and a screen reader can use, and the place where their picture is drawn anew."""

from collections.abc import Callable
from typing import Any


def number(name: str, value: int, low: int, high: int) -> Any:
    """A labelled number with a slider beside it; the number is what a keyboard and a screen reader use."""
    import ipywidgets as w

    text = w.BoundedIntText(
        value=value, min=low, max=high, description=name, style={"description_width": "initial"}
    )
    slider = w.IntSlider(value=value, min=low, max=high, readout=False, continuous_update=False)
    slider.tabbable = False  # a slider has no name that a screen reader could say
    w.link((text, "value"), (slider, "value"))
    row = w.HBox([text, slider])
    row.number = text
    return row


def panel(controls: dict[str, Any], draw: Callable[..., Any]) -> Any:
    """Controls above a picture: `draw(**values)` gives what to show whenever one of them has changed.

    The picture's place is empty until then, since the first state stands beside it as a plain picture.
    """
    import ipywidgets as w
    from IPython.display import display

    place = w.Output()

    def redraw(_: object) -> None:
        place.clear_output(wait=True)
        with place:
            try:
                display(draw(**{name: row.number.value for name, row in controls.items()}))
            except ValueError as error:
                print(error)

    for row in controls.values():
        row.number.observe(redraw, names="value")
    return w.VBox([*controls.values(), place])
