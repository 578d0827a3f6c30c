"""What strategies declare: the bytes that are taught, per phase and owner, and every collective of DDP."""

import subprocess
import sys

import pytest

from dpcourse import strategies
from dpcourse.layout import Layout, Parameter
from dpcourse.ledger import select, sums_by, total
from dpcourse.models import ConvNet, Mlp
from dpcourse.strategies import Setting, find, options_for, options_text
from dpcourse.theory import ring, tree
from dpcourse.theory.states import optimizer_bytes
from tests.test_layout import resnet18

ddp, single = find("ddp"), find("single")
MILLION = Layout((Parameter("layer.weight", (1000, 1000)),))


def setting(layout=MILLION, world_size=4, optimizer="adamw", **options):
    strategy = "single" if world_size == 1 and not options else "ddp"
    return Setting(layout, world_size, 16, optimizer, options_for(strategy, options))


def states_per_parameter(holdings, phase, rank=0):
    return total(select(holdings, phase=phase, rank=rank)) / MILLION.num_params


# -- memory -------------------------------------------------------------


def test_adam_in_fp32_holds_4_and_4_and_8_bytes_a_parameter():
    holdings = single.expected_memory(setting(world_size=1))
    assert sums_by(select(holdings, phase="backward"), "owner") == {
        "parameters": 4_000_000,
        "optimizer": 8_000_004,  # and the count of steps
        "gradients": 4_000_000,
    }


def test_ddp_holds_20_bytes_a_parameter_while_gradients_exist_and_16_after():
    holdings = ddp.expected_memory(setting())
    assert [round(states_per_parameter(holdings, phase, rank=3), 3) for phase in ("backward", "step")] == [
        20,
        16,
    ]


def test_gradients_in_the_buckets_hold_16_bytes_all_the_time():
    holdings = ddp.expected_memory(setting(gradient_as_bucket_view=True))
    assert [round(states_per_parameter(holdings, phase), 3) for phase in ("backward", "step")] == [16, 16]
    assert total(holdings, owner="buckets", phase="backward") == 0


@pytest.mark.parametrize(
    ("optimizer", "copies", "counter"), [("sgd", 0, 0), ("momentum", 1, 0), ("adam", 2, 4)]
)
def test_an_optimizer_holds_its_states_and_a_counter_a_tensor(optimizer, copies, counter):
    parameters = (Parameter("a", (3, 5)), Parameter("b", ()), Parameter("c", (7,), is_trainable=False))
    assert optimizer_bytes(parameters, optimizer) == copies * 4 * 16 + 2 * counter


def test_a_frozen_parameter_has_neither_gradient_nor_state_nor_bucket():
    layout = Layout((Parameter("a.weight", (10,), is_trainable=False), Parameter("b.weight", (5,))))
    sums = sums_by(select(ddp.expected_memory(setting(layout)), phase="backward", rank=0), "owner")
    assert sums == {"parameters": 60, "optimizer": 44, "gradients": 20, "buckets": 20}


def test_activations_exist_at_the_end_of_forward_alone():
    kept = Mlp().activation_bytes(4)
    case = Setting(Mlp().layout(), 4, 16, "adamw", options_for("ddp", {}), kept)
    sums = sums_by(select(ddp.expected_memory(case), owner="activations", rank=1), "phase")
    assert sums == {"forward": sum(kept.values())}


# -- traffic ------------------------------------------------------------


def test_resnet18_is_reduced_in_the_buckets_reported():
    steps = {
        step: [t.payload_bytes for t in ddp.expected_traffic(setting(resnet18()), step) if _is_reduced(t)]
        for step in (1, 2, 4)
    }
    assert steps == {
        1: [46_758_048],
        2: [2_052_000, 28_852_224, 15_853_824],
        4: [2_052_000, 28_852_224, 15_853_824],
    }


def _is_reduced(transfer):
    return transfer.collective == "all_reduce" and transfer.rank == 0


def test_a_step_of_ddp_sends_twice_n_minus_1_over_n_of_the_gradients():
    for num_ranks, factor in ((2, 1.0), (4, 1.5), (8, 1.75)):
        transfers = ddp.expected_traffic(setting(world_size=num_ranks))
        assert total(transfers, "sent_bytes", phase="backward", rank=1) == factor * 4_000_000


def test_a_group_of_one_has_no_traffic():
    assert ddp.expected_traffic(setting(world_size=1, bucket_cap_mb=1)) == []
    assert single.expected_traffic(setting(world_size=1)) == []


def test_forward_broadcasts_nothing_without_buffers_and_a_batch_norm_s_with():
    assert select(ddp.expected_traffic(setting()), phase="forward") == []
    found = select(ddp.expected_traffic(setting(ConvNet().layout())), phase="forward", rank=0)
    assert [(t.unit, t.payload_bytes) for t in found] == [
        ("buffers, float32", 2 * 4 * (32 + 64 + 128)),
        ("buffers, int64", 3 * 8),
    ]


def test_the_step_that_rebuilds_buckets_broadcasts_their_order():
    def units(step, **options):
        found = ddp.expected_traffic(setting(resnet18(), **options), step)
        return [(t.unit, t.payload_bytes) for t in select(found, phase="forward", rank=0)]

    order = [("bucket order", 4 * 63), ("bucket lengths", 4 * 3)]
    assert [units(step) for step in (1, 2, 3)] == [[], order, []]
    assert [units(step, static_graph=True) for step in (2, 3, 4)] == [[], order, []]
    assert [units(step, find_unused_parameters=True) for step in (1, 2, 3)] == [[], [], []]


