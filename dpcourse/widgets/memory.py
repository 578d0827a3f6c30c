"""What one rank holds, for any size, number of ranks, recipe and strategy: move them, and the bars follow."""

from typing import Any

from dpcourse.expectation import expect
from dpcourse.figures.calculator import calculator_bars
from dpcourse.figures.canvas import Figure
from dpcourse.ledger import select, sums_by
from dpcourse.tables import bytes_text
from dpcourse.theory.recipes import RECIPES
from dpcourse.widgets.controls import Control, choice, number
from dpcourse.widgets.panel import explore

STRATEGIES = {
    "ZeRO stage 0: all on every rank": "zero0",
    "ZeRO stage 1: optimizer states shared out": "zero1",
    "ZeRO stage 2: gradients too": "zero2",
    "ZeRO stage 3: parameters too": "zero3",
    "DDP, with its buckets": "ddp",
}
_PHASES = ("forward", "backward", "step")
_MILLION, _GIGABYTE = 10**6, 10**9


def memory_bars_of(millions: int, ranks: int, recipe: str, strategy: str, card: int) -> Figure:
    """The picture for so many millions of parameters, with a line where `card` GB are full."""
    num_params = millions * _MILLION
    asked: dict[str, Any] = {"num_params": num_params, "ranks": ranks, "recipe": recipe}
    found, whole = expect(strategy, **asked), expect("zero0", **asked)
    rows = {"all on one rank": sums_by(select(whole.memory, phase="backward", rank=0), "owner")}
    for phase in _PHASES:
        rows[f"end of {phase}"] = sums_by(select(found.memory, phase=phase, rank=0), "owner")
    name = next(words for words, key in STRATEGIES.items() if key == strategy).partition(":")[0]
    held = bytes_text(sum(rows["end of backward"].values()))
    count = f"{millions / 1000:g} billion" if millions >= 1000 else f"{millions} million"
    on = "1 rank" if ranks == 1 else f"{ranks:,} ranks"
    title = f"{name} on {on}: {count} parameters, {recipe}: {held} on each rank while gradients exist"
    return calculator_bars(title, rows, num_params, card * _GIGABYTE)


def memory_calculator(
    millions: int = 7000, ranks: int = 8, recipe: str = "mixed-adam", strategy: str = "zero3", card: int = 80
) -> Any:
    """Move the size of the model, the ranks, the recipe and the strategy; the bars of one rank follow.

    millions: of parameters. strategy: "zero0" to "zero3" of the paper on ZeRO, or "ddp". card: GB of memory
    that a rank has. Model states alone: activations come on top.
    """
    recipes = {f"{name}: {each.says}": name for name, each in RECIPES.items()}
    names = {key: words for words, key in STRATEGIES.items()}
    says = {name: words for words, name in recipes.items()}

    def controls() -> dict[str, Control]:
        return {
            "millions": number("Million parameters", millions, 1, 10**6, is_doubling=True),
            "ranks": number("Ranks", ranks, 1, 1024, is_doubling=True),
            "recipe": choice("Recipe", recipes, says[recipe]),
            "strategy": choice("Strategy", STRATEGIES, names[strategy]),
            "card": number("Memory of a card (GB)", card, 1, 1024, is_doubling=True),
        }

    first = {"millions": millions, "ranks": ranks, "recipe": recipe, "strategy": strategy, "card": card}
    return explore(memory_bars_of, controls, **first)
