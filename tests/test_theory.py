"""Formulas with figures that papers and the course's sources print: ZeRO's stages, recipes, ideals."""

import subprocess
import sys
from pathlib import Path

import pytest

from dpcourse import theory
from dpcourse.ideal import ideal_of
from dpcourse.layout import Layout, Parameter
from dpcourse.ledger import sums_by, total
from dpcourse.strategies import Setting, options_for
from dpcourse.theory.recipes import RECIPES
from dpcourse.theory.zero import STAGES, Ideal, whole_bytes

MIXED = RECIPES["mixed-adam"]


def held(ideal: Ideal, num_params: float, phase: str = "backward") -> int:
    return total(ideal.memory(num_params), phase=phase)


# -- memory -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "parameters", "gradients", "optimizer"),
    [
        ("fp32", 4, 4, 8),
        ("autocast", 4, 4, 8),
        ("mixed-adam", 2, 2, 12),
        ("bf16", 2, 2, 4),
        ("fsdp-mixed", 4, 4, 8),
    ],
)
def test_a_recipe_holds_the_bytes_that_its_name_stands_for(recipe, parameters, gradients, optimizer):
    held_whole = whole_bytes(RECIPES[recipe])
    assert held_whole == {"parameters": parameters, "gradients": gradients, "optimizer": optimizer}
    assert f"{parameters} + {gradients} + {optimizer}" in RECIPES[recipe].says


def test_figure_1_of_the_paper_on_zero():
    """7.5 billion parameters on 64 ranks, 2 + 2 + 12 bytes each."""
    figures = [held(Ideal(stage, 64, MIXED), 7.5e9) / 1e9 for stage in range(4)]
    assert [round(figure, 1) for figure in figures] == [120.0, 31.4, 16.6, 1.9]


def test_seven_billion_hold_112_gb_seventy_on_8_hosts_140_or_17_5():
    assert held(Ideal(0, 1, MIXED), 7e9) == 112e9
    assert held(Ideal(3, 64, MIXED, shard_ranks=8), 70e9) == 140e9
    assert held(Ideal(3, 64, MIXED), 70e9) == 17.5e9


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("num_ranks", [1, 2, 4, 64])
def test_each_stage_shares_out_one_owner_more(recipe, num_ranks):
    whole = whole_bytes(RECIPES[recipe])
    shared = {0: (), 1: ("optimizer",), 2: ("optimizer", "gradients"), 3: tuple(whole)}
    for stage, owners in shared.items():
        ideal = Ideal(stage, num_ranks, RECIPES[recipe])
        expected = {o: size / (num_ranks if o in owners else 1) for o, size in whole.items()}
        assert {owner: ideal.held_bytes(owner) for owner in whole} == expected


def test_gradients_are_held_while_they_exist_and_frozen_parameters_have_none():
    ideal = Ideal(2, 4, MIXED)
    assert held(ideal, 100, phase="step") == 200 + 300
    frozen = sums_by(ideal.memory(100, num_trained=40), "phase", "owner")
    assert frozen["backward", "gradients"] == 20
    assert frozen["step", "optimizer"] == 120
    assert ("step", "gradients") not in frozen


def test_masters_cost_even_an_optimizer_without_states_4_bytes():
    assert whole_bytes(MIXED, "sgd")["optimizer"] == 4
    assert whole_bytes(RECIPES["bf16"], "momentum")["optimizer"] == 2


# -- traffic --------------------------------------------------------------------


def sent(ideal: Ideal, num_params: float = 1e6) -> float:
    return total(ideal.traffic(num_params), "sent_bytes") / num_params


def test_stages_0_to_2_send_what_an_all_reduce_does_and_stage_3_half_as_much_again():
    for num_ranks in (2, 4, 8):
        share = (num_ranks - 1) / num_ranks
        found = [sent(Ideal(stage, num_ranks, RECIPES["fp32"])) for stage in range(4)]
        assert found == [4 * factor * share for factor in (2, 2, 2, 3)]
        assert sent(Ideal(3, num_ranks, RECIPES["fp32"], num_gathers=1)) == 8 * share


def test_in_bytes_the_order_turns_round():
    """FSDP with bf16 gathers and reductions sends 2 + 2 + 2 bytes a parameter, DDP under autocast 2 x 4."""
    share = 7 / 8
    assert sent(Ideal(3, 8, RECIPES["fsdp-mixed"])) == 6 * share
    assert sent(Ideal(3, 8, RECIPES["fsdp-mixed"], reduce_dtype="float32")) == 8 * share
    assert sent(Ideal(0, 8, RECIPES["autocast"])) == 8 * share


def test_hybrid_sharding_gathers_inside_a_replica_and_averages_shards_across():
    ideal = Ideal(3, 4, RECIPES["fp32"], shard_ranks=2)
    assert sent(ideal) == 4 * (3 / 2 + 1 / 2)  # measured-facts: 3/2 + 1/2 = 2.0 parameter-bytes
    assert [t.collective for t in ideal.traffic(10)] == [
        "all_gather", "all_gather", "reduce_scatter", "all_reduce",
    ]  # fmt: skip
    replicas = Ideal(3, 4, RECIPES["fp32"], shard_ranks=1)
    assert [t.collective for t in replicas.traffic(10)] == ["all_reduce"]
    assert sent(replicas) == sent(Ideal(0, 4, RECIPES["fp32"]))


def test_a_rank_alone_moves_nothing():
    for stage in STAGES.values():
        assert Ideal(stage, 1, MIXED).traffic(100) == []


# -- which ideal a strategy comes near to ---------------------------------------


@pytest.mark.parametrize(
    ("strategy", "options", "stage"),
    [
        ("single", {}, 0), ("ddp", {}, 0), ("scratch-flat-ddp", {}, 0), ("zero1", {}, 1),
        ("scratch-zero1", {}, 1), ("scratch-zero2", {}, 2), ("fsdp2", {}, 3), ("scratch-fsdp", {}, 3),
    ],
)  # fmt: skip
def test_every_strategy_but_the_star_has_a_stage(strategy, options, stage):
    found = ideal_of(strategy, setting_of(strategy, **options))
    assert (found.stage, found.num_shards, found.num_gathers) == (stage, 4, 2)


def test_options_decide_who_shares_and_how_often_is_gathered():
    hybrid = ideal_of("fsdp2", setting_of("fsdp2", mesh=(2, 2), reshard_after_forward=False))
    assert (hybrid.num_shards, hybrid.num_gathers) == (2, 1)
    assert ideal_of("dp", setting_of("dp")) is None


def setting_of(strategy, **options):
    layout = Layout((Parameter("layer.weight", (8, 8)),))
    return Setting(layout, 4, 16, options=options_for(strategy, options))


def test_theory_needs_no_torch():
    code = (
        "import sys\n"
        "from dpcourse.theory import activations, bus, links, schedule, zero, wire\n"
        "import dpcourse.ideal\n"
        "assert not {'torch', 'numpy', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_every_file_of_formulas_says_where_they_are_from():
    for path in Path(theory.__file__).parent.glob("[a-z]*.py"):
        text = path.read_text()
        assert "Source" in text or "et al." in text, f"{path.name} names no source"
