"""Parameter counts, exactly: published ones, and those of modules that are built; wrong sums are caught."""

from dataclasses import replace

import pytest
import torch

from dpcourse.layout import layout_of
from dpcourse.models import GptSmall
from dpcourse.planning.architecture import Architecture
from dpcourse.planning.configuration import architecture_from
from dpcourse.planning.named import ARCHITECTURES
from dpcourse.planning.subject import architecture_of
from tests.llama import Llama

PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "qwen-7b": 7_721_324_544,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
}
# What a well-known calculator was asked: a gated MLP of 3 x the width, no grouped queries, untied.
ASKED = Architecture("asked", 152_064, 8192, 80, 64, mlp_factor=3, is_gated=True, is_tied=False, norm="rms")
SMALL = Architecture("small", 64, 32, 2, 4, 2, hidden=48, is_gated=True, is_tied=False, norm="rms")
AWKWARD = [
    SMALL,
    replace(SMALL, is_tied=True, has_query_bias=True),
    replace(SMALL, kv_heads=None, head_width=16, has_projection_bias=True, has_mlp_bias=True),
    replace(SMALL, is_gated=False, hidden=None, mlp_factor=2.5, norm="layer", positions=7),
]


def on_meta(build):
    with torch.device("meta"):
        return build()


@pytest.mark.parametrize("name", PUBLISHED)
def test_named_architectures_have_as_many_parameters_as_were_published(name):
    assert ARCHITECTURES[name].num_params == PUBLISHED[name]


def test_every_named_architecture_is_held_to_a_published_count():
    assert set(ARCHITECTURES) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_module_built_on_the_meta_device_has_the_same_shapes(name):
    model = ARCHITECTURES[name]
    built = layout_of(on_meta(lambda: Llama(model)))
    assert sorted((p.name, p.shape) for p in built.parameters) == sorted(
        (p.name, p.shape) for p in model.layout().parameters
    )
    assert built.shared == model.layout().shared


@pytest.mark.parametrize("model", AWKWARD, ids=range(len(AWKWARD)))
def test_awkward_shapes_are_those_of_a_module(model):
    built = layout_of(on_meta(lambda: Llama(model)))
    assert {p.name: p.shape for p in built.parameters} == {p.name: p.shape for p in model.layout().parameters}


@pytest.mark.parametrize("model", [GptSmall(), GptSmall(50257, 1024, 768, 12, 12)], ids=["gpt-small", "gpt2"])
def test_the_course_s_gpt_is_counted_alike_as_a_layout_an_architecture_and_a_module(model):
    built = layout_of(on_meta(lambda: model.build(0)))
    counts = {built.num_params, model.layout().num_params, architecture_of(model).num_params}
    assert len(counts) == 1
    if model.width == 768:
        assert counts == {PUBLISHED["gpt2"]}


def test_the_calculator_s_question_is_72_billion_and_two_mlp_matrices_would_be_56():
    assert round(ASKED.num_params / 1e9, 1) == 72.3
    assert round(replace(ASKED, is_gated=False).num_params / 1e9, 1) == 56.2


@pytest.mark.parametrize(
    "mistake",
    [{"is_gated": False}, {"is_tied": True}, {"kv_heads": 64}, {"has_query_bias": False}, {"norm": "layer"}],
    ids=str,
)
def test_each_way_to_miscount_misses_the_published_count(mistake):
    right = ARCHITECTURES["qwen2.5-72b"]
    assert replace(right, **mistake).num_params != PUBLISHED["qwen2.5-72b"]


def test_a_fraction_of_the_width_is_exact_where_it_gives_a_whole_number():
    assert replace(SMALL, width=48, hidden=None, mlp_factor=8 / 3).num_hidden == 128
    assert replace(SMALL, hidden=None, mlp_factor=3.609375, width=8192, heads=64).num_hidden == 29568


LLAMA = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "max_position_embeddings": 8192, "tie_word_embeddings": False, "quantization_config": None,
}  # fmt: skip
CONFIGURATIONS = [
    (LLAMA, "llama-3-8b"),
    ({**LLAMA, "model_type": None}, "llama-3-8b"),
    (
        {**LLAMA, "model_type": "mistral", "vocab_size": 32000, "sliding_window": 4096},
        "mistral-7b",
    ),
    (
        {
            "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 8192, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 29568,
        },
        "qwen2.5-72b",
    ),
    (
        {
            "model_type": "qwen", "vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 32,
            "num_attention_heads": 32, "intermediate_size": 22016, "seq_length": 8192,
        },
        "qwen-7b",
    ),
    ({"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}, "gpt2"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "name"), CONFIGURATIONS, ids=[name for _, name in CONFIGURATIONS])
def test_configurations_are_read_as_what_they_are(config, name):
    assert architecture_from(config).num_params == PUBLISHED[name]


def test_llama_s_attention_bias_is_on_the_projection_too_and_a_mlp_bias_on_three_matrices():
    plain, attention, mlp = (
        architecture_from(LLAMA | keys).num_params
        for keys in ({}, {"attention_bias": True}, {"mlp_bias": True})
    )
    assert attention - plain == 32 * (4096 + 2 * 1024 + 4096)
    assert mlp - plain == 32 * (2 * 14336 + 4096)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"num_local_experts": 8}, "num_local_experts=8: experts, which is not modelled"),
        ({"quantization_config": {"bits": 4}}, "quantised weights"),
        ({"is_encoder_decoder": True}, "an encoder beside the decoder"),
        ({"kv_lora_rank": 512}, "compressed keys and values"),
        ({"model_type": "llama3"}, "model_type='llama3' is not modelled; .*did you mean 'llama'"),
        ({"hidden_size": None}, "has no hidden_size, which a model of the type llama needs"),
        ({"num_attention_heads": 33}, "a width of 4096 does not divide over 33 heads"),
        ({"num_key_value_heads": 5}, "32 heads do not divide over 5 heads of keys and values"),
        ({"moe_num_experts": 16}, "moe_num_experts=16: experts, which is not modelled"),
        (
            {"quantization_config": {"x": "y" * 5000}},
            "quantization_config={'x': 'yy.{70,80}[.]{3}: quantised",
        ),
        ({"model_type": ["llama"]}, "model_type=.'llama'. is not modelled"),
        ({"vocab_size": -1}, "the configuration's vocab_size=-1: give a whole number from 1 on"),
        ({"hidden_size": "4096"}, "the configuration's hidden_size='4096': give a whole number from 1 on"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings='false': give True, False or None"),
        ({"num_hidden_layers": 10**6}, "a depth of 1,000,000 blocks is over the 10,000 that are listed"),
        ({"model_type": "qwen", "intermediate_size": "22016"}, "intermediate_size='22016': give a whole"),
        ({"intermediate_size": 2.5}, "intermediate_size=2.5: give a whole number"),
    ],
)
def test_what_is_not_modelled_is_refused_by_its_key(keys, says):
    with pytest.raises(ValueError, match=says):
        architecture_from(LLAMA | keys)


def test_a_factor_that_gives_no_whole_width_is_refused():
    with pytest.raises(
        ValueError, match=r"mlp_factor=2.6 of a width of 32 is 83.2, which is no whole number"
    ):
        replace(SMALL, hidden=None, mlp_factor=2.6)
    with pytest.raises(ValueError, match="norm='batch': give 'layer' or 'rms'"):
        replace(SMALL, norm="batch")
