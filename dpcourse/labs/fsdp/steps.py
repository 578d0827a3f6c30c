"""Lab 06: two training steps of a few layers, each a unit that the answer shards, and a diary of them.

Each layer multiplies by its weight, a row of numbers that the answer's unit brings together and lets go of.
The loop is the lab's own; inside a unit everything is the answer's.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

NUM_STEPS = 2
LEARNING_RATE = 2.0**-3
Layers = list[np.ndarray]  # weights, one row an output


def train(answer: Callable[..., Any], weights: Layers, batches: list[np.ndarray]) -> dict[str, Any]:
    """In a rank: train on these batches; what the shards hold afterwards, and what was there when."""
    import torch

    from dpcourse.labs.held import Held
    from dpcourse.labs.inside import describe

    shapes = [weight.shape for weight in weights]
    inputs = [torch.from_numpy(batch.copy()) for batch in batches]
    held = Held()
    units = [answer(torch.from_numpy(weight.copy()).flatten()) for weight in weights]
    diary = Diary(held, units)
    diary.write("made", -1)
    for batch in inputs:
        if not _step(units, shapes, batch, diary):
            break
    return {"lines": diary.lines, "shards": [describe(getattr(unit, "shard", None)) for unit in units]}


class Diary:
    """Notes what happens and how much is there: a line has a moment, a unit, bytes held, a problem,
    and whether the unit is whole."""

    def __init__(self, held: Any, units: list[Any]) -> None:
        self.held, self.units, self.lines = held, units, list[list[Any]]()

    def write(self, moment: str, index: int, lent: tuple[Any, ...] = (), problem: str = "") -> None:
        """Add a line, and have the judge's log say so too; `lent` are the lab's own tensors."""
        from dpcourse.labs import plug

        plug.note(f"{moment} {index}")
        is_whole = index >= 0 and getattr(self.units[index], "whole", None) is not None
        self.lines.append([moment, index, self.held.num_bytes(without=lent), problem, is_whole])


def _step(units: list[Any], shapes: list[Any], batch: Any, diary: Diary) -> bool:
    """Go forward, backward, and move the shards; False where a unit was not whole when it had to be."""
    import torch

    with torch.no_grad():
        outputs = [batch]
        for index, unit in enumerate(units):
            unit.before_forward()
            weight = _weight(unit, shapes[index])
            problem = "" if weight is not None else _problem(unit, shapes[index])
            diary.write("forward", index, tuple(outputs), problem)
            if weight is None:
                return False
            outputs.append(outputs[-1] @ weight.T)
            del weight
            unit.after_forward()
            diary.write("forward done", index, tuple(outputs))
        return _backward(units, shapes, outputs, diary)


def _backward(units: list[Any], shapes: list[Any], outputs: list[Any], diary: Diary) -> bool:
    gradient = outputs.pop()  # of the loss sum(output ** 2) / 2
    for index in reversed(range(len(units))):
        unit, inputs = units[index], outputs.pop()
        unit.before_backward()
        weight = _weight(unit, shapes[index])
        problem = "" if weight is not None else _problem(unit, shapes[index])
        diary.write("backward", index, (*outputs, inputs, gradient), problem)
        if weight is None:
            return False
        whole, gradient = (gradient.T @ inputs).flatten() / len(inputs), gradient @ weight
        del weight
        unit.after_backward(whole)
        problem = _wrong_gradient(unit)
        del whole
        diary.write("backward done", index, (*outputs, inputs, gradient), problem)
        if problem:
            return False
    for unit in units:
        unit.shard -= LEARNING_RATE * unit.grad
        unit.grad = None
    diary.write("step", -1, (inputs, gradient))
    return True


def _weight(unit: Any, shape: tuple[int, ...]) -> Any:
    """The unit's weight as the layer needs it; None where it is not there."""
    return None if _problem(unit, shape) else unit.whole.view(shape)


def _problem(unit: Any, shape: tuple[int, ...]) -> str:
    """Why a unit cannot compute."""
    import torch

    whole = getattr(unit, "whole", None)
    if type(whole) is not torch.Tensor:
        return "not there"
    if whole.untyped_storage().nbytes() < whole.nbytes:
        return "emptied"
    return "" if whole.numel() == int(np.prod(shape)) else f"{whole.numel()} numbers"


def _wrong_gradient(unit: Any) -> str:
    """Why the step cannot use the unit's gradient."""
    import torch

    found = getattr(unit, "grad", None)
    if type(found) is not torch.Tensor:
        return "no gradient"
    shard = getattr(unit, "shard", None)
    if not isinstance(shard, torch.Tensor) or shard.shape != found.shape:
        return f"a gradient of {list(found.shape)}"
    return ""
