"""The number formats of a training run by name: what each tensor of the model states is kept in."""

from collections.abc import Iterable
from dataclasses import dataclass

FLOAT32, BFLOAT16 = "float32", "bfloat16"


@dataclass(frozen=True)
class Recipe:
    """Formats of the model states, and of what is computed and sent.

    parameter_dtype: of the module's parameters, and so of their gradients and of the optimizer's states.
    has_masters: the optimizer steps fp32 copies of the parameters, and keeps its states in fp32.
    autocast_dtype: operations of forward cast fp32 numbers to it; nothing that is kept changes.
    gather_dtype: sharded parameters are gathered, and computed with, in it; shards stay as they are.
    """

    name: str
    says: str
    parameter_dtype: str = FLOAT32
    has_masters: bool = False
    autocast_dtype: str | None = None
    gather_dtype: str | None = None

    @property
    def computed_dtype(self) -> str:
        """The format of what the model's layers give, and of its outputs."""
        return self.autocast_dtype or self.gather_dtype or self.parameter_dtype


def _by_name(recipes: Iterable[Recipe]) -> dict[str, Recipe]:
    return {recipe.name: recipe for recipe in recipes}


# Bytes a parameter for Adam: parameter + gradient + states. The first row is what torch does unasked; 2 + 2 +
# 12 is Megatron's and DeepSpeed's arithmetic: Rajbhandari et al., ZeRO, 2020, section 3.1.
RECIPES = _by_name(
    [
        Recipe("fp32", "4 + 4 + 8: everything in fp32"),
        Recipe("autocast", "4 + 4 + 8: fp32 states, casts to bf16 in forward", autocast_dtype=BFLOAT16),
        Recipe(
            "mixed-adam", "2 + 2 + 12: bf16 with fp32 masters", parameter_dtype=BFLOAT16, has_masters=True
        ),
        Recipe("bf16", "2 + 2 + 4: everything in bf16", parameter_dtype=BFLOAT16),
        Recipe("fsdp-mixed", "4 + 4 + 8: fp32 shards, gathered in bf16", gather_dtype=BFLOAT16),
    ]
)
