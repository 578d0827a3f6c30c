"""`dc.expect`: what a strategy should hold and move, before anything runs. No torch."""

from dataclasses import dataclass
from math import inf
from typing import Any

from dpcourse.checks import check_count
from dpcourse.ideal import Distance, ideal_of, sent_in_a_step, while_gradients_exist
from dpcourse.layout import Layout, Parameter
from dpcourse.ledger import OWNERS, STATES, Holding, Transfer, select, sums_by
from dpcourse.ranks import backends
from dpcourse.request import Request, find_model, make_request
from dpcourse.show import Shown
from dpcourse.strategies import check_name, options_text
from dpcourse.tables import Table, bytes_text
from dpcourse.theory.recipes import RECIPES, Recipe
from dpcourse.theory.states import OPTIMIZER_STATES
from dpcourse.theory.zero import STAGES, Ideal


@dataclass(frozen=True, repr=False)
class Expectation(Shown):
    """The lists that a strategy declares for all ranks: `.memory` of Holdings, `.traffic` of Transfers.

    The table sets one rank's beside the ideal, in which everything divides evenly; `distance` says what lies
    between. ideal: None for a strategy that is no stage of ZeRO. num_trained: parameters that are not frozen,
    in num_tensors tensors.
    """

    title: str
    strategy: str
    num_params: int
    num_trained: int
    num_tensors: int
    memory: tuple[Holding, ...]
    traffic: tuple[Transfer, ...]
    ideal: Ideal | None

    def bytes_per_parameter(self, phase: str = "backward", rank: int = 0) -> float:
        """Give the bytes of model states (buckets included) that a rank should hold for each parameter."""
        held = select(self.memory, phase=phase, rank=rank)
        return sum(holding.num_bytes for holding in held if holding.owner in STATES) / self.num_params

    def sent_bytes(self, rank: int = 0) -> float:
        """Give the bytes a rank should send in one step."""
        return sent_in_a_step(select(self.traffic, rank=rank))

    @property
    def ideal_memory(self) -> list[Holding]:
        """What one rank would hold in the ideal; empty where there is none."""
        return self.ideal.memory(self.num_params, self.num_trained) if self.ideal else []

    @property
    def ideal_traffic(self) -> list[Transfer]:
        """What one rank would move in the ideal; empty where there is none."""
        return self.ideal.traffic(self.num_params, self.num_trained) if self.ideal else []

    def table(self, rank: int = 0) -> Table:
        """Lay out what a rank should hold at the end of backward and of the step, and send in one step."""
        columns = ["one rank", "while gradients exist", "after the step", "bytes per parameter", "ideal"]
        held = [sums_by(select(self.memory, rank=rank, phase=p), "owner") for p in ("backward", "step")]
        ideal = while_gradients_exist(self.ideal_memory)
        rows: list[list[Any]] = [
            [
                f"holds {owner}",
                *(bytes_text(sums.get(owner, 0)) for sums in held),
                self._each(held[0].get(owner, 0)),
                self._ideal_each(ideal.get(owner, 0)),
            ]
            for owner in OWNERS
            if any(owner in sums for sums in held)
        ]
        whole = [sum(sums.values()) for sums in held]
        rows.append(
            [
                "holds in all",
                *map(bytes_text, whole),
                self._each(whole[0]),
                self._ideal_each(sum(ideal.values())),
            ]
        )
        sent, ideal_sent = self.sent_bytes(rank), sent_in_a_step(self.ideal_traffic)
        rows.append(
            ["sends in a step", bytes_text(sent), None, self._each(sent), self._ideal_each(ideal_sent)]
        )
        return Table(columns, rows, self.title)

    def distance(self, rank: int = 0) -> str:
        """Say where a rank's exact lists are not the ideal ones, by how much, and why."""
        if self.ideal is None:
            return f"{self.strategy} is no stage of ZeRO: there is no ideal to set beside it."
        memory, traffic = select(self.memory, rank=rank), select(self.traffic, rank=rank)
        between = Distance(
            self.strategy,
            self.num_tensors,
            memory,
            traffic,
            self.ideal_memory,
            self.ideal_traffic,
        )
        return str(between)

    def _each(self, num_bytes: float) -> str:
        return f"{num_bytes / self.num_params:.2f}"

    def _ideal_each(self, num_bytes: float) -> str | None:
        return self._each(num_bytes) if self.ideal else None

    def __str__(self) -> str:
        return f"{self.table()}\n{self.distance()}"

    def to_html(self) -> str:
        return f"{self.table().to_html()}<p>{self.distance()}</p>"


@dataclass(frozen=True)
class _AnyModel:
    """A model of which nothing is known but its size."""

    num_params: int
    name: str = "any model"

    def layout(self) -> Layout:
        return Layout((Parameter("all", (self.num_params,)),))

    def batch_bytes(self, batch_size: int, float_bytes: int = 4) -> None:
        return None

    def input_bytes(self, batch_size: int, float_bytes: int = 4) -> int:
        return 0

    def output_bytes(self, batch_size: int, float_bytes: int = 4) -> int:
        return 0

    def activation_bytes(self, batch_size: int, recipe: Recipe, is_checkpointed: bool = False) -> None:
        return None


