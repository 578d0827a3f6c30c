"""Controls that a keyboard and a screen reader can use: each has a name, none acts while it is dragged."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Control:
    """Something to move: `row` is what stands in the panel, `field` bears the name and the value."""

    name: str
    row: Any
    field: Any

    @property
    def value(self) -> Any:
        return self.field.value


def number(name: str, value: int, low: int, high: int, is_doubling: bool = False) -> Control:
    """A number to type with a slider beside it, which a hand finds sooner.

    is_doubling: each step of the slider doubles, for what goes from few to very many.
    """
    import ipywidgets as w

    text = w.BoundedIntText(value=value, min=low, max=high, description=name, **_look())
    ends = (0, math.ceil(math.log2(high / low))) if is_doubling else (low, high)
    slider = w.IntSlider(
        min=ends[0], max=ends[1], readout=False, continuous_update=False, **_look(w.SliderStyle)
    )
    slider.tabbable = False  # a slider has no name that a screen reader could say: the number has it
    _keep_together(text, slider, is_doubling)
    return Control(name, rows([text, slider], is_beside=True), text)


def _keep_together(text: Any, slider: Any, is_doubling: bool) -> None:
    """Move the one with the other; a number between two doublings stays as it was typed."""

    def place() -> int:
        return round(math.log2(text.value / text.min)) if is_doubling else text.value

    def typed(_: object) -> None:
        slider.value = place()

    def moved(_: object) -> None:
        if slider.value != place():
            text.value = text.min * 2**slider.value if is_doubling else slider.value

    typed(None)
    text.observe(typed, names="value")
    slider.observe(moved, names="value")


def set_high(control: Control, high: int) -> None:
    """Give a plain number's control another upper end; a value above it comes down."""
    text, slider = control.row.children
    text.max = slider.max = high


def choice(name: str, options: Mapping[str, Any], label: str) -> Control:
    """A list of which one is taken: words, and what each stands for. label: the one at first."""
    import ipywidgets as w

    # As wide as its longest entry: one that is cut off cannot be chosen by what it says.
    look = _look() | {
        "layout": _shared("layout of a list", lambda: w.Layout(width="max-content", max_width="100%"))
    }
    field = w.Dropdown(options=dict(options), value=options[label], description=name, **look)
    return Control(name, field, field)


def tick(name: str, value: bool) -> Control:
    """A box to tick."""
    import ipywidgets as w
    from ipywidgets.widgets.widget_bool import CheckboxStyle

    field = w.Checkbox(value=value, description=name, indent=False, **_look(CheckboxStyle))
    return Control(name, field, field)


def text(name: str) -> Any:
    """A field to type into."""
    import ipywidgets as w
    from ipywidgets.widgets.widget_string import TextStyle

    return w.Text(description=name, continuous_update=False, **_look(TextStyle))


def button(name: str, act: Callable[[], Any]) -> Any:
    """A button that bears its name as text."""
    import ipywidgets as w

    made = w.Button(description=name, **_look(w.ButtonStyle))
    made.on_click(lambda _: act())
    return made


def rows(children: Sequence[Any], is_beside: bool = False) -> Any:
    """Put widgets one under the other, or one beside the other."""
    import ipywidgets as w

    return (w.HBox if is_beside else w.VBox)(list(children), layout=_shared("plain", w.Layout))


def _look(style: Any = None) -> dict[str, Any]:
    """Give a control its style and layout."""
    import ipywidgets as w
    from ipywidgets.widgets.widget_description import DescriptionStyle

    style = style or DescriptionStyle
    named = {} if style is w.ButtonStyle else {"description_width": "initial"}
    wide = {} if style is w.ButtonStyle else {"width": "24em"}
    return {
        "style": _shared(style.__name__, lambda: style(**named)),
        "layout": _shared(f"layout {wide}", lambda: w.Layout(**wide)),
    }


def _shared(name: str, make: Callable[[], Any]) -> Any:
    """One style of each kind and one layout for all: each would take a kilobyte of a saved notebook."""
    if name not in _SHARED or _SHARED[name].comm is None:  # all widgets may have been closed
        _SHARED[name] = make()
    return _SHARED[name]


_SHARED: dict[str, Any] = {}
