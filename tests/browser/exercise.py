"""A hand at every control: numbers and lists by the keyboard, sliders by both, buttons by the mouse."""

from typing import Any

from tests.browser.page import Notebook

_IN_OUTPUT = ".jp-OutputArea-output"
_NUMBERS = f"{_IN_OUTPUT} input[type=number]"
_HANDLES = f"{_IN_OUTPUT} .noUi-handle"
_LISTS = f"{_IN_OUTPUT} .widget-dropdown select"
_TICKS = f"{_IN_OUTPUT} .widget-checkbox input"
_BUTTONS = f"{_IN_OUTPUT} button.jupyter-button"
_DRAG_PIXELS = 60


def every_control(notebook: Notebook) -> dict[str, int]:
    """Use each control that the notebook shows; returns how many there were of each kind.

    Raises:
        AssertionError: one that can be used did not follow the hand.
    """
    kinds = {
        "numbers": (_NUMBERS, step_number),
        "sliders": (_HANDLES, move_slider),
        "lists": (_LISTS, choose_next),
        "ticks": (_TICKS, tick),
        "buttons": (_BUTTONS, press),
    }
    return {name: _each(notebook, selector, use) for name, (selector, use) in kinds.items()}


def _each(notebook: Notebook, selector: str, use: Any) -> int:
    controls = notebook.page.locator(selector)
    num_controls = controls.count()
    for number in range(num_controls):
        control = controls.nth(number)
        if control.is_visible() and control.is_enabled():
            control.scroll_into_view_if_needed()
            use(notebook, control)
            notebook.settle()
    return num_controls


def step_number(notebook: Notebook, box: Any) -> None:
    """One up by the keyboard, or one down from the top."""
    before = box.input_value()
    box.focus()
    for key in ("ArrowUp", "ArrowDown"):
        notebook.page.keyboard.press(key)
        if box.input_value() != before:
            break
    notebook.page.keyboard.press("Tab")
    assert box.input_value() != before, f"{notebook.name}: a number stays at {before} whatever key is pressed"


def move_slider(notebook: Notebook, handle: Any) -> None:
    """To one side by the mouse, and a step by the keyboard."""
    before = value_of(handle)
    drag(notebook, handle, _DRAG_PIXELS)
    if value_of(handle) == before:
        drag(notebook, handle, -_DRAG_PIXELS)
    dragged = value_of(handle)
    assert dragged != before, f"{notebook.name}: a slider stays at {before} when it is dragged"
    notebook.settle()
    handle.focus()
    for key in ("ArrowRight", "ArrowLeft"):
        notebook.page.keyboard.press(key)
        if value_of(handle) != dragged:
            break
    assert value_of(handle) != dragged, (
        f"{notebook.name}: a slider stays at {dragged} whatever key is pressed"
    )


def value_of(handle: Any) -> float:
    """Where a slider stands, as it tells a screen reader."""
    return float(handle.get_attribute("aria-valuenow"))


def drag(notebook: Notebook, handle: Any, pixels: float) -> None:
    """Take a slider's handle with the mouse and let it go elsewhere."""
    box, mouse = handle.bounding_box(), notebook.page.mouse
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    mouse.move(x, y)
    mouse.down()
    mouse.move(x + pixels / 2, y, steps=3)
    mouse.move(x + pixels, y, steps=3)
    mouse.up()


def choose_next(notebook: Notebook, chooser: Any) -> None:
    """The next entry of a list, by the keyboard: opened first, since JupyterLab takes arrows for its own."""
    before = chooser.input_value()
    for key in ("ArrowDown", "ArrowUp"):
        chooser.focus()
        for pressed in ("Space", key, "Enter"):
            notebook.page.keyboard.press(pressed)
        if chooser.input_value() != before:
            return
    raise AssertionError(f"{notebook.name}: a list stays at {before} whatever key is pressed")


def tick(notebook: Notebook, box: Any) -> None:
    """A box, by the keyboard."""
    before = box.is_checked()
    box.focus()
    notebook.page.keyboard.press("Space")
    assert box.is_checked() != before, f"{notebook.name}: a box stays as it is when space is pressed"


def press(notebook: Notebook, button: Any) -> None:
    """A button, by the mouse."""
    button.click()
