"""`dc.expect`: what a strategy should hold and move, before anything runs. No torch."""

from dataclasses import dataclass
from typing import Any

from dpcourse.layout import Layout, Parameter
from dpcourse.ledger import OWNERS, STATES, Holding, Transfer, select, sums_by, total
from dpcourse.request import find_model, make_request
from dpcourse.show import Shown
from dpcourse.strategies import options_text
from dpcourse.tables import Table, bytes_text


@dataclass(frozen=True, repr=False)
class Expectation(Shown):
    """The lists that a strategy declares for all ranks: `.memory` of Holdings, `.traffic` of Transfers."""

    title: str
    num_params: int
    memory: tuple[Holding, ...]
    traffic: tuple[Transfer, ...]

    def bytes_per_parameter(self, phase: str = "backward", rank: int = 0) -> float:
        """Give the bytes of model states (buckets included) that a rank should hold for each parameter."""
        held = select(self.memory, phase=phase, rank=rank)
        return sum(holding.num_bytes for holding in held if holding.owner in STATES) / self.num_params

    def sent_bytes(self, rank: int = 0) -> float:
        """Give the bytes a rank should send in one step."""
        sent = select(self.traffic, rank=rank)
        return total((transfer for transfer in sent if transfer.phase != "init"), "sent_bytes")

    def table(self, rank: int = 0) -> Table:
        """Lay out what a rank should hold at the end of backward and of the step, and send in one step."""
        columns = ["one rank", "while gradients exist", "after the step", "bytes per parameter"]
        held = [sums_by(select(self.memory, rank=rank, phase=p), "owner") for p in ("backward", "step")]
        rows: list[list[Any]] = [
            [
                f"holds {owner}",
                *(bytes_text(sums.get(owner, 0)) for sums in held),
                self._each(held[0].get(owner, 0)),
            ]
            for owner in OWNERS
            if any(owner in sums for sums in held)
        ]
        rows.append(
            [
                "holds in all",
                *(bytes_text(sum(sums.values())) for sums in held),
                self._each(sum(held[0].values())),
            ]
        )
        rows.append(
            ["sends in a step", bytes_text(self.sent_bytes(rank)), None, self._each(self.sent_bytes(rank))]
        )
        return Table(columns, rows, self.title)

    def _each(self, num_bytes: float) -> str:
        return f"{num_bytes / self.num_params:.2f}"

    def __str__(self) -> str:
        return str(self.table())

    def to_html(self) -> str:
        return self.table().to_html()


@dataclass(frozen=True)
class _AnyModel:
    """A model of which nothing is known but its size."""

    num_params: int
    name: str = "any model"

    def layout(self) -> Layout:
        return Layout((Parameter("all", (self.num_params,)),))

    def batch_bytes(self, batch_size: int, float_bytes: int = 4) -> None:
        return None

    def activation_bytes(self, batch_size: int) -> None:
        return None


def expect(
    strategy: str,
    model: Any = None,
    num_params: float | None = None,
    world_size: int | None = None,
    batch_size: int | None = None,
    recipe: str = "fp32",
    optimizer: str = "adamw",
    batch: Any = None,
    **options: Any,
) -> Expectation:
    """Say what a strategy should hold and move: exactly for a model, in the ideal for a number of parameters.

    Args:
        strategy, recipe, optimizer, options: as for `dc.train`.
        model: a name, a configuration, or a function (with `batch`), as for `dc.train`: the exact lists.
        num_params: instead of a model, such as 7e9: the headline, as if the model were one tensor.
        world_size: how many ranks; None takes one for "single" and two for the others.
        batch_size: samples of the global batch; None takes one a rank, or 16 where they divide.

    Raises ValueError for what cannot run, and where not exactly one of model and num_params is given.
    """
    if (model is None) == (num_params is None):
        raise ValueError(
            "expect needs a model or a number of parameters, and not both; "
            'say model="mlp" for the exact lists, or num_params=7e9 for the headline'
        )
    chosen = find_model(model, batch) if model is not None else _AnyModel(int(num_params or 0))
    ranks = world_size if world_size is not None else 1 if strategy == "single" else 2
    samples = batch_size or (16 if 16 % max(ranks, 1) == 0 else ranks)
    request = make_request(
        strategy, options, chosen, ranks=ranks, batch_size=samples, recipe=recipe, optimizer=optimizer
    )
    words = options_text(request.options)
    title = f"expected of {strategy}{f' ({words})' if words else ''}: {chosen.name} of "
    return Expectation(
        title=f"{title}{request.setting.layout.num_params:,} parameters on {ranks} rank{'s'[: ranks > 1]}",
        num_params=request.setting.layout.num_params,
        memory=tuple(request.expected_memory()),
        traffic=tuple(request.expected_traffic()),
    )
