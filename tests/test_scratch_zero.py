"""ZeRO from scratch: what each rank keeps to the element, and how its optimizers are used."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dpcourse as dc
from dpcourse.scratch.zero import Zero1Optimizer
from dpcourse.scratch.zero2 import Zero2Optimizer
from dpcourse.theory.slices import Cut, cuts_of, padded_size
from tests.systems import TINY_MB, Awkward, tokens_of, train_step

ROUNDING = 1e-6


def test_a_slice_is_cut_where_tensors_meet_and_padding_is_no_tensors():
    assert padded_size(11, 3) == 12
    assert [cuts_of([5, 1, 5], 3, place) for place in range(3)] == [
        [Cut(0, 0, 4)],
        [Cut(0, 0, 1), Cut(1, 1, 2), Cut(2, 2, 4)],
        [Cut(2, 0, 3)],
    ]
    assert cuts_of([2], 4, 3) == []


# -- ZeRO


def states_of(kind, options):
    """In a rank: how many numbers states, slices with padding, and full gradients after backward have."""
    torch.manual_seed(0)
    model = Awkward()
    optimizer = kind(model.parameters(), torch.optim.Adam, lr=0.01, **options)
    nn.functional.cross_entropy(model(tokens := tokens_of(0, False)[0]), tokens).backward()
    num_full = sum(p.grad.numel() for p in model.parameters() if p.grad is not None)
    optimizer.step()
    states = [2 * state["exp_avg"].numel() for state in optimizer.inner.state.values()]
    assert model.head.weight is model.embedding.weight
    storages = {p.untyped_storage()._cdata for p in model.parameters() if p.requires_grad}
    return sum(states), sum(row.slice.numel() for row in optimizer.rows), num_full, len(storages)


def each_states():
    return [states_of(Zero1Optimizer, {}), states_of(Zero2Optimizer, {"bucket_cap_mb": TINY_MB})]


def test_states_are_shared_out_to_the_element_and_stage_2_keeps_no_full_gradient():
    results = dc.launch(each_states, ranks=3)
    trained = [p for p in Awkward().parameters() if p.requires_grad]
    num_trained, num_unused = sum(p.numel() for p in trained), 7 * 3 + 3
    assert num_trained % 3  # so that there is padding
    first, second = ([result[stage] for result in results] for stage in range(2))
    for found, num_rows in ((first, 1), (second, 5)):
        assert sum(states for states, *_ in found) == 2 * num_trained
        assert len({num_sliced for _, num_sliced, *_ in found}) == 1  # ranks are alike
        assert 0 <= 3 * found[0][1] - num_trained <= 2 * num_rows
        assert all(num_storages == num_rows for *_, num_storages in found)
    assert {num_full for _, _, num_full, _ in first} == {num_trained - num_unused}
    assert {num_full for _, _, num_full, _ in second} == {0}


def use_as_an_optimizer(kind):
    """In a rank: what else a learner does with an optimizer. Each number is known beforehand."""
    rank = dist.get_rank()
    first, second, late = (nn.Parameter(torch.full((3,), value)) for value in (1.0, 2.0, 3.0))
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    groups = [{"params": [first, first, frozen]}, {"params": [second], "lr": 0.5}]
    optimizer = kind(groups, torch.optim.SGD, lr=0.1)
    optimizer.add_param_group({"params": late, "lr": 1.0})

    def closure():
        loss = (rank + 1.0) * (
            first.sum() + second.sum() + late.sum()
        )  # gradients 1 and 2: their mean is 1.5
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    found = [parameter[0].item() for parameter in (first, second, late)]
    optimizer.zero_grad()
    assert first.grad is None
    assert loss == (rank + 1) * 18
    optimizer.param_groups[0]["lr"] = 0.0  # as a scheduler does
    for _ in range(2):  # gradients add up: 2 in all
        (first.sum() + second.sum()).backward()
    optimizer.step()
    return found, [first[0].item(), second[0].item()], frozen.tolist()


@pytest.mark.parametrize("kind", [Zero1Optimizer, Zero2Optimizer])
def test_it_is_used_as_any_optimizer_groups_rates_closures_and_accumulation(kind):
    # Of three numbers on four ranks, the last rank's slice has none.
    for found, after, frozen in dc.launch(use_as_an_optimizer, kind, ranks=4):
        assert found == pytest.approx([1 - 0.1 * 2.5, 2 - 0.5 * 2.5, 3 - 1.0 * 2.5])
        assert after == pytest.approx([found[0], found[1] - 0.5 * 2])
        assert frozen == [1, 1]


def save_and_load(kind):
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    optimizer = kind(model.parameters(), torch.optim.Adam, lr=0.1)
    train_step(model, optimizer, torch.ones(2, 3), torch.tensor([0, 1]))
    other = copy.deepcopy(model)
    loaded = kind(other.parameters(), torch.optim.Adam, lr=0.1)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for trained, chosen in ((model, optimizer), (other, loaded)):
        train_step(trained, chosen, torch.ones(2, 3), torch.tensor([1, 2]))
    return (model.weight - other.weight).abs().max().item()


def test_each_rank_saves_and_loads_the_states_of_its_slices():
    assert dc.launch(save_and_load, Zero1Optimizer, ranks=2) == [0, 0]


def test_a_parameter_in_two_groups_is_refused():
    def twice():
        weight = nn.Parameter(torch.ones(3))
        with pytest.raises(ValueError, match="more than one parameter group"):
            Zero1Optimizer([{"params": [weight]}, {"params": [weight]}], torch.optim.SGD, lr=0.1)

    dc.launch(twice, ranks=2)
