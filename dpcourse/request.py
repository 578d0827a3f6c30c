"""What a learner asks for, checked before any process starts, and what is to be expected of it. No torch.

A refusal says what was asked, what is there, and what to do next.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dpcourse import strategies
from dpcourse.checks import check_count
from dpcourse.data import batch_seed
from dpcourse.layout import DTYPE_BYTES, Layout
from dpcourse.ledger import Holding, Transfer
from dpcourse.models import MODELS, OwnModel
from dpcourse.quantities import read_seconds
from dpcourse.ranks.links import Links
from dpcourse.strategies import STEADY_STEP, Setting, check_name
from dpcourse.strategies.base import num_shares
from dpcourse.theory.recipes import RECIPES, Recipe
from dpcourse.theory.states import OPTIMIZER_STATES

DEFAULT_BATCH_SIZE = 16  # or the next number that divides over the ranks


@dataclass(frozen=True)
class Request:
    """A run that can be carried out: all names resolved, all numbers checked."""

    strategy: str
    options: Any
    model: Any
    world_size: int
    batch_size: int
    steps: int
    recipe: str
    optimizer: str
    seed: int
    is_checkpointed: bool = False
    device: str = "cpu"
    backend: str = "gloo"
    links: Links | None = None
    pace_compute: float | None = None  # seconds that each layer takes in forward

    @cached_property
    def setting(self) -> Setting:
        share = self.batch_size // num_shares(self.options, self.world_size)
        recipe = RECIPES[self.recipe]
        return Setting(
            layout=self._layout(recipe),
            world_size=self.world_size,
            batch_size=self.batch_size,
            optimizer=self.optimizer,
            options=self.options,
            activation_bytes=self._activation_bytes(share, recipe),
            batch_bytes=self.model.batch_bytes(share, DTYPE_BYTES[recipe.parameter_dtype]),
            input_bytes=self.model.input_bytes(share, DTYPE_BYTES[recipe.parameter_dtype]),
            output_bytes=self.model.output_bytes(share, DTYPE_BYTES[recipe.computed_dtype]),
            recipe=recipe,
            backend=self.backend,
            device=self.device,
            is_checkpointed=self.is_checkpointed,
            heads=getattr(self.model, "heads", None),
        )

    def _layout(self, recipe: Recipe) -> Layout:
        layout = self.model.layout().cast(recipe.parameter_dtype)
        return layout.under_autocast() if recipe.autocast_dtype else layout

    def _activation_bytes(self, share: int, recipe: Recipe) -> Any:
        """Formulas of what torch's operations keep on CPUs; those on GPUs keep other things."""
        if self.device != "cpu":
            return None
        return self.model.activation_bytes(share, recipe, self.is_checkpointed)

    def placed_on(self, device: str, backend: str, links: Links | None = None) -> "Request":
        """Give the same request for ranks on "cpu" or "cuda", with what carries their collectives.

        links: between emulated hosts; None for a machine as it is.

        Raises ValueError where the strategy cannot work there.
        """
        request = replace(self, device=device, backend=backend, links=links)
        strategies.find(self.strategy).check_place(request.setting)
        if self.pace_compute and device != "cpu":
            raise ValueError(
                f"pace_compute={self.pace_compute} lets the CPU wait, and the layers would be on {device!r}; "
                'ask for device="cpu", or leave pace_compute out'
            )
        return request

    def expected_memory(self) -> list[Holding]:
        return strategies.find(self.strategy).expected_memory(self.setting)

    def expected_traffic(self, step: int = STEADY_STEP) -> list[Transfer]:
        return strategies.find(self.strategy).expected_traffic(self.setting, step)


def make_request(
    strategy: str,
    options: Mapping[str, Any],
    model: Any = "mlp",
    batch: Callable | None = None,
    ranks: int | None = None,
    batch_size: int | None = None,
    steps: int = 3,
    recipe: str = "fp32",
    optimizer: str = "adamw",
    seed: int = 0,
    checkpointing: bool = False,
    pace_compute: Any = None,
) -> Request:
    """Resolve names and check numbers, for ranks that compute on CPUs; `placed_on` takes it elsewhere.

    Raises ValueError or TypeError for what cannot be carried out.
    """
    chosen_options = strategies.options_for(strategy, options)
    world_size = ranks if ranks is not None else 1 if strategy == "single" else 2
    check_name("optimizer", optimizer, OPTIMIZER_STATES)
    check_name("recipe", recipe, RECIPES)
    _check_recipe(strategy, recipe)
    check_count("ranks", world_size)
    check_count("steps", steps)
    _check_seed(seed)
    shares = num_shares(chosen_options, world_size)
    if batch_size is None:
        batch_size = math.ceil(DEFAULT_BATCH_SIZE / shares) * shares
    check_count("batch_size", batch_size)
    _check_shares(batch_size, shares)
    request = Request(
        strategy,
        chosen_options,
        find_model(model, batch),
        world_size,
        batch_size,
        steps,
        recipe,
        optimizer,
        seed,
        _read_flag("checkpointing", checkpointing),
        pace_compute=None if pace_compute is None else _read_pace(pace_compute),
    )
    strategies.find(strategy).check(request.setting)
    _check_trains(request)
    if isinstance(request.model, OwnModel):
        request.model.batch(
            batch_size, batch_seed(seed, 0)
        )  # refuses a batch of a wrong size here, not in a rank
    return request


