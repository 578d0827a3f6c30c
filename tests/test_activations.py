"""What autograd keeps, to the byte as the meter of memory reports it: recipes, checkpoints, awkward sizes."""

from contextlib import nullcontext

import pytest
import torch

import dpcourse as dc
from dpcourse import modules
from dpcourse.ledger import total
from dpcourse.measure.memory import MemoryMeter
from dpcourse.measure.storages import StorageLedger
from dpcourse.models import ConvNet, GptSmall, Mlp, OwnModel
from dpcourse.theory.recipes import RECIPES
from tests.test_models import CONFIGURATIONS

torch.set_num_threads(1)  # other tests run beside these

KNOWN = ["fp32", "autocast", "mixed-adam", "bf16"]


def measured(model, recipe, is_checkpointed: bool, batch_size: int) -> int:
    """Bytes of activations at the end of forward, on one rank alone."""
    dtype = getattr(torch, recipe.parameter_dtype)
    with StorageLedger() as ledger:
        module = model.build(0).to(dtype)
        if is_checkpointed:
            modules.checkpoint_blocks(module)
        inputs, targets = (tensor.clone() for tensor in model.batch(batch_size, 0))
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        losses: list[torch.Tensor] = []

        def owned():
            tensors = [*module.parameters(), *module.buffers(), inputs, targets, *losses]
            return (("other", "not kept for backward", tensor) for tensor in tensors)

        meter = MemoryMeter(ledger, owned, rank=0)
        meter.start_step()
        is_cast = recipe.autocast_dtype is not None
        with meter.keep_for_backward(), torch.autocast("cpu") if is_cast else nullcontext():
            losses.append(modules.loss_of(module(inputs), targets))
        meter.mark("forward")
    return total(meter.finish(), owner="activations", phase="forward")


@pytest.mark.parametrize("model", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("recipe", KNOWN)
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_what_is_expected_is_what_is_kept(model, recipe, is_checkpointed):
    for batch_size in (1, 6):
        kept = model.activation_bytes(batch_size, RECIPES[recipe], is_checkpointed)
        assert sum(kept.values()) == measured(model, RECIPES[recipe], is_checkpointed, batch_size)


def test_checkpoints_leave_a_deep_gpt_the_inputs_of_its_blocks():
    model, batch_size = GptSmall(), 8
    stream = 4 * batch_size * model.context * model.width
    kept = model.activation_bytes(batch_size, is_checkpointed=True)
    assert {kept[f"blocks.{index}"] for index in range(model.depth)} == {stream}
    whole = model.activation_bytes(batch_size)
    assert sum(kept.values()) < sum(whole.values()) / 9
    assert (kept["norm"], kept["loss"]) == (whole["norm"], whole["loss"])


def test_checkpoints_save_nothing_where_a_block_is_one_linear_layer():
    assert Mlp().activation_bytes(4, is_checkpointed=True) == Mlp().activation_bytes(4)


def trained_once(model, is_checkpointed: bool):
    """Gradients and buffers after one backward pass, and how often the first block's first layer computed."""
    module, calls = model.build(0), []
    first = next(layer for layer in module.modules() if list(layer.parameters(recurse=False)))
    plain = first.forward
    first.forward = lambda inputs: calls.append(1) or plain(inputs)
    if is_checkpointed:
        modules.checkpoint_blocks(module)
    modules.loss_of(module(model.batch(4, 0)[0]), model.batch(4, 0)[1]).backward()
    return [p.grad for p in module.parameters()], list(module.buffers()), len(calls)


@pytest.mark.parametrize("model", [Mlp(), ConvNet(), GptSmall(depth=2)], ids=str)
def test_checkpoints_change_neither_gradients_nor_running_statistics(model):
    gradients, buffers, _ = trained_once(model, False)
    again, buffers_again, _ = trained_once(model, True)
    assert all(torch.equal(one, other) for one, other in zip(gradients, again, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(buffers, buffers_again, strict=True))


def test_a_block_is_computed_twice_and_no_more_though_its_layers_have_numbers_too():
    assert [trained_once(ConvNet(), flag)[2] for flag in (False, True)] == [1, 2]


def test_autocast_may_keep_more_than_fp32_because_it_keeps_casts_of_weights():
    autocast, fp32 = (sum(Mlp().activation_bytes(4, RECIPES[name]).values()) for name in ("autocast", "fp32"))
    assert autocast > 40 * fp32
    assert Mlp().activation_bytes(4, RECIPES["autocast"])["casts"] > 0.9 * autocast


def test_bf16_parameters_halve_what_is_kept_but_attention_s_fp32_numbers():
    model = GptSmall()
    fp32, bf16 = (model.activation_bytes(4, RECIPES[name])["blocks.0"] for name in ("fp32", "bf16"))
    assert 2 * bf16 - fp32 == 4 * 4 * model.context * model.heads


def test_where_nobody_knows_nothing_is_predicted():
    assert ConvNet().activation_bytes(4, RECIPES["fsdp-mixed"]) is None
    assert OwnModel(None, None).activation_bytes(4) is None


@pytest.mark.parametrize("model", [Mlp(), GptSmall(depth=2)], ids=str)
def test_fsdp_that_gathers_bf16_keeps_what_bf16_parameters_do_and_the_cast_batch(model):
    run = dc.train("fsdp2", model=model, recipe="fsdp-mixed", steps=1, batch_size=8)
    lists = (run.memory.measured, run.memory.expected)
    kept, expected = (total(held, owner="activations", phase="forward", rank=1) for held in lists)
    batch_bytes = 4 * 2 * model.features if isinstance(model, Mlp) else 0  # tokens are whole numbers
    assert kept == expected == sum(model.activation_bytes(4, RECIPES["bf16"]).values()) + batch_bytes
