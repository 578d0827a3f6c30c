"""A decoder-only transformer as a dataclass of integers: its layout, exactly, before anything is built.

Grouped-query attention, gated MLPs of any factor, tied or untied tables, biases, learned or rotary positions.
"""

from dataclasses import dataclass
from fractions import Fraction

from dpcourse.checks import check_choice, check_count
from dpcourse.layout import Layout, Parameter

NORMS = ("layer", "rms")
_DEEPEST = 10_000
_FINEST = 1000  # denominators of MLP factors: 8/3 and 3.609375 are exact


@dataclass(frozen=True)
class Architecture:
    """The sizes of a decoder: who has them has its parameters, its activations and its operations.

    kv_heads: heads of keys and values, fewer than `heads` in grouped-query attention; None: as many.
    hidden: width inside the MLP; None: mlp_factor x width. is_gated: three matrices in the MLP, not two.
    positions: rows of a learned table; 0 for rotary ones. context: the longest sequence, None for no limit.
    norm: "layer" has a weight and a bias, "rms" a weight. has_*_bias: of queries, keys and values, of the
    attention's projection, of the MLP.
    """

    name: str
    vocabulary: int
    width: int
    depth: int
    heads: int
    kv_heads: int | None = None
    head_width: int | None = None
    hidden: int | None = None
    mlp_factor: float = 4
    is_gated: bool = False
    is_tied: bool = True
    positions: int = 0
    context: int | None = None
    norm: str = "layer"
    has_query_bias: bool = False
    has_projection_bias: bool = False
    has_mlp_bias: bool = False

    def __post_init__(self) -> None:
        for what in ("vocabulary", "width", "depth", "heads"):
            check_count(what, getattr(self, what))
        for what in ("kv_heads", "head_width", "hidden", "context"):
            if getattr(self, what) is not None:
                check_count(what, getattr(self, what))
        check_choice("norm", self.norm, NORMS)
        if self.depth > _DEEPEST:
            raise ValueError(
                f"a depth of {self.depth:,} blocks is over the {_DEEPEST:,} that are listed one by one"
            )
        if self.head_width is None and self.width % self.heads:
            raise ValueError(
                f"a width of {self.width} does not divide over {self.heads} heads; give heads that do, "
                "or head_width (head_dim in a configuration)"
            )
        if self.heads % self.num_kv_heads:
            raise ValueError(
                f"{self.heads} heads do not divide over {self.num_kv_heads} heads of keys and values; each "
                "of those serves equally many, so give kv_heads that divide them"
            )
        self.num_hidden  # noqa: B018  # raises where the factor gives no whole number

    @property
    def num_kv_heads(self) -> int:
        return self.kv_heads or self.heads

    @property
    def query_width(self) -> int:
        return self.heads * (self.head_width or self.width // self.heads)

    @property
    def kv_width(self) -> int:
        return self.query_width // self.heads * self.num_kv_heads

    @property
    def num_hidden(self) -> int:
        """The width inside the MLP."""
        if self.hidden is not None:
            return self.hidden
        exact = Fraction(self.mlp_factor).limit_denominator(_FINEST) * self.width
        if exact.denominator != 1 or exact < 1:
            raise ValueError(
                f"mlp_factor={self.mlp_factor!r} of a width of {self.width} is {float(exact):g}, which is no "
                "whole number from 1 on; give hidden (intermediate_size in a configuration)"
            )
        return int(exact)

    @property
    def num_params(self) -> int:
        return self.layout().num_params

    @property
    def multiplied(self) -> int:
        """Count the parameters that a token is multiplied with: the matrices of the blocks and the head."""
        attention = self.width * (2 * self.query_width + 2 * self.kv_width)
        mlp = (3 if self.is_gated else 2) * self.width * self.num_hidden
        return self.depth * (attention + mlp) + self.width * self.vocabulary

    def layout(self) -> Layout:
        """List every tensor, each table once."""
        parameters = [Parameter("token_embedding.weight", (self.vocabulary, self.width))]
        if self.positions:
            parameters.append(Parameter("position_embedding.weight", (self.positions, self.width)))
        for index in range(self.depth):
            parameters += self._block(f"blocks.{index}")
        parameters += self._norm("norm")
        if self.is_tied:
            return Layout(tuple(parameters), shared=(("head.weight", "token_embedding.weight"),))
        return Layout((*parameters, Parameter("head.weight", (self.vocabulary, self.width))))

    def _block(self, name: str) -> list[Parameter]:
        return [
            *self._norm(f"{name}.attention_norm"),
            *_linear(f"{name}.queries", self.width, self.query_width, self.has_query_bias),
            *_linear(f"{name}.keys", self.width, self.kv_width, self.has_query_bias),
            *_linear(f"{name}.values", self.width, self.kv_width, self.has_query_bias),
            *_linear(f"{name}.projection", self.query_width, self.width, self.has_projection_bias),
            *self._norm(f"{name}.hidden_norm"),
            *self._mlp(name),
        ]

    def _mlp(self, name: str) -> list[Parameter]:
        inner = self.num_hidden
        gate = _linear(f"{name}.gate", self.width, inner, self.has_mlp_bias) if self.is_gated else []
        return [
            *gate,
            *_linear(f"{name}.expand", self.width, inner, self.has_mlp_bias),
            *_linear(f"{name}.contract", inner, self.width, self.has_mlp_bias),
        ]

    def _norm(self, name: str) -> list[Parameter]:
        bias = [Parameter(f"{name}.bias", (self.width,))] if self.norm == "layer" else []
        return [Parameter(f"{name}.weight", (self.width,)), *bias]


def _linear(name: str, inputs: int, outputs: int, has_bias: bool) -> list[Parameter]:
    weight = Parameter(f"{name}.weight", (outputs, inputs))
    return [weight, Parameter(f"{name}.bias", (outputs,))] if has_bias else [weight]
