"""Runs recorded elsewhere: they open and plot like one's own and say where they come from.

tests/recorded/ has one from CPU ranks, which says so and is never handed out. After a change of format, run
`python -m dpcourse.gpu_check --device cpu --quick --only strategies` and copy it anew from build/gpu-runs/.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from dpcourse import recorded
from dpcourse.run import MACHINE, Run
from tests.test_run import make_run

HERE, NAME = Path(__file__).parent / "recorded", "ddp_mlp_fp32_momentum_2_ranks_gloo"


def test_a_recorded_run_opens_plots_and_says_where_and_when_it_was_measured():
    assert recorded.names(HERE) == [NAME]
    run = recorded.load(NAME, HERE)
    assert run.title == "ddp: mlp on 2 ranks (recorded)"
    assert re.search(r"recorded on \d{4}-\d\d-\d\d: \d+ cores, no GPU used", run.facts())
    assert run.memory.is_exact()
    assert run.traffic.is_exact()
    for part in (run.memory, run.traffic, run.timeline):
        assert part.plot().png().startswith(b"\x89PNG")


def test_what_is_kept_says_where_and_one_that_does_not_is_refused(tmp_path):
    recorded.keep(make_run(ranks=2), tmp_path / "kept.json", "4 x a card, driver 1", "2026-01-02")
    assert "recorded on 2026-01-02: 4 x a card, driver 1" in recorded.load("kept", tmp_path).facts()
    make_run(ranks=2).save(tmp_path / "bare.json")
    with pytest.raises(ValueError, match=r"'bare' does not say its machine and recorded on; save it with"):
        recorded.load("bare", tmp_path)
    with pytest.raises(ValueError, match=r"no recorded run is called 'other': there is bare, kept"):
        recorded.load("other", tmp_path)


def test_without_any_it_says_how_they_are_made(tmp_path):
    with pytest.raises(ValueError, match=r"'ddp': none has been recorded on a GPU yet; .*gpu_check does"):
        recorded.load("ddp", tmp_path)


def test_what_was_not_measured_on_a_gpu_is_not_handed_out():
    run = recorded.load(NAME, HERE)
    with pytest.raises(ValueError, match=r"measured on 'cpu' \(ranks that trained\), and what is handed out"):
        recorded.check_from_gpu(run, NAME)
    on_gpu = replace(run, device="cuda")
    recorded.check_from_gpu(on_gpu, NAME)
    first = replace(on_gpu.records[0], environment={**on_gpu.environment, MACHINE: ""})
    with pytest.raises(ValueError, match="does not say its machine"):
        recorded.check_from_gpu(replace(on_gpu, records=(first, *on_gpu.records[1:])), NAME)
    for name in recorded.names():
        recorded.check_from_gpu(Run.load(recorded.FOLDER / f"{name}.json"), name)
