"""Read an architecture from a configuration as Hugging Face's models publish it (config.json as a dict)."""

from collections.abc import Callable, Mapping
from typing import Any

from dpcourse.checks import check_choice, check_count
from dpcourse.planning.architecture import Architecture
from dpcourse.strategies import choices

# Keys of what is not modelled, with what they mean; one that is None, False or 0 says that it is not there.
_NOT_MODELLED = {
    "quantization_config": "quantised weights",
    "load_in_4bit": "quantised weights",
    "load_in_8bit": "quantised weights",
    "is_encoder_decoder": "an encoder beside the decoder",
    "encoder_layers": "an encoder beside the decoder",
    "kv_lora_rank": "compressed keys and values",
    "vision_config": "an encoder of images",
    "text_config": "a part for text inside a larger model",
}


def architecture_from(config: Mapping[str, Any]) -> Architecture:
    """Read a configuration with the keys of GPT-2, Llama, Mistral, Qwen or Qwen2.

    Raises ValueError for what is not modelled, naming the key, and for a key that is missing.
    """
    for key, what in _NOT_MODELLED.items():
        if config.get(key):
            raise ValueError(_not_modelled(key, config[key], what))
    if found := _experts(config):
        raise ValueError(_not_modelled(*found, "experts"))
    kind = config.get("model_type") or ("gpt2" if "n_embd" in config else "llama")
    if not isinstance(kind, str) or kind not in _READERS:
        raise ValueError(f"model_type={kind!r} is not modelled; {choices(str(kind), _READERS)}")
    return _READERS[kind](_Keys(config, kind))


def _experts(config: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Every family calls its experts something else: num_local_experts, n_routed_experts, moe_num_experts."""
    return next((item for item in config.items() if "expert" in str(item[0]) and item[1]), None)


def _not_modelled(key: Any, value: Any, what: str) -> str:
    text = repr(value)
    return (
        f"the configuration has {key}={text if len(text) < 80 else text[:80] + '...'}: {what}, which is not "
        "modelled; plan a dense decoder, or give a parameter count such as 7e9 for the states alone"
    )


class _Keys:
    """A configuration whose missing keys are named."""

    def __init__(self, config: Mapping[str, Any], kind: str) -> None:
        self.config, self.kind = config, kind

    def __getitem__(self, key: str) -> Any:
        if self.config.get(key) is None:
            raise ValueError(
                f"the configuration has no {key}, which a model of the type {self.kind} needs; there is "
                f"{', '.join(sorted(map(str, self.config))) or 'nothing in it'}"
            )
        return self.count(key)

    def count(self, key: str) -> Any:
        """A size by its key, None where there is none."""
        found = self.config.get(key)
        if found is not None:
            check_count(f"the configuration's {key}", found)
        return found

    def flag(self, key: str, otherwise: bool = False) -> bool:
        """True or False by its key; "false" is text, and would count as true."""
        found = self.config.get(key)
        check_choice(f"the configuration's {key}", found, (True, False, None))
        return otherwise if found is None else bool(found)

    @property
    def name(self) -> str:
        found = self.config.get("_name_or_path")
        return found[:80] if isinstance(found, str) and found else f"{self.kind} configuration"


def _gpt2(keys: _Keys) -> Architecture:
    return Architecture(
        name=keys.name,
        vocabulary=keys["vocab_size"],
        width=keys["n_embd"],
        depth=keys["n_layer"],
        heads=keys["n_head"],
        hidden=keys.count("n_inner"),
        is_tied=keys.flag("tie_word_embeddings", True),
        positions=keys["n_positions"],
        context=keys["n_positions"],
        has_query_bias=True,
        has_projection_bias=True,
        has_mlp_bias=True,
    )


def _llama(keys: _Keys, has_query_bias: bool = False) -> Architecture:
    has_bias = keys.flag("attention_bias")
    return Architecture(
        name=keys.name,
        vocabulary=keys["vocab_size"],
        width=keys["hidden_size"],
        depth=keys["num_hidden_layers"],
        heads=keys["num_attention_heads"],
        kv_heads=keys.count("num_key_value_heads"),
        head_width=keys.count("head_dim"),
        hidden=keys["intermediate_size"],
        is_gated=True,
        is_tied=keys.flag("tie_word_embeddings"),
        context=keys.count("max_position_embeddings"),
        norm="rms",
        has_query_bias=has_query_bias or has_bias,
        has_projection_bias=has_bias,
        has_mlp_bias=keys.flag("mlp_bias"),
    )


def _qwen2(keys: _Keys) -> Architecture:
    """Queries, keys and values have a bias, the rest has none."""
    return _llama(keys, has_query_bias=True)


def _qwen(keys: _Keys) -> Architecture:
    """Its intermediate_size counts both halves of the gated MLP together."""
    return Architecture(
        name=keys.name,
        vocabulary=keys["vocab_size"],
        width=keys["hidden_size"],
        depth=keys["num_hidden_layers"],
        heads=keys["num_attention_heads"],
        hidden=keys["intermediate_size"] // 2,
        is_gated=True,
        is_tied=keys.flag("tie_word_embeddings"),
        context=keys.count("seq_length"),
        norm="rms",
        has_query_bias=True,
    )


_READERS: dict[str, Callable[[_Keys], Architecture]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "qwen": _qwen,
    "qwen2": _qwen2,
}
