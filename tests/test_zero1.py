"""ZeroRedundancyOptimizer: equal to one rank alone, unequal shares to the byte, and its broadcasts."""

import pytest
import torch

import dpcourse as dc
from dpcourse.layout import Layout, Parameter
from dpcourse.ledger import select, sums_by, total
from dpcourse.models import Mlp
from dpcourse.strategies import Setting, find, options_for
from dpcourse.strategies.zero1 import shares
from dpcourse.theory.partition import largest_first
from tests.equivalence import (
    LOSS_TOLERANCE,
    SMALL,
    SMALL_GPT,
    WEIGHT_TOLERANCE,
    distance,
    train_on,
    trained,
    trained_alone,
)
from tests.test_train import Awkward, awkward_batch

zero1 = find("zero1")


def setting(layout, world_size, **options):
    return Setting(layout, world_size, 16, "adamw", options_for("zero1", options))


# -- the shares ---------------------------------------------------------


def test_the_largest_tensor_is_given_first_to_who_has_least():
    assert largest_first([3, 10, 4, 4, 1], 2) == [[1, 4], [2, 3, 0]]
    assert largest_first([2, 2, 2], 4) == [[0], [1], [2], []]
    assert largest_first([], 2) == [[], []]


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 8])
def test_every_tensor_is_given_once_and_no_rank_is_far_over_its_share(num_ranks):
    sizes = [parameter.num_elements for parameter in SMALL_GPT.layout().parameters]
    given = largest_first(sizes, num_ranks)
    assert sorted(place for places in given for place in places) == list(range(len(sizes)))
    loads = [sum(sizes[place] for place in places) for places in given]
    assert max(loads) - min(loads) <= max(sizes)


def test_one_large_table_leaves_the_others_almost_no_states():
    """16/N would be 2.0 bytes a parameter of states on each of 4 ranks; the table's rank keeps 6.6."""
    table = Parameter("table.weight", (9000, 100))
    layers = [Parameter(f"blocks.{index}.weight", (100, 100)) for index in range(20)]
    layout = Layout((table, *layers))
    held = select(zero1.expected_memory(setting(layout, 4)), owner="optimizer", phase="step")
    per_parameter = [total(select(held, rank=rank)) / layout.num_params for rank in range(4)]
    assert [round(value, 2) for value in per_parameter] == [6.55, 0.51, 0.51, 0.44]
    assert sum(per_parameter) == pytest.approx(8 + 4 * 21 / layout.num_params)


def test_a_step_sends_one_and_a_half_times_what_ddp_sends():
    layout = Layout(tuple(Parameter(f"{index}.weight", (1000, 250)) for index in range(8)))
    expected = zero1.expected_traffic(setting(layout, 4))
    sent = sums_by([t for t in expected if t.phase != "init"], "collective", field="sent_bytes")
    per_rank = {name: num_bytes / 4 / layout.parameter_bytes for name, num_bytes in sent.items()}
    assert per_rank == {"all_reduce": 1.5, "broadcast": 0.75}


def test_the_view_makes_one_broadcast_a_rank_of_many():
    layout = SMALL_GPT.layout()
    counts = [
        len(select(zero1.expected_traffic(setting(layout, 4, **options)), phase="step", rank=0))
        for options in ({}, {"parameters_as_bucket_view": True})
    ]
    assert counts == [len(layout.parameters), 4]


# -- on real ranks ------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "model", "batch", "options"),
    [
        (2, SMALL_GPT, None, {}),
        (3, SMALL, None, {"bucket_cap_mb": 0.001, "gradient_as_bucket_view": True}),
        (4, SMALL_GPT, None, {"parameters_as_bucket_view": True}),
        (4, Awkward, awkward_batch, {}),
    ],
    ids=["tied-2", "small-buckets-3", "bucket-view-4", "fewer-tensors-than-ranks-4"],
)
def test_zero1_equals_one_rank_alone_step_by_step(ranks, model, batch, options):
    together = train_on("zero1", ranks, model, batch, batch_size=12, **options)
    weights, losses = distance(together, trained_alone(model, batch, batch_size=12))
    assert weights < WEIGHT_TOLERANCE
    assert losses < LOSS_TOLERANCE


@pytest.mark.parametrize(
    ("ranks", "model", "recipe", "optimizer", "options"),
    [
        (2, SMALL_GPT, "fp32", "adamw", {}),
        (2, SMALL, "bf16", "adam", {"gradient_as_bucket_view": True, "parameters_as_bucket_view": True}),
        (4, SMALL_GPT, "autocast", "momentum", {"parameters_as_bucket_view": True}),
        (4, Awkward, "fp32", "sgd", {"parameters_as_bucket_view": True}),
        (4, Awkward, "fp32", "adamw", {"find_unused_parameters": True}),
        (1, SMALL, "fp32", "adamw", {}),
    ],
    ids=["fp32", "bf16-views", "autocast-view", "empty-bucket", "rank-without-states", "alone"],
)
def test_what_each_rank_holds_and_moves_is_exact(ranks, model, recipe, optimizer, options):
    batch = awkward_batch if model is Awkward else None
    run = dc.train(
        "zero1", model=model, batch=batch, ranks=ranks, batch_size=8, recipe=recipe, optimizer=optimizer,
        **options,
    )  # fmt: skip
    assert run.memory.is_exact(), str(run.memory)
    assert run.traffic.is_exact(), str(run.traffic)


def test_the_kernel_counts_what_each_root_sends():
    run = dc.train("zero1", model=Mlp(width=300, features=100, classes=50), ranks=4)
    assert run.memory.is_exact()
    assert run.traffic.is_exact()
    expected = [run.traffic.expected_sent_bytes(rank) for rank in range(4)]
    assert len(set(expected)) == 4  # a broadcast costs its root more, and shares are unequal
    assert sum(expected) / 4 / run.parameter_bytes == pytest.approx(2.25)
    if run.traffic.sent_bytes() is not None:
        assert [run.traffic.sent_bytes(rank) for rank in range(4)] == pytest.approx(expected, rel=0.01)


def test_unreceived_updates_are_caught():
    """The wrong answer: each rank steps its share, and nobody hands out the results."""

    def keep_for_itself(self):
        return None

    wrong = dc.launch(_trained_with, keep_for_itself, ranks=2, everything=True)
    assert distance(wrong, trained_alone())[0] > 100 * WEIGHT_TOLERANCE


def _trained_with(sync):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    from dpcourse.request import make_request
    from tests.equivalence import (
        SMALL,
    )

    ZeroRedundancyOptimizer._sync_params = sync
    return trained(make_request("zero1", {}, SMALL, ranks=2, batch_size=8, optimizer="momentum"))


def test_masters_are_refused_before_a_process_starts(no_process):
    with pytest.raises(ValueError, match=r"zero1 cannot train with the recipe 'mixed-adam'.*fp32, autocast"):
        dc.train("zero1", recipe="mixed-adam")


def test_shares_are_torch_s_own():
    names = dc.launch(_torch_s_shares, SMALL_GPT, ranks=3, everything=True)[0]
    assert names == [
        [parameter.name for parameter in share] for share in shares(setting(SMALL_GPT.layout(), 3))
    ]


def _torch_s_shares(model):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    named = dict(model.build(0).named_parameters())
    optimizer = ZeroRedundancyOptimizer(list(named.values()), optimizer_class=torch.optim.SGD, lr=0.1)
    name_of = {id(parameter): name for name, parameter in named.items()}
    return [
        [name_of[id(parameter)] for group in groups for parameter in group["params"]]
        for groups in optimizer._partition_parameters()
    ]