def test_looking_for_unused_parameters_reduces_a_map_of_them():
    found = ddp.expected_traffic(setting(resnet18(), find_unused_parameters=True))
    last = select(found, phase="backward", rank=0)[-1]
    assert (last.unit, last.payload_bytes) == ("map of used parameters", 4 * 62)


def test_the_constructor_sends_rank_0_s_weights_frozen_ones_too():
    layout = Layout((Parameter("a.weight", (10, 2), is_trainable=False), Parameter("b.weight", (5, 1))))
    found = select(ddp.expected_traffic(setting(layout)), phase="init", rank=0)
    assert [(t.collective, t.payload_bytes) for t in found] == [
        ("all_gather", 8 * 4),
        ("broadcast", 8 * 4),  # two sizes and two strides of the one that is trained
        ("broadcast", 4 * 25),
    ]


@pytest.mark.parametrize("num_ranks", range(1, 20))
def test_a_tree_sends_one_copy_to_each_rank_but_the_root(num_ranks):
    sent = [tree.broadcast_sent_bytes(100, num_ranks, rank) for rank in range(num_ranks)]
    assert sum(sent) == 100 * (num_ranks - 1)
    assert max(sent) == sent[0] == 100 * (num_ranks - 1).bit_length()
    rotated = [
        tree.broadcast_sent_bytes(100, num_ranks, rank, root=num_ranks - 1) for rank in range(num_ranks)
    ]
    assert rotated[-1:] + rotated[:-1] == sent


def test_ring_factors_are_the_bus_factors():
    assert [ring.all_reduce_sent_bytes(1, n) for n in (1, 2, 4, 8)] == [0, 1.0, 1.5, 1.75]
    assert ring.all_gather_sent_bytes(1, 8) == ring.reduce_scatter_sent_bytes(1, 8) == 0.875


# -- names and refusals -------------------------------------------------


def test_an_unknown_strategy_is_refused_with_what_there_is_and_the_nearest():
    with pytest.raises(ValueError, match=r"'fdsp2'; there is single, .*fsdp2.*; did you mean 'fsdp2'\?"):
        strategies.find("fdsp2")


def test_an_unknown_option_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"ddp has no option 'bucket_cap'.*did you mean 'bucket_cap_mb'\?"):
        options_for("ddp", {"bucket_cap": 1})
    with pytest.raises(ValueError, match="single has no option 'bucket_cap_mb'; it has no options"):
        options_for("single", {"bucket_cap_mb": 1})


@pytest.mark.parametrize("name", ["ddp", "zero1", "scratch-ddp", "scratch-zero2"])
@pytest.mark.parametrize("cap", [0, -1, float("nan"), float("inf"), 2**43])
def test_a_cap_that_is_no_size_is_refused(cap, name):
    with pytest.raises(ValueError, match=f"bucket_cap_mb={cap}: give a number of MiB above 0 and below"):
        options_for(name, {"bucket_cap_mb": cap})


def test_an_option_of_a_wrong_type_is_refused():
    with pytest.raises(ValueError, match=r"ddp\.bucket_cap_mb='1': give a number"):
        options_for("ddp", {"bucket_cap_mb": "1"})
    with pytest.raises(ValueError, match=r"ddp\.static_graph=1: give True or False"):
        options_for("ddp", {"static_graph": 1})


def test_single_refuses_company():
    with pytest.raises(ValueError, match=r"single trains on one rank, and 2 were asked for; ask for ranks=1"):
        single.check(setting(world_size=2))


def test_options_read_as_text_where_they_differ_from_their_defaults():
    assert options_text(options_for("ddp", {})) == ""
    assert options_text(options_for("ddp", {"bucket_cap_mb": 1, "static_graph": True})) == (
        "bucket_cap_mb=1, static_graph=True"
    )


def test_expected_lists_need_no_torch_and_each_strategy_is_imported_when_asked_for():
    code = (
        "import sys\n"
        "from dpcourse.request import make_request\n"
        "assert 'dpcourse.strategies.ddp' not in sys.modules\n"
        "request = make_request('ddp', {}, model='gpt-small', ranks=4)\n"
        "assert request.expected_memory() and request.expected_traffic()\n"
        "assert 'dpcourse.strategies.single' not in sys.modules\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


@pytest.mark.parametrize(
    ("name", "options", "backend", "waits"),
    [
        ("ddp", {}, "gloo", False),
        ("ddp", {"hook": "ring"}, "gloo", True),
        ("ddp", {}, "ring", False),
        ("fsdp2", {}, "gloo", True),
        ("fsdp2", {}, "nccl", False),
        ("scratch-ddp", {}, "gloo", False),
        ("scratch-naive-ddp", {}, "gloo", True),
        ("scratch-fsdp", {}, "gloo", False),
        ("scratch-fsdp", {"prefetch": False}, "gloo", True),
    ],
)
def test_a_strategy_says_whether_its_computation_waits(name, options, backend, waits):
    assert find(name).is_blocking(options_for(name, options), backend) is waits
