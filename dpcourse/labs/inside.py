"""What runs in a rank: loads the answer, calls it, and turns what it holds into plain values.

Nothing here decides anything: an answer shares this process and could change all of it.
"""

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpcourse.labs.seal import Seal
from dpcourse.labs.switch import Plug


@dataclass(frozen=True)
class Source:
    """An answer as text: its cell, the name that the cell must define, and the imports that come before."""

    text: str
    entry: str
    preamble: str = ""

    @property
    def filename(self) -> str:
        """The name that tracebacks give the answer's cell."""
        return f"<answer {self.entry}>"

    def load(self) -> Any:
        """What the code defines under the entry's name.

        Raises:
            NameError: the code does not define it.
        """
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self.filename] = (
            len(self.text),
            None,
            lines,
            self.filename,
        )  # tracebacks show the lines
        namespace: dict[str, Any] = {"__name__": "__answer__"}
        exec(compile(self.preamble, "<set-up of the lab>", "exec"), namespace)
        exec(compile(self.text, self.filename, "exec"), namespace)
        if self.entry not in namespace:
            raise NameError(f"the answer cell does not define {self.entry}")
        return namespace[self.entry]


def run_code(
    own_input: Any, answer: Any, call: Callable[..., Any], witnesses: tuple[str, ...], *things: Any
) -> list[Any]:
    """Use the answer on this rank's input.

    Returns plain values for the judge, and in words what the answer did that a `Seal` finds, which gets
    `witnesses` and `things`.
    """
    seal = Seal(witnesses, things)
    values = call(answer.load() if isinstance(answer, Source) else answer, own_input)
    return [values, seal.broken()]


def run_plugged(
    own_input: Any,
    plug: Plug,
    answer: Any,
    call: Callable[..., Any],
    witnesses: tuple[str, ...] = (),
    allowed: tuple[str, ...] = (),
) -> list[Any]:
    """The same on a rank whose messages pass through the judge's switch."""
    from dpcourse.labs import plug as ours

    values = run_code(own_input, answer, call, witnesses, ours.join(plug, allowed))
    ours.leave()  # after an error the others wait on: the launcher names the rank that failed
    return values


def run_value(answer: Source) -> Any:
    """The plain value that the answer's code writes down."""
    return plain(answer.load())


def describe(value: Any) -> dict[str, Any]:
    """A tensor's exact type, dtype, shape and values; of anything else only the type's name."""
    import torch

    if type(value) is not torch.Tensor:
        return {"type": str(type(value).__name__)}
    values = value.detach().cpu().contiguous()
    dtype = str(value.dtype).removeprefix("torch.")
    return {"type": "Tensor", "dtype": dtype, "shape": list(value.shape), "values": values.clone()}


def describe_list(value: Any) -> Any:
    """`describe` for each item of a list or tuple; of anything else only the type's name."""
    if type(value) in (list, tuple):
        return [describe(item) for item in value]
    return {"type": str(type(value).__name__)}


def plain(value: Any) -> Any:
    """A number, text, None, or a dict or list of these; of anything else only the type's name."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [plain(item) for item in value]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: plain(item) for key, item in value.items()}
    return {"type": str(type(value).__name__)}
