"""Script 3: a checkpoint whose names begin with `module.`."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dpcourse.labs.production.outcomes import Outcomes, holds
from dpcourse.labs.production.script import script, short
from dpcourse.labs.question import Case, Finding, Mistake

Share = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]  # what was saved, what the fresh model holds


def _state(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "module.weight": random.standard_normal((3, 2)),  # a layer of the model's own that is called "module"
        "module.bias": random.standard_normal(3),
        "norm.weight": random.standard_normal(3),
        "norm.bias": random.standard_normal(3),
        "norm.running_mean": random.standard_normal(3),
        "norm.running_var": random.random(3),
        "norm.num_batches_tracked": random.integers(1, 99, ()),
        "head.weight": random.standard_normal((2, 3)),
    }


def _case(random: np.random.Generator, size: int, is_first: bool) -> tuple[Share, ...]:
    saved = _state(random)
    return tuple((saved, _state(random)) for _ in range(size))


def call(answer: Callable[..., Any], share: Share) -> dict[str, Any]:
    """In a rank: what a fresh model holds after the checkpoint of a DDP run was loaded into it."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = _model(share[1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint.pt"
        torch.save(dict(DistributedDataParallel(_model(share[0])).state_dict()), path)
        answer(path, model)
    return {name: value.numpy() for name, value in model.state_dict().items()}


def _model(state: dict[str, np.ndarray]) -> Any:
    import torch
    from torch import nn

    model = nn.ModuleDict({"module": nn.Linear(2, 3), "norm": nn.BatchNorm1d(3)}).double()
    model["head"] = nn.Linear(3, 2, bias=False).double()
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in state.items()})
    return model


def judge(case: Case, sent: list[Any]) -> Finding:
    """Each rank's model holds all that was saved, under its own names."""
    finding = Outcomes(
        [saved for saved, _ in case.inputs], {"nothing_loaded": [fresh for _, fresh in case.inputs]}
    ).judge(case.title, sent)
    if finding.mistake != "other":
        return finding
    loaded = [_is_either(values, *share) for values, share in zip(sent, case.inputs, strict=True)]
    mistake = "partly_loaded" if all(loaded) else "other"
    return Finding(mistake, finding.where, finding.targets)


def _is_either(values: Any, saved: dict[str, np.ndarray], fresh: dict[str, np.ndarray]) -> bool:
    """Whether each tensor is wholly the saved one or wholly the fresh one."""
    return all(
        any(holds({name: values[name]}, {name: goal[name]}) for goal in (saved, fresh)) for name in saved
    )


def _row(share: Share, values: Any) -> tuple[str, ...]:
    return tuple(short(state["module.weight"]) for state in (*share, values))


_BROKEN = """\
def load_checkpoint(path, model):
    state = torch.load(path)
    model.load_state_dict(state)
"""

LOAD_CHECKPOINT = script(
    "load_checkpoint",
    "Three numbers of the first layer",
    minutes=5,
    case=_case,
    call=call,
    judge=judge,
    columns=("saved", "of the fresh model", "after the call"),
    row=_row,
    broken=_BROKEN,
    mistakes=(
        Mistake(
            "raised",
            "The checkpoint's names are not the model's. Compare what the error misses with what it did not"
            " expect: DDP has put `module.` once before every name, and the model may have a `module` of its"
            " own.",
        ),
        Mistake(
            "nothing_loaded",
            "No error, and nothing loaded: the model still has its fresh weights. strict=False forgives"
            " every name that does not fit, and here that is every name.",
        ),
        Mistake(
            "partly_loaded",
            "Some tensors were loaded and others were not, and no error says so: a name that was cut too"
            " often fits nothing any more. Load strictly, and take `module.` off the front once.",
        ),
        Mistake(
            "other",
            "The model holds numbers that are neither the checkpoint's nor its own.",
        ),
    ),
)
