"""Which number formats a plan is for. It asks where a word means several: "bf16" is four different sums."""

from dataclasses import dataclass
from typing import Any

from dpcourse.strategies import check_name
from dpcourse.tables import bytes_text
from dpcourse.theory.recipes import RECIPES, Recipe
from dpcourse.theory.states import FP32_BYTES
from dpcourse.theory.zero import whole_bytes


@dataclass(frozen=True)
class Choice:
    """A recipe by a name that means one thing. has_fp32_gradients: DeepSpeed accumulates them in fp32."""

    name: str
    recipe: Recipe
    has_fp32_gradients: bool = False

    def bytes_per_parameter(self, optimizer: str) -> int:
        """Add up the states of a whole copy."""
        held = whole_bytes(self.recipe, optimizer)
        return sum(held.values()) + (FP32_BYTES - held["gradients"] if self.has_fp32_gradients else 0)

    @property
    def says(self) -> str:
        if self.has_fp32_gradients:
            return "2 + 4 + 12: bf16 with fp32 masters, DeepSpeed's gradients in fp32"
        return self.recipe.says

    def recipe_for(self, strategy: str) -> Recipe:
        """Give the recipe as a strategy can do it: who does not shard casts, and gathers nothing."""
        is_sharded = strategy.startswith("fsdp")
        return RECIPES["autocast"] if self.recipe.name == "fsdp-mixed" and not is_sharded else self.recipe


DEFAULT = "mixed-adam"
CHOICES = {
    choice.name: choice
    for choice in (
        Choice("pure-bf16", RECIPES["bf16"]),
        Choice("mixed-adam", RECIPES["mixed-adam"]),
        Choice("fsdp-mixed", RECIPES["fsdp-mixed"]),
        Choice("deepspeed-fp32-gradients", RECIPES["mixed-adam"], has_fp32_gradients=True),
        Choice("autocast", RECIPES["autocast"]),
        Choice("fp32", RECIPES["fp32"]),
    )
}
_AMBIGUOUS = ("bf16", "bfloat16", "mixed", "amp")
_MEANINGS = ("pure-bf16", "mixed-adam", "fsdp-mixed", "deepspeed-fp32-gradients")


def read_choice(asked: Any, num_params: int, optimizer: str) -> Choice:
    """Read a recipe's name; None is the default, which the plan prints.

    Raises ValueError for a name that there is not and, with the choices and their bytes, for one that means
    several.
    """
    if isinstance(asked, str) and asked.lower() in _AMBIGUOUS:
        raise ValueError(_question(asked, num_params, optimizer))
    check_name("recipe", DEFAULT if asked is None else asked, CHOICES)
    return CHOICES[asked or DEFAULT]


def _question(asked: str, num_params: int, optimizer: str) -> str:
    lines = []
    for choice in (CHOICES[name] for name in _MEANINGS):
        each = choice.bytes_per_parameter(optimizer)
        total = bytes_text(each * num_params)
        lines.append(f'  recipe="{choice.name}": {each} bytes a parameter, {total} ({choice.says})')
    return f"recipe={asked!r} means several; which of these is it?\n" + "\n".join(lines)
