"""The tree of decisions with the way lit that a model and some cards take; move them, and the way changes."""

from typing import Any

from dpcourse.figures.canvas import Figure
from dpcourse.figures.tree import decision_tree as tree_figure
from dpcourse.planning.decision import TREE
from dpcourse.planning.named import ARCHITECTURES
from dpcourse.planning.recipes import CHOICES
from dpcourse.planning.selection import plan
from dpcourse.widgets.controls import Control, choice, number
from dpcourse.widgets.panel import explore

_MOST_HOSTS, _MOST_PER_HOST = 512, 16


def way_of(model: str, hosts: int, cards_per_host: int, card: int, recipe: str) -> Figure:
    """The picture for a model on so many hosts with cards of `card` GB."""
    gpus = hosts * cards_per_host
    found = plan(model, gpus=gpus, gpu_memory=f"{card}GB", hosts=hosts, recipe=recipe)
    on = f"{gpus:,} {'card' if gpus == 1 else 'cards'} of {card} GB"
    across = "" if hosts == 1 else f" on {hosts:,} hosts"
    return tree_figure(TREE, found.path, f"{model}, {recipe}, {on}{across}: {found.path.answer.text}")


def decision_tree(
    model: str = "llama-2-7b",
    hosts: int = 1,
    cards_per_host: int = 8,
    card: int = 80,
    recipe: str = "mixed-adam",
) -> Any:
    """Choose a model, cards, hosts and a recipe, and see how the selection guide comes to its answer.

    model: a name that `dc.plan` knows. card: GB of memory of each. The whole plan is `dc.plan`'s.
    """
    models = {name: name for name in ARCHITECTURES}
    recipes = {f"{name}: {each.says}": name for name, each in CHOICES.items()}
    says = {name: words for words, name in recipes.items()}

    def controls() -> dict[str, Control]:
        return {
            "model": choice("Model", models, model),
            "hosts": number("Hosts", hosts, 1, _MOST_HOSTS, is_doubling=True),
            "cards_per_host": number("Cards per host", cards_per_host, 1, _MOST_PER_HOST),
            "card": number("Memory of a card (GB)", card, 1, 1024, is_doubling=True),
            "recipe": choice("Recipe", recipes, says[recipe]),
        }

    cards = {"hosts": hosts, "cards_per_host": cards_per_host, "card": card}
    return explore(way_of, controls, model=model, recipe=recipe, **cards)