def find_model(model: Any, batch: Callable | None = None) -> Any:
    """Resolve a model: a name, a configuration, or a function that returns an nn.Module (with `batch`)."""
    if isinstance(model, str):
        check_name("model", model, MODELS)
        _check_batch_is_own(model, batch)
        return MODELS[model]()
    if hasattr(model, "named_parameters") and not isinstance(model, type):
        kind = type(model).__name__
        raise TypeError(
            f"model is a {kind} that is made already, and each rank makes its own; give a function that "
            f"makes it, such as model=lambda: {kind}(...)"
        )
    if hasattr(model, "layout") and not isinstance(model, type):
        _check_batch_is_own(model, batch)
        return model
    if not callable(model):
        raise TypeError(
            f"model is a {type(model).__name__}; give a name ({', '.join(MODELS)}), a configuration such as "
            "Mlp(width=1024) from dpcourse.models, or a function that returns an nn.Module"
        )
    if batch is None:
        raise ValueError(
            f"model={getattr(model, '__name__', model)!r} is a model of your own, and no batches go with it; "
            "give batch=function, where function(batch_size, seed) returns inputs and targets"
        )
    if not callable(batch):
        raise TypeError(
            f"batch={batch!r}: give a function, where function(batch_size, seed) returns inputs and targets"
        )
    return OwnModel(model, batch)


def _check_batch_is_own(model: Any, batch: Any) -> None:
    if batch is not None:
        raise ValueError(
            f"batch= was given with model={model!r}, which makes its own batches; leave batch out, or give "
            "model=function that returns an nn.Module"
        )


def _check_recipe(strategy: str, recipe: str) -> None:
    """Refuse a recipe that a strategy cannot do, with those it can and who can do it."""
    can = strategies.find(strategy).recipes
    if recipe not in can:
        others = [name for name in strategies.STRATEGIES if recipe in strategies.find(name).recipes]
        raise ValueError(
            f"{strategy} cannot train with the recipe {recipe!r} ({RECIPES[recipe].says}); it can do "
            f"{', '.join(can)}, and {recipe} is done by {', '.join(others)}"
        )


def _read_flag(what: str, asked: Any) -> bool:
    if not isinstance(asked, bool):
        raise ValueError(f"{what}={asked!r}: give True or False")
    return asked


def _read_pace(asked: Any) -> float:
    seconds = read_seconds("pace_compute", asked)
    if seconds == 0:
        raise ValueError(
            f'pace_compute={asked!r}: a layer that takes no time is none; give a time such as "5ms", or None '
            "to let layers take the time they need"
        )
    return seconds


def _check_seed(seed: Any) -> None:
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise ValueError(f"seed={seed!r}: give a whole number from 0 to 2**63 - 1")


def _check_trains(request: Request) -> None:
    layout = request.setting.layout
    if not layout.trainable:
        raise ValueError(
            f"{request.model.name} has no parameter to train ({len(layout.parameters)} there, all frozen); "
            "leave at least one with requires_grad=True"
        )


def _check_shares(batch_size: int, world_size: int) -> None:
    """Refuse shares that are empty or unequal: a mean of means over unequal shares is not the mean."""
    if world_size > batch_size:
        raise ValueError(
            f"{world_size} ranks share a global batch of {batch_size}, so that some would have no sample; "
            f"ask for at most {batch_size} ranks, or for batch_size={world_size} or more"
        )
    if batch_size % world_size:
        less = batch_size - batch_size % world_size
        raise ValueError(
            f"a global batch of {batch_size} does not divide over {world_size} ranks, and the mean of means "
            f"over unequal shares is not the mean; ask for batch_size={less} or {less + world_size}"
        )
