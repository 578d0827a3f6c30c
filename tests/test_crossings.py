"""Runs on hosts side by side: what their cards carried is what the formulas say, and a wrong count shows."""

from dataclasses import replace

import pytest

import dpcourse as dc
from dpcourse import experiments
from dpcourse.ledger import BETWEEN_HOSTS
from dpcourse.models import Mlp

MODEL = Mlp(features=16, width=32, depth=2, classes=16)  # layers that two ranks divide


@pytest.fixture(scope="module")
def runs():
    hosts = dc.Cluster(hosts=2, ranks_per_host=1, inter="200mbit", links="paced")
    full, hybrid = (dc.train("fsdp2", MODEL, cluster=hosts, steps=1, mesh=mesh) for mesh in (None, (2, 1)))
    return {"full": full, "hybrid": hybrid}


def test_each_card_carries_what_the_formulas_say(runs):
    found = experiments.crossings(runs)
    assert [row.expected_across for row in found.rows] == pytest.approx([3 / 2, 2 / 2])
    assert [row.across for row in found.rows] == pytest.approx([3 / 2, 2 / 2])
    assert [row.verdict for row in found.rows] == ["exact", "exact"]
    assert [row.inside for row in found.rows] == [0, 0]
    assert [row.held for row in found.rows] == pytest.approx([8, 16], rel=0.01)
    seconds = [row.cable_seconds for row in found.rows]
    assert seconds == pytest.approx([x * 4 * runs["full"].num_params / 25e6 for x in (1.5, 1.0)])
    assert "1.50 times as much" in found.words()
    assert found.row("hybrid") == found.rows[1]


def test_bytes_that_nobody_expected_are_seen(runs):
    more = tuple(
        replace(t, sent_bytes=2 * t.sent_bytes) if t.unit == BETWEEN_HOSTS else t
        for t in runs["full"].records[0].transfers
    )
    record = replace(runs["full"].records[0], transfers=more)
    wrong = replace(runs["full"], records=(record, *runs["full"].records[1:]))
    (row,) = experiments.crossings({"full": wrong}).rows
    assert row.across == pytest.approx(3.0)
    assert row.verdict == "+100.00%"


def test_the_picture_names_every_cable_and_the_reference_configuration_keeps_no_times(
    runs, tmp_path, monkeypatch
):
    found = experiments.crossings(runs)
    assert "full sends 1.50 across and 0.00 inside; hybrid sends 1.00 across" in str(found.plot())
    found.plot().save(tmp_path / "picture.png")
    assert "a step took" in found.to_html()
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    assert "a step took" not in str(found)
    assert "on the cable, at least" in str(found)


def test_runs_that_cannot_be_set_side_by_side_are_refused(runs):
    alone = dc.train("ddp", MODEL, ranks=2, steps=1, device="cpu")
    with pytest.raises(ValueError, match="alone ran on no emulated hosts or on one"):
        experiments.crossings({"alone": alone})
    slower = replace(runs["full"], links=replace(runs["full"].links, inter_bytes_per_second=1e6))
    with pytest.raises(ValueError, match=r"the same hosts were asked for, and there are full: .*; slower: "):
        experiments.crossings({"full": runs["full"], "slower": slower})
    with pytest.raises(ValueError, match="and there are none; give one cluster"):
        experiments.crossings({})
