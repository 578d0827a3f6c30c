"""`dc.expect`: the lists and the headline before anything runs."""

import subprocess
import sys

import pytest

from dpcourse.expectation import expect
from dpcourse.ledger import total
from dpcourse.models import Mlp
from dpcourse.request import make_request


def test_seven_billion_parameters_hold_20_bytes_each_and_send_seven_quarters_of_their_bytes():
    found = expect("ddp", num_params=7e9, ranks=8)
    assert [round(found.bytes_per_parameter(phase), 6) for phase in ("backward", "step")] == [20, 16]
    assert found.sent_bytes() == 1.75 * 28e9
    assert "140.00 GB" in str(found)
    assert "49.00 GB" in str(found)


def test_a_model_gives_the_exact_lists():
    found = expect("ddp", model=Mlp(width=64), ranks=4, gradient_as_bucket_view=True)
    layout = Mlp(width=64).layout()
    assert total(found.memory, phase="step", rank=3, owner="buckets") == layout.gradient_bytes
    assert found.sent_bytes(rank=2) == 1.5 * layout.gradient_bytes
    assert found.title.startswith("expected of ddp (gradient_as_bucket_view=True): mlp of ")


def test_single_needs_no_number_of_ranks():
    found = expect("single", model="mlp")
    assert round(found.bytes_per_parameter(), 2) == 16
    assert found.traffic == ()
    assert found.title.endswith("on 1 rank")
    assert "<table" in found.to_html()


@pytest.mark.parametrize("asked", [{}, {"model": "mlp", "num_params": 7e9}])
def test_a_model_or_a_number_must_be_given_and_not_both(asked):
    with pytest.raises(ValueError, match=r"a model or a number of parameters, and not both; say model="):
        expect("ddp", **asked)