def expect(
    strategy: str,
    model: Any = None,
    num_params: float | None = None,
    ranks: int | None = None,
    batch_size: int | None = None,
    recipe: str = "fp32",
    optimizer: str = "adamw",
    batch: Any = None,
    checkpointing: bool = False,
    backend: str | None = None,
    **options: Any,
) -> Expectation:
    """Say what a strategy should hold and move: exactly for a model, in the ideal for a number of parameters.

    What comes back prints one rank's numbers beside the ideal, and what lies between the two; `.table(rank)`
    and `.distance(rank)` do so for any rank, `.memory` and `.traffic` are the lists of all.

    Args:
        strategy, recipe, optimizer, checkpointing, options: as for `dc.train`. With num_params "zero0" to
            "zero3" are the stages of the paper on ZeRO; "zero1" with a model is ZeroRedundancyOptimizer,
            which holds and moves more.
        model: a name, a configuration, or a function (with `batch`), as for `dc.train`: the exact lists.
        num_params: instead of a model, such as 7e9: the headline, as if the model were one tensor.
        ranks: how many there are; None takes one for "single" and two for the others.
        batch_size: samples of the global batch; None takes what `dc.train` takes.
        backend: what carries collectives: "ring" for the course's own or "nccl", which meet the ideal, "gloo"
            or None for gloo, which carries out a reduce-scatter as an all-reduce.

    Raises ValueError for what cannot run, and where not exactly one of model and num_params is given.
    """
    _check_asked(strategy, model, num_params)
    if num_params is not None and strategy in STAGES:
        return _paper(strategy, int(num_params), 2 if ranks is None else ranks, recipe, optimizer, options)
    chosen = find_model(model, batch) if model is not None else _AnyModel(int(num_params or 0))
    request = make_request(
        strategy,
        options,
        chosen,
        ranks=ranks,
        batch_size=batch_size,
        recipe=recipe,
        optimizer=optimizer,
        checkpointing=checkpointing,
    )
    if backend is not None:
        request = request.placed_on(str(backends.device_for(backend, None)), backend)
    return _exact(request, chosen.name)


def _check_asked(strategy: str, model: Any, num_params: float | None) -> None:
    if (model is None) == (num_params is None):
        raise ValueError(
            "expect needs a model or a number of parameters, and not both; "
            'say model="mlp" for the exact lists, or num_params=7e9 for the headline'
        )
    if num_params is not None and not 1 <= num_params < inf:
        raise ValueError(f"num_params={num_params!r}: give a number of parameters from 1 on, such as 7e9")
    if model is not None and strategy in ("zero0", "zero2", "zero3"):
        instead = {"zero0": '"ddp"', "zero2": '"scratch-zero2"', "zero3": '"fsdp2"'}[strategy]
        raise ValueError(
            f"{strategy} is arithmetic for a number of parameters, and a model trains with a system; "
            f"ask for {instead}, or give num_params in place of model"
        )


def _exact(request: Request, name: str) -> Expectation:
    setting = request.setting
    layout, recipe = setting.layout, "" if request.recipe == "fp32" else f"recipe={request.recipe}"
    backend = f"{request.backend} backend" if request.backend in ("ring", "staged") else ""
    words = ", ".join(filter(None, [options_text(request.options), recipe, backend]))
    strategy = f"{request.strategy}{f' ({words})' if words else ''}"
    return Expectation(
        title=_title(strategy, name, layout.num_params, setting.world_size),
        strategy=request.strategy,
        num_params=layout.num_params,
        num_trained=sum(parameter.num_elements for parameter in layout.trainable),
        num_tensors=len(layout.trainable),
        memory=tuple(request.expected_memory()),
        traffic=tuple(request.expected_traffic()),
        ideal=ideal_of(request.strategy, setting),
    )


def _paper(
    stage: str, num_params: int, ranks: int, recipe: str, optimizer: str, options: dict[str, Any]
) -> Expectation:
    """ZeRO's own arithmetic: the lists are the ideal."""
    check_name("recipe", recipe, RECIPES)
    check_name("optimizer", optimizer, OPTIMIZER_STATES)
    check_count("ranks", ranks)
    if options:
        raise ValueError(
            f"{stage} for a number of parameters has no option {sorted(options)[0]!r}; leave it out"
        )
    ideal = Ideal(STAGES[stage], ranks, RECIPES[recipe], optimizer)
    return Expectation(
        title=_title(f"ideal {stage} (recipe={recipe})", "any model", num_params, ranks),
        strategy=stage,
        num_params=num_params,
        num_trained=num_params,
        num_tensors=1,
        memory=tuple(holding for rank in range(ranks) for holding in ideal.memory(num_params, rank=rank)),
        traffic=tuple(item for rank in range(ranks) for item in ideal.traffic(num_params, rank=rank)),
        ideal=ideal,
    )


def _title(strategy: str, name: str, num_params: int, ranks: int) -> str:
    return f"expected of {strategy}: {name} of {num_params:,} parameters on {ranks} rank{'s'[: ranks > 1]}"
