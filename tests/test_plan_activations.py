"""What a plan counts of a micro-batch is what torch keeps: Llama blocks and the course's GPT, to the byte."""

from dataclasses import replace

import pytest
import torch

from dpcourse.models import GptSmall
from dpcourse.planning.activations import Microbatch, activations_of, block_parts, loss_parts
from dpcourse.planning.architecture import Architecture
from dpcourse.planning.named import ARCHITECTURES
from dpcourse.planning.subject import architecture_of
from dpcourse.theory.activations import keeping_of
from dpcourse.theory.recipes import RECIPES
from tests.llama import Block

torch.set_num_threads(1)  # other tests run beside these

GATED = Architecture("gated", 64, 32, 2, 4, hidden=48, is_gated=True)
MODELS = [GATED, replace(GATED, kv_heads=2), replace(GATED, is_gated=False, heads=2, has_query_bias=True)]
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BATCH, LENGTH = 3, 16


def micro(recipe="fp32", attention="fused", **changes) -> Microbatch:
    return Microbatch(BATCH, LENGTH, keeping_of(RECIPES[recipe]), attention, **changes)


def kept_by_torch(model: Architecture, recipe: str, attention: str) -> int:
    """Bytes of the storages that one block's forward keeps for backward, its parameters aside."""
    block = Block(model, attention).to(DTYPES[recipe])
    inputs = torch.randn(BATCH, LENGTH, model.width, dtype=DTYPES[recipe], requires_grad=True)
    owned = {parameter.untyped_storage().data_ptr() for parameter in block.parameters()}
    kept = []

    def keep(tensor):
        kept.append(tensor)  # alive until all are counted, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        block(inputs)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    return sum(size for address, size in storages.items() if address not in owned)


@pytest.mark.parametrize("model", MODELS, ids=["gated", "grouped queries", "plain MLP"])
@pytest.mark.parametrize("recipe", DTYPES)
def test_a_block_keeps_what_is_counted(model, recipe):
    assert sum(block_parts(model, micro(recipe)).values()) == kept_by_torch(model, recipe, "fused")


@pytest.mark.parametrize("recipe", DTYPES)
def test_plain_attention_keeps_the_table_of_scores(recipe):
    parts = block_parts(GATED, micro(recipe, "plain"))
    assert sum(parts.values()) == kept_by_torch(GATED, recipe, "plain")
    assert parts["attention's scores"] == BATCH * 4 * LENGTH**2 * DTYPES[recipe].itemsize


def test_on_a_cpu_each_rms_norm_keeps_one_copy_more_than_the_fused_one_of_gpus_that_is_counted():
    model = replace(GATED, norm="rms")
    copies = 2 * BATCH * LENGTH * model.width * 4
    counted = sum(block_parts(model, micro()).values())
    assert kept_by_torch(model, "fp32", "fused") == counted + copies


@pytest.mark.parametrize("wrong", [{"is_gated": False}, {"kv_heads": 4}, {"hidden": 47}], ids=str)
def test_a_wrong_count_of_a_block_is_seen(wrong):
    right = replace(GATED, kv_heads=2)
    counted = sum(block_parts(replace(right, **wrong), micro()).values())
    assert counted != kept_by_torch(right, "fp32", "fused")


@pytest.mark.parametrize("recipe", ["fp32", "autocast", "mixed-adam", "bf16", "fsdp-mixed"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("model", [GptSmall(), GptSmall(500, 24, 96, 6, 3)], ids=["128", "96"])
def test_the_course_s_gpt_is_counted_as_its_own_formula_counts(recipe, checkpointing, model):
    own = model.activation_bytes(4, RECIPES[recipe], checkpointing == "full")
    keeping = keeping_of(RECIPES[recipe], checkpointing == "full")
    found = activations_of(
        architecture_of(model), Microbatch(4, model.context, keeping, "fused", checkpointing), False
    )
    assert found.kept == {part: size for part, size in own.items() if part != "loss"}
    assert found.loss["log-probabilities"] + keeping.loss_bytes == own["loss"]


def test_a_layer_of_16_bit_with_dropout_and_plain_attention_is_34sbh_and_5as2b_in_bytes():
    """Korthikanti et al.; the norms' statistics, two numbers a token and norm, are left out of the paper."""
    model, recipe = ARCHITECTURES["gpt2-xl"], RECIPES["bf16"]
    b, s, h, a = 2, 1024, model.width, model.heads
    parts = block_parts(model, Microbatch(b, s, keeping_of(recipe), "plain", has_dropout=True))
    assert sum(parts.values()) - parts["norms' statistics"] == 34 * s * b * h + 5 * a * s * s * b
    fp32 = block_parts(model, Microbatch(b, s, keeping_of(RECIPES["fp32"]), "plain", has_dropout=True))
    assert sum(fp32.values()) > 1.8 * sum(parts.values())  # bytes, not elements


def test_fused_attention_has_no_square():
    model = ARCHITECTURES["llama-2-7b"]
    keeping = keeping_of(RECIPES["bf16"])
    short, long = (
        sum(block_parts(model, Microbatch(1, length, keeping)).values()) for length in (1024, 4096)
    )
    assert long == 4 * short
    plain = sum(block_parts(model, Microbatch(1, 4096, keeping, "plain")).values())
    assert plain - long > 32 * 4096**2


def test_selective_recomputation_drops_the_scores_alone_and_full_leaves_a_block_s_input():
    model, keeping = ARCHITECTURES["gpt2"], keeping_of(RECIPES["bf16"])
    none, selective, full = (
        activations_of(model, Microbatch(2, 512, keeping, "plain", kind))
        for kind in ("none", "selective", "full")
    )
    scores = 2 * 12 * 512**2 * 2
    assert none.kept["blocks.0"] - selective.kept["blocks.0"] == selective.recomputed == scores
    assert full.kept["blocks.0"] == 2 * 512 * 768 * 2
    assert full.kept["blocks.0"] + full.recomputed == none.kept["blocks.0"]
    assert none.recomputed == 0


def test_logits_and_the_loss_can_be_the_largest_item():
    model, keeping = ARCHITECTURES["llama-3.2-1b"], keeping_of(RECIPES["bf16"], True)
    found = activations_of(model, Microbatch(8, 1024, keeping, "fused", "full"))
    assert found.loss_bytes > 5 * found.kept_bytes
    assert found.loss_bytes == (2 + 3 * 4) * 8 * 1024 * model.vocabulary
    assert sum(loss_parts(10, 2, 2).values()) == 80  # in bf16 throughout
