"""Architectures by name, as their configurations were published; a test holds each to its published count."""

from dpcourse.planning.architecture import Architecture


def _gpt2(name: str, width: int, depth: int, heads: int) -> Architecture:
    return Architecture(
        name, 50257, width, depth, heads, positions=1024, context=1024,
        has_query_bias=True, has_projection_bias=True, has_mlp_bias=True,
    )  # fmt: skip


def _llama(
    name: str,
    vocabulary: int,
    width: int,
    depth: int,
    heads: int,
    hidden: int,
    context: int,
    kv_heads: int | None = None,
    is_tied: bool = False,
    has_query_bias: bool = False,
) -> Architecture:
    return Architecture(
        name, vocabulary, width, depth, heads, kv_heads, hidden=hidden, is_gated=True, is_tied=is_tied,
        context=context, norm="rms", has_query_bias=has_query_bias,
    )  # fmt: skip


ARCHITECTURES = {
    architecture.name: architecture
    for architecture in (
        _gpt2("gpt2", 768, 12, 12),
        _gpt2("gpt2-medium", 1024, 24, 16),
        _gpt2("gpt2-large", 1280, 36, 20),
        _gpt2("gpt2-xl", 1600, 48, 25),
        _llama("llama-2-7b", 32000, 4096, 32, 32, 11008, 4096),
        _llama("llama-2-13b", 32000, 5120, 40, 40, 13824, 4096),
        _llama("llama-2-70b", 32000, 8192, 80, 64, 28672, 4096, 8),
        _llama("llama-3-8b", 128256, 4096, 32, 32, 14336, 8192, 8),
        _llama("llama-3-70b", 128256, 8192, 80, 64, 28672, 8192, 8),
        _llama("llama-3.2-1b", 128256, 2048, 16, 32, 8192, 131072, 8, is_tied=True),
        _llama("llama-3.2-3b", 128256, 3072, 28, 24, 8192, 131072, 8, is_tied=True),
        _llama("mistral-7b", 32000, 4096, 32, 32, 14336, 32768, 8),
        _llama("qwen-7b", 151936, 4096, 32, 32, 11008, 8192, has_query_bias=True),
        _llama("qwen2.5-7b", 152064, 3584, 28, 28, 18944, 131072, 4, has_query_bias=True),
        _llama("qwen2.5-72b", 152064, 8192, 80, 64, 29568, 131072, 8, has_query_bias=True),
    )
}
