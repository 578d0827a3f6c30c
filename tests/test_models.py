"""The models: integers that agree with the modules they build, activations to the byte, fair shares."""

import subprocess
import sys
from dataclasses import fields

import pytest
import torch

from dpcourse import data
from dpcourse.layout import layout_of
from dpcourse.models import MODELS, ConvNet, GptSmall, Mlp, OwnModel
from dpcourse.modules import arrival_of, loss_of

torch.set_num_threads(1)  # other tests run beside these

CONFIGURATIONS = [
    Mlp(),
    Mlp(features=7, width=33, depth=1, classes=3),
    ConvNet(),
    ConvNet(image_size=8, channels=(5,), classes=4),
    GptSmall(),
    GptSmall(vocabulary=50, context=9, width=12, heads=3, depth=2),
]


@pytest.mark.parametrize("model", CONFIGURATIONS, ids=str)
def test_a_configuration_and_the_module_it_builds_have_one_layout(model):
    assert model.layout() == layout_of(model.build(seed=0))


@pytest.mark.parametrize("model", CONFIGURATIONS, ids=str)
@pytest.mark.parametrize("batch_size", [1, 6])
def test_activations_are_to_the_byte_what_autograd_keeps(model, batch_size):
    assert sum(model.activation_bytes(batch_size).values()) == bytes_kept(model, batch_size)


@pytest.mark.parametrize("model", CONFIGURATIONS, ids=str)
def test_gradients_arrive_in_the_reverse_of_the_definition(model):
    """Up to the order inside a norm, whose two vectors are alike."""
    inputs, targets = model.batch(4, 0)
    arrived = arrival_of(model.build(0), inputs, targets)
    sizes = {parameter.name: parameter.num_elements for parameter in model.layout().parameters}
    assert [sizes[name] for name in arrived] == [p.num_elements for p in model.layout().arriving]


@pytest.mark.parametrize("model", CONFIGURATIONS, ids=str)
def test_a_batch_has_the_bytes_it_says(model):
    assert sum(tensor.nbytes for tensor in model.batch(6, 0)) == model.batch_bytes(6)


def bytes_kept(model, batch_size):
    """Bytes of the storages that autograd saves, parameters, buffers and the batch left out."""
    module, (inputs, targets) = model.build(0), model.batch(batch_size, 0)
    kept, keep_alive = {}, []
    given = {
        t.untyped_storage().data_ptr() for t in (*module.parameters(), *module.buffers(), inputs, targets)
    }

    def pack(tensor):
        keep_alive.append(tensor)
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss_of(module(inputs), targets)
    return sum(num_bytes for pointer, num_bytes in kept.items() if pointer not in given)


def test_default_sizes_suit_a_laptop():
    sizes = {name: MODELS[name]().layout().num_params for name in ("mlp", "convnet", "gpt-small")}
    assert sizes == {"mlp": 563_722, "convnet": 94_762, "gpt-small": 1_226_752}


def test_two_models_are_as_large_as_their_names_say():
    billions = {name: MODELS[name]().layout().num_params / 1e9 for name in ("gpt-7b", "gpt-70b")}
    assert {name: round(size) for name, size in billions.items()} == {"gpt-7b": 7, "gpt-70b": 70}


def test_the_tied_table_of_gpt_counts_once():
    layout = GptSmall().layout()
    assert layout.shared == (("head.weight", "token_embedding.weight"),)
    assert "head.weight" not in [parameter.name for parameter in layout.parameters]
    module = GptSmall().build(0)
    assert module.head.weight is module.token_embedding.weight


@pytest.mark.parametrize("model", [Mlp(), ConvNet(), GptSmall()], ids=str)
def test_the_seed_alone_decides_the_weights_and_the_batches(model):
    torch.manual_seed(99)
    first, before = model.build(seed=1), torch.get_rng_state()
    second, other = model.build(seed=1), model.build(seed=2)
    assert torch.equal(before, torch.get_rng_state())
    weights = [torch.cat([p.flatten() for p in module.parameters()]) for module in (first, second, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert torch.equal(model.batch(4, seed=3)[0], model.batch(4, seed=3)[0])
    assert not torch.equal(model.batch(4, seed=3)[0], model.batch(4, seed=4)[0])


@pytest.mark.parametrize("model", [Mlp(), ConvNet(), GptSmall(depth=2)], ids=str)
def test_the_loss_falls_when_the_model_learns(model):
    module = model.build(0)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    losses = []
    for step in range(15):
        loss = loss_of(*_outputs_and_targets(model, module, data.batch_seed(0, step)))
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])


def _outputs_and_targets(model, module, seed):
    inputs, targets = model.batch(32, seed)
    return module(inputs), targets


def test_shares_are_equal_and_together_the_global_batch():
    batch = torch.arange(12)
    shares = [data.share_of(batch, rank, world_size=4) for rank in range(4)]
    assert [len(share) for share in shares] == [3, 3, 3, 3]
    assert torch.equal(torch.cat(shares), batch)


def test_every_step_has_a_batch_of_its_own():
    seeds = {data.batch_seed(seed, step) for seed in range(10) for step in range(100)}
    assert len(seeds) == 1000


def test_impossible_sizes_are_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"image_size is 12; choose a multiple of 8"):
        ConvNet(image_size=12)
    with pytest.raises(ValueError, match=r"width of 30 does not divide over 4 heads.*multiple of 4"):
        GptSmall(width=30)


@pytest.mark.parametrize("model", [Mlp, ConvNet, GptSmall])
@pytest.mark.parametrize("wrong", [-4, 0, 2.5, True, "8", None], ids=str)
def test_every_size_of_a_configuration_is_a_whole_number_from_1_on(model, wrong):
    for item in fields(model):
        for value in [wrong] if item.name != "channels" else [wrong, (4, wrong), ()]:
            with pytest.raises(ValueError, match=rf"{item.name}=.*: give a whole number from 1 on"):
                model(**{item.name: value})


def test_the_largest_seed_has_batches():
    assert len(Mlp().batch(2, data.batch_seed(2**63 - 1, 10))[0]) == 2


class Backwards(torch.nn.Module):
    """Defined in the order opposite to its use."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(3, 2)
        self.first = torch.nn.Linear(3, 3)

    def forward(self, inputs):
        return self.last(torch.relu(self.first(inputs)))


def test_a_model_of_ones_own_has_the_layout_and_the_order_of_its_module():
    model = OwnModel(
        Backwards, lambda batch_size, seed: (torch.ones(batch_size, 3), torch.ones(batch_size, 2))
    )
    layout = model.layout()
    assert layout.num_params == 8 + 12
    assert [p.name for p in layout.arriving] == ["last.bias", "last.weight", "first.bias", "first.weight"]
    assert model.activation_bytes(4) is None


def test_layouts_and_activations_need_no_torch():
    code = (
        "import sys\nfrom dpcourse.models import MODELS\n"
        "for model in MODELS.values():\n    model().layout(), model().activation_bytes(4)\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