def test_expect_needs_no_torch():
    code = (
        "import sys; from dpcourse.expectation import expect; str(expect('ddp', model='gpt-small'))\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_a_stage_of_zero_for_a_number_of_parameters_is_the_paper_s_arithmetic():
    found = expect("zero2", num_params=7e9, ranks=8, recipe="mixed-adam")
    assert found.bytes_per_parameter("backward") == 2 + (2 + 12) / 8
    assert found.bytes_per_parameter("step", rank=7) == 2 + 12 / 8
    assert found.sent_bytes() == 2 * 7 / 8 * 2 * 7e9
    assert (
        found.title
        == "expected of ideal zero2 (recipe=mixed-adam): any model of 7,000,000,000 parameters on 8 ranks"
    )
    assert found.distance() == "Nothing lies between these lists and the ideal."


def test_ddp_holds_a_copy_of_the_gradients_more_than_the_ideal_and_sends_as_much():
    found = expect("ddp", num_params=7e9, ranks=8)
    rows = {row[0]: row[3:] for row in found.table().rows}
    assert rows["holds buckets"] == ["4.00", "0.00"]
    assert rows["holds in all"] == ["20.00", "16.00"]
    assert rows["sends in a step"] == ["7.00", "7.00"]
    assert "+28.00 GB of buckets (a second copy of the gradients)" in found.distance()
    assert "sent (" not in found.distance()
    assert found.distance() in str(found)
    assert found.distance() in found.to_html()


@pytest.mark.parametrize(
    ("strategy", "options", "said"),
    [
        (
            "zero1",
            {},
            ["of optimizer (whole tensors are given away", "all-reduced where a reduce-scatter would do"],
        ),
        (
            "fsdp2",
            {},
            ["of parameters (tensors are cut between rows", "gloo carries out a reduce-scatter as an"],
        ),
        ("fsdp2", {"mesh": (1, 2)}, ["gloo carries out a reduce-scatter as an all-reduce"]),
        ("fsdp2", {"comms": "ring"}, ["of other (mesh, batch, loss)", "sent (padding"]),
        ("fsdp2", {"model": "gpt-small", "backend": "ring"}, ["-111.36 kB sent (what stays whole after"]),
        (
            "fsdp2",
            {"model": "gpt-small"},
            ["as an all-reduce; what stays whole after forward is gathered once)"],
        ),
        ("ddp", {"hook": "bf16"}, ["sent (gradients travel in a shorter format)"]),
        ("ddp", {"gradient_as_bucket_view": True}, ["of optimizer (a count of steps for each tensor)"]),
        ("dp", {}, ["dp is no stage of ZeRO"]),
    ],
)
def test_the_distance_to_the_ideal_is_explained(strategy, options, said):
    ranks = 2 if "mesh" in options else 4
    found = expect(strategy, **{"model": Mlp(width=101), "ranks": ranks} | options)
    assert all(words in found.distance() for words in said), found.distance()


def test_a_backend_that_reduces_and_scatters_at_its_best_brings_the_lists_to_the_ideal():
    on_gloo, on_ring, on_nccl = (
        expect("fsdp2", model="mlp", ranks=4, backend=backend) for backend in ("gloo", "ring", "nccl")
    )
    assert on_gloo.traffic == expect("fsdp2", model="mlp", ranks=4).traffic
    assert on_ring.sent_bytes() == pytest.approx(3 / 4 * on_gloo.sent_bytes(), rel=0.001)
    assert sum(t.sent_bytes for t in on_nccl.traffic if t.phase != "init") == 4 * on_ring.sent_bytes()
    assert "ring backend" in on_ring.title
    with pytest.raises(ValueError, match="no backend is called 'mpi'; there is gloo, nccl, ring"):
        expect("fsdp2", model="mlp", backend="mpi")


def test_unequal_shares_make_the_distance_differ_by_rank():
    found = expect("zero1", model="mlp", ranks=4)
    fullest, emptiest = found.distance(0), found.distance(3)
    assert "+969.71 kB of optimizer" in fullest
    assert "-1.07 MB of optimizer" in emptiest
    assert found.bytes_per_parameter("step", 0) > found.bytes_per_parameter("step", 3)


def test_checkpoints_and_recipes_change_what_is_kept_and_are_named():
    kept = [
        total(expect("ddp", model="gpt-small", **changes).memory, owner="activations", rank=0)
        for changes in ({}, {"checkpointing": True}, {"recipe": "autocast"})
    ]
    assert kept[1] < kept[0] / 9
    assert kept[2] != kept[0]
    assert "(recipe=autocast)" in expect("ddp", model="mlp", recipe="autocast").title


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"strategy": "zero2", "model": "mlp"},
            'zero2 is arithmetic for a number of parameters.*"scratch-zero2"',
        ),
        ({"strategy": "zero3", "model": "mlp"}, '"fsdp2", or give num_params in place of model'),
        ({"strategy": "zero2", "num_params": 0}, "give a number of parameters from 1 on, such as 7e9"),
        ({"strategy": "ddp", "num_params": float("inf")}, "give a number of parameters"),
        ({"strategy": "zero2", "num_params": 7e9, "mesh": 3}, "a number of parameters has no option 'mesh'"),
        ({"strategy": "zero2", "num_params": 7e9, "recipe": "fp8"}, "no recipe is called 'fp8'"),
        ({"strategy": "zero2", "num_params": 7e9, "optimizer": "lion"}, "no optimizer is called 'lion'"),
        ({"strategy": "zero2", "num_params": 7e9, "ranks": 0}, "ranks=0"),
    ],
)
def test_what_has_no_ideal_is_refused_with_what_to_ask_for(asked, said):
    with pytest.raises(ValueError, match=said):
        expect(**asked)


def test_activations_are_not_predicted_where_other_operations_run():
    request = make_request("ddp", {})
    assert request.setting.activation_bytes
    assert request.placed_on("cuda", "nccl").setting.activation_bytes is None


def test_lists_can_be_read_where_the_strategy_cannot_run():
    assert expect("deepspeed", model="mlp", stage=2).memory  # a package that may not be installed
    assert expect("fsdp1", model="mlp", cpu_offload=True).memory  # an option for GPUs


def test_what_is_expected_is_that_of_the_batch_which_training_would_take():
    expected = make_request("ddp", {}, "mlp", ranks=3).expected_memory()
    assert list(expect("ddp", model="mlp", ranks=3).memory) == expected
    with pytest.raises(ValueError, match="batch_size=0"):
        expect("ddp", model="mlp", batch_size=0)
