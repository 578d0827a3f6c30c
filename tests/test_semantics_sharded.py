"""Golden values where a sharded model meets tied weights, clipping and the optimizer."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dpcourse as dc
from dpcourse.models import GptSmall
from dpcourse.strategies.sanity import check_gradients_equal, check_optimizer, check_tied

torch.set_num_threads(1)  # other tests run beside these


class Tied(nn.Module):
    """An embedding whose table is the head's too: 8 x 4 numbers, and a layer of 20."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.middle(self.embedding(tokens)))


def said_by(check, *args) -> str:
    """What a check raises, or nothing."""
    try:
        check(*args)
        return ""
    except ValueError as error:
        return str(error)


# -- tied embedding and head --------------------------------------------------


def with_fsdp1(wraps_each: bool):
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    policy = ModuleWrapPolicy({nn.Embedding, nn.Linear}) if wraps_each else None
    return FullyShardedDataParallel(Tied(), auto_wrap_policy=policy, device_id=torch.device("cpu"))


def still_tied_with_fsdp1(wraps_each: bool) -> tuple[bool, int]:
    """Whether embedding and head are one table after a step, and how many numbers are held in all."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = with_fsdp1(wraps_each)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([1, 2, 3])).square().sum().backward()
    optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        num_params = sum(parameter.numel() for parameter in model.parameters())
        return torch.equal(model.embedding.weight, model.head.weight), num_params


def two_units_with_fsdp2() -> tuple[str, int]:
    """What is said of it, and how many numbers there are."""
    from torch.distributed.fsdp import fully_shard

    model = Tied()
    fully_shard(model.embedding)
    fully_shard(model.head)
    said = said_by(lambda: (fully_shard(model), model(torch.tensor([1, 2, 3]))))
    return said, sum(parameter.numel() for parameter in model.parameters())


def one_unit_with_fsdp2() -> tuple[bool, bool, int]:
    """Whether the table is one object and one set of values after a step, and how many numbers there are."""
    from torch.distributed.fsdp import fully_shard

    model = Tied()
    fully_shard([model.embedding, model.head])
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.embedding.weight.full_tensor().clone()
    model(torch.tensor([1, 2, 3])).square().sum().backward()
    optimizer.step()
    embedding, head = model.embedding.weight.full_tensor(), model.head.weight.full_tensor()
    assert not torch.equal(before, embedding)
    num_params = sum(parameter.numel() for parameter in model.parameters())
    return model.embedding.weight is model.head.weight, torch.equal(embedding, head), num_params


def test_a_tied_table_in_two_units_is_refused_by_fsdp2_and_untied_by_fsdp1_in_one_unit_it_stays_tied():
    def tied():
        return (
            two_units_with_fsdp2(),
            one_unit_with_fsdp2(),
            still_tied_with_fsdp1(wraps_each=True),
            still_tied_with_fsdp1(wraps_each=False),
        )

    for refused, fsdp2, fsdp1_two_units, fsdp1_one_unit in dc.launch(tied, everything=True):
        said, num_params = refused
        if torch.__version__ >= "2.13":
            assert "fully_shard([module_a, module_b])" in said
        elif torch.__version__ < "2.12":
            assert (said, num_params) == ("", 84)  # the table twice, and nothing is said
        assert fsdp2 == (True, True, 52)  # the table once: 8 x 4 + 20
        assert fsdp1_two_units[0] is False
        assert fsdp1_two_units[1] > 52  # the table twice, where FSDP1 gathers all
        assert fsdp1_one_unit[0] is True


def test_a_table_in_two_units_is_refused_with_the_call_that_puts_it_in_one():
    model = Tied()
    for units in ([model.embedding, model.head], [model.embedding], [model.middle, model.head]):
        said = said_by(check_tied, model, units)
        assert "embedding.weight and head.weight are one table in two units" in said
        assert "fully_shard([module.embedding, module.head])" in said
    for units in ([], [model.middle], [[model.embedding, model.head], model.middle]):
        assert said_by(check_tied, model, units) == ""


def test_units_inside_units_are_told_apart_and_untied_models_pass():
    gpt = GptSmall(width=8, heads=2, depth=2).build(0)
    assert said_by(check_tied, gpt, list(gpt.blocks)) == ""
    assert said_by(check_tied, gpt, [gpt.blocks[0], gpt.blocks[0].expand, gpt.head]) != ""
    assert said_by(check_tied, nn.Linear(2, 2), []) == ""


# -- clipping -------------------------------------------------------------------


def clipped() -> dict[str, tuple[float, float]]:
    """The norm that each way reports, and what it leaves of this rank's shard; shards have norms 3 and 4."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    mine, norm_of = 3.0 + dist.get_rank(), nn.utils.clip_grad_norm_
    found = {}
    model = fully_shard(nn.Linear(1, 2, bias=False))
    model(torch.ones(1, 1)).sum().backward()
    model.weight.grad.to_local().fill_(mine)
    norm = norm_of(model.parameters(), max_norm=1.0).full_tensor().item()
    found["fsdp2"] = (norm, model.weight.grad.to_local().item())
    for name in ("fsdp1", "fsdp1, the function for whole models"):
        model = FullyShardedDataParallel(nn.Linear(1, 2, bias=False), device_id=torch.device("cpu"))
        model(torch.ones(1, 1)).sum().backward()
        [flat] = model.parameters()
        flat.grad.fill_(mine)
        norm = model.clip_grad_norm_(1.0) if name == "fsdp1" else norm_of(model.parameters(), max_norm=1.0)
        found[name] = (float(norm), flat.grad.item())
    return found


