"""A Llama of a few lines, with an option for each thing an architecture can have: what counts are held to."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpcourse.planning.architecture import Architecture


class Block(nn.Module):
    """Norm, attention with rotary positions, norm, MLP; plain attention holds its table of scores."""

    def __init__(self, model: Architecture, attention: str = "fused") -> None:
        super().__init__()
        self.model, self.attention = model, attention
        width, biased = model.width, model.has_query_bias
        self.attention_norm, self.hidden_norm = norm_of(model), norm_of(model)
        self.queries = nn.Linear(width, model.query_width, biased)
        self.keys = nn.Linear(width, model.kv_width, biased)
        self.values = nn.Linear(width, model.kv_width, biased)
        self.projection = nn.Linear(model.query_width, width, model.has_projection_bias)
        self.gate = nn.Linear(width, model.num_hidden, model.has_mlp_bias) if model.is_gated else None
        self.expand = nn.Linear(width, model.num_hidden, model.has_mlp_bias)
        self.contract = nn.Linear(model.num_hidden, width, model.has_mlp_bias)

    def forward(self, stream: Tensor) -> Tensor:
        stream = stream + self.projection(self._attend(self.attention_norm(stream)))
        return stream + self.contract(self._hidden(self.hidden_norm(stream)))

    def _hidden(self, inputs: Tensor) -> Tensor:
        if self.gate is None:
            return F.gelu(self.expand(inputs))
        return F.silu(self.gate(inputs)) * self.expand(inputs)

    def _attend(self, inputs: Tensor) -> Tensor:
        queries, keys, values = (
            layer(inputs).unflatten(-1, (-1, self.model.query_width // self.model.heads)).transpose(1, 2)
            for layer in (self.queries, self.keys, self.values)
        )
        queries, keys = rotated(queries), rotated(keys)
        if self.attention == "fused":
            attended = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=True)
        else:
            scores = queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5
            attended = scores.softmax(-1) @ values
        return attended.transpose(1, 2).flatten(2)


class Llama(nn.Module):
    def __init__(self, model: Architecture, attention: str = "fused") -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(model.vocabulary, model.width)
        self.position_embedding = nn.Embedding(model.positions, model.width) if model.positions else None
        self.blocks = nn.ModuleList(Block(model, attention) for _ in range(model.depth))
        self.norm = norm_of(model)
        self.head = nn.Linear(model.width, model.vocabulary, bias=False)
        if model.is_tied:
            self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.token_embedding(tokens)
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream))


def norm_of(model: Architecture) -> nn.Module:
    return nn.LayerNorm(model.width) if model.norm == "layer" else nn.RMSNorm(model.width)


def rotated(heads: Tensor) -> Tensor:
    """Turn pairs of numbers, by one angle for all: backward keeps nothing of it."""
    first, second = heads.chunk(2, dim=-1)
    return heads * 0.6 + torch.cat((-second, first), dim=-1) * 0.8