def test_shards_of_norms_3_and_4_have_norm_5_on_both_ranks_and_are_scaled_alike():
    first, second = dc.launch(clipped, everything=True)
    for name in ("fsdp2", "fsdp1"):
        assert (first[name][0], second[name][0]) == (5.0, 5.0)
        assert (first[name][1], second[name][1]) == pytest.approx((3 / 5, 4 / 5), rel=1e-5)


def test_the_function_for_whole_models_gives_fsdp1_another_norm_on_each_rank():
    name = "fsdp1, the function for whole models"
    found = [rank[name] for rank in dc.launch(clipped, everything=True)]
    assert [norm for norm, _ in found] == [3.0, 4.0]
    assert [gradient for _, gradient in found] == pytest.approx([1.0, 1.0], rel=1e-5)


def test_shards_of_gradients_are_not_compared_between_ranks():
    def said():
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(nn.Linear(2, 2))
        model(torch.ones(1, 2)).sum().backward()
        return said_by(check_gradients_equal, model)

    for words in dc.launch(said, everything=True):
        assert "weight has a shard of a gradient on each rank, and shards differ by right" in words


# -- the optimizer built before sharding ----------------------------------------


def built_before_and_after(system: str) -> list[tuple[bool, str]]:
    """Whether a step trains, and what the check says, with the optimizer built before sharding and after."""
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    found = []
    for is_before in (True, False):
        model = nn.Linear(4, 4)
        if is_before:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if system == "fsdp2":
            model = fully_shard(model)
        else:
            options = {"use_orig_params": system == "fsdp1, original parameters"}
            model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)
        if not is_before:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        said = said_by(check_optimizer, optimizer, model)
        before = model(torch.ones(2, 4))
        before.sum().backward()
        optimizer.step()
        found.append((not torch.equal(before, model(torch.ones(2, 4))), said))
    return found


def test_an_optimizer_built_before_sharding_trains_nothing_and_the_check_says_why():
    def all_systems():
        systems = ("fsdp2", "fsdp1", "fsdp1, original parameters")
        return {system: built_before_and_after(system) for system in systems}

    for found in dc.launch(all_systems, everything=True):
        for system, num_params in (("fsdp2", 2), ("fsdp1", 1)):
            (trains_before, said), after = found[system]
            assert not trains_before
            assert f"SGD trains 0 of the module's {num_params} parameters" in said
            assert "keeps 2 others alive (80 B)" in said  # 4 x 4 + 4 numbers of 4 bytes
            assert "build the optimizer after fully_shard(...) or FSDP(...)" in said
            assert after == (True, "")
        assert found["fsdp1, original parameters"] == [(True, ""), (True, "")]


def test_an_optimizer_that_misses_a_layer_is_told_so_and_frozen_parameters_are_not_missed():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert said_by(check_optimizer, torch.optim.SGD(trained, lr=0.1), model) == ""
    said = said_by(check_optimizer, torch.optim.SGD(model[1].parameters(), lr=0.1), model)
    assert "trains 2 of the module's 3 parameters and was not given 0.bias" in said
    assert "requires_grad_(False)" in said
