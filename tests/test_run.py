"""A Run as data: saved and loaded exactly, shown the same in text and HTML, compared."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

import dpcourse as dc
from dpcourse import strategies
from dpcourse.comparison import compare
from dpcourse.ledger import KERNEL_COUNT, Holding, Moment, Span, Transfer, overlap, select, total
from dpcourse.models import Mlp
from dpcourse.parts.traffic import wire_verdict
from dpcourse.request import make_request
from dpcourse.run import RankRecord, Run
from dpcourse.theory.links import Link, num_rounds
from dpcourse.theory.schedule import step_seconds

SENT = {"init": 2_000.0, "forward": 0.0, "backward": 3_383_000.0, "step": 0.0}


def recorded(request, rank):
    """A rank that measured what was expected, and headers on the wire."""
    holdings = [h for h in request.expected_memory() if h.rank == rank]
    transfers = [replace(t, sent_bytes=None) for t in request.expected_traffic() if t.rank == rank]
    group = tuple(range(request.world_size))
    kernel = [Transfer(KERNEL_COUNT, "sockets", group, 0, sent, phase, rank) for phase, sent in SENT.items()]
    return RankRecord(
        rank=rank,
        losses=(2.3025 + rank, 2.25 + rank, 1 / 3),
        step_seconds=(0.5, 0.011, 0.013),
        parameter_norms={"layers.0.weight": 1.5},
        holdings=(*holdings, Holding("other", "without an owner", 4, "forward", rank)),
        transfers=(*transfers, *(kernel if request.world_size > 1 else ())),
        spans=(
            Span("computation", "backward", 1000.0 + rank, 1010.0 + rank, rank),
            Span("communication", "bucket 0", 1005.0 + rank, 1012.0 + rank, rank),
        ),
        environment={"torch": "2.13.0+cpu", "backend": "gloo", "device": "cpu", "python": "3.11.7"},
        moments=(Moment(0.25, "backward", {"parameters": 400, "other": 8}, rank),),
        process={"resident": 300_000_000, "in use by malloc": 140_000_000},
    )


def make_run(strategy="ddp", ranks=4, **options):
    request = make_request(strategy, options, ranks=ranks)
    layout = request.setting.layout
    return Run(
        strategy=strategy,
        options=vars(request.options),
        model="mlp",
        world_size=ranks,
        batch_size=16,
        recipe="fp32",
        optimizer="adamw",
        seed=0,
        device="cpu",
        num_params=layout.num_params,
        parameter_bytes=layout.parameter_bytes,
        records=tuple(recorded(request, rank) for rank in range(ranks)),
        expected_holdings=tuple(request.expected_memory()),
        expected_transfers=tuple(request.expected_traffic()),
    )


@pytest.fixture
def reference(monkeypatch):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")


@pytest.fixture(autouse=True)
def own_configuration(monkeypatch):
    monkeypatch.delenv("DPCOURSE_REFERENCE", raising=False)


def test_a_run_saved_and_loaded_is_the_same_run_and_says_that_it_is_recorded(tmp_path):
    run = make_run(bucket_cap_mb=0.5)
    run.save(tmp_path / "run.json")
    loaded = Run.load(tmp_path / "run.json")
    assert loaded == run
    assert loaded.records[3].losses == (5.3025, 5.25, 1 / 3)
    assert loaded.traffic.table() == replace(run, is_recorded=True).traffic.table()
    assert loaded.title == "ddp (bucket_cap_mb=0.5): mlp on 4 ranks (recorded)"
    assert run.title == "ddp (bucket_cap_mb=0.5): mlp on 4 ranks"
    assert json.loads((tmp_path / "run.json").read_text())["format"] == 4


@pytest.mark.parametrize("text", ["not json", "[1, 2]", '{"cells": []}', '{"format": 1}', "[" * 200_000])
def test_a_file_that_is_no_run_is_refused(tmp_path, text):
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(ValueError, match=r"other\.json is not a run that was saved with run\.save"):
        Run.load(tmp_path / "other.json")


@pytest.mark.parametrize("found", [9, "1", True, None])
def test_a_run_of_another_format_is_refused_with_the_way_out(tmp_path, found):
    path = written(tmp_path, saved(tmp_path) | {"format": found})
    with pytest.raises(ValueError, match=f"has format {found!r} and this version reads 4; run it again, or"):
        Run.load(path)


def saved(tmp_path, ranks=2):
    """A run's file as JSON."""
    make_run(ranks=ranks).save(tmp_path / "run.json")
    return json.loads((tmp_path / "run.json").read_text())


def written(tmp_path, plain):
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps(plain))
    return path


DAMAGES = {
    "a moment's owner that there is not": (
        lambda run: run["records"][0]["moments"][0]["num_bytes"].update(landlord=1),
        "a row says 'landlord'",
    ),
    "a moment of another rank": (
        lambda run: run["records"][0]["moments"][0].update(rank=1),
        "rows of another rank",
    ),
    "bytes of the process that are no number": (
        lambda run: run["records"][0]["process"].update(resident="much"),
        "give a whole number",
    ),
    "missing field": (lambda run: run.pop("seed"), "exactly the fields backend"),
    "extra field": (lambda run: run.update(more=1), "exactly the fields backend"),
    "missing field of a record": (lambda run: run["records"][0].pop("rank"), r"records\[0\]=.*exactly"),
    "wrong type": (lambda run: run.update(model=3), r"run\.model=3: give text"),
    "no records": (lambda run: run.update(records=[]), r"records of ranks \[\], and world_size is 2"),
    "one record of two": (lambda run: run["records"].pop(), r"records of ranks \[0\], and world_size is 2"),
    "world_size": (lambda run: run.update(world_size=99), r"ranks \[0, 1\], and world_size is 99"),
    "a rank twice": (lambda run: run["records"][1].update(rank=0), r"ranks \[0, 0\]"),
    "count": (lambda run: run.update(num_params=0), "num_params=0: give a whole number from 1 on"),
    "environment": (lambda run: run["records"][0].update(environment={}), "lacks backend, device, torch"),
    "losses": (lambda run: run["records"][0]["losses"].pop(), r"have \[2, 3\] losses and times"),
    "another's row": (lambda run: run["records"][0]["spans"][0].update(rank=1), "rows of another rank"),
    "phase": (lambda run: run["records"][0]["holdings"][0].update(phase="noon"), "a row says 'noon', and"),
    "strategy": (lambda run: run.update(strategy="dpp"), "no strategy is called 'dpp'"),
    "option": (lambda run: run.update(options={"cap": 1}), "ddp has no option 'cap'"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_refused_in_one_line(tmp_path, name):
    damage, message = DAMAGES[name]
    plain = saved(tmp_path)
    damage(plain)
    with pytest.raises(ValueError, match=rf"damaged\.json is a damaged run: .*{message}") as caught:
        Run.load(written(tmp_path, plain))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def places(plain):
    """Every (container, key) of a run's file; of a list, its first and last item."""
    keys = list(plain) if isinstance(plain, dict) else sorted({0, len(plain) - 1} if plain else ())
    for key in keys:
        yield plain, key
        if isinstance(plain[key], dict | list):
            yield from places(plain[key])


def test_whatever_is_put_in_whatever_place_a_run_that_loads_is_shown(tmp_path):
    plain = saved(tmp_path)
    outcomes = {"loaded": 0, "refused": 0}
    for container, key in list(places(plain)):
        before = container[key]
        for wrong in (None, "x", -1, {}):
            container[key] = wrong
            outcomes[_load_and_show(written(tmp_path, plain))] += 1
        container[key] = before
    assert outcomes["refused"] > outcomes["loaded"] > 0


def _load_and_show(path):
    try:
        run = Run.load(path)
    except ValueError:
        return "refused"
    for part in (run, run.memory, run.traffic, run.timeline, compare([run])):
        assert str(part)
    return "loaded"


def test_a_run_shows_what_ran_and_its_headlines(tmp_path):
    text = str(make_run())
    assert text.splitlines()[0] == "ddp: mlp on 4 ranks"
    assert "563,722 parameters, batch of 16, adamw, fp32, gloo on cpu, torch 2.13.0+cpu" in text
    assert _row(text, "while gradients exist") == ["20.00", "20.00", "exact"]
    assert _row(text, "after the step") == ["16.00", "16.00", "exact"]
    assert _row(text, "per parameter-byte") == ["1.50", "1.50", "+0.02%"]
    assert "12.00 ms" in text


def _row(text, label):
    line = next(line for line in text.splitlines() if label in line)
    return line.split(label)[1].split()


def test_html_says_what_the_text_says_and_escapes_it():
    run = replace(make_run(), model="<b>mine</b>")
    html = run._repr_html_()
    assert "&lt;b&gt;mine&lt;/b&gt;" in html
    assert "<b>" not in html
    for number in ("20.00", "16.00", "1.50", "exact", "563,722"):
        assert number in html
        assert number in str(run)


def test_the_reference_configuration_shows_stable_text_only(reference):
    run = make_run()
    for value in (run, run.memory, run.traffic, run.timeline, compare([run])):
        bundle = value._repr_mimebundle_()
        assert list(bundle) == ["text/plain"]
        for unstable in (" ms", " us", "torch", "3.38 MB  3.38"):
            assert unstable not in bundle["text/plain"]
    assert "formula and headers" in str(run)
    assert _row(str(run), "loss of the first step") == ["3.80", "-"]  # the mean over ranks
    assert _row(str(run), "loss of step 3") == ["0.33", "-"]


def test_bytes_that_are_off_are_said_and_not_exact():
    run = make_run()
    first = run.records[0]
    worse = tuple(
        replace(h, num_bytes=h.num_bytes + 1) if h.owner == "gradients" else h for h in first.holdings
    )
    wrong = replace(run, records=(replace(first, holdings=worse), *run.records[1:]))
    assert run.memory.is_exact()
    assert not wrong.memory.is_exact()
    assert "exact" not in _row(str(wrong), "while gradients exist")
    lost = replace(run, records=(replace(first, transfers=first.transfers[:-5]), *run.records[1:]))
    assert run.traffic.is_exact()
    assert not lost.traffic.is_exact()


def _changed(run, what, change):
    """The same run, with one list of rank 0's record changed."""
    first = run.records[0]
    wrong = replace(first, **{what: tuple(change(list(getattr(first, what))))})
    return replace(run, records=(wrong, *run.records[1:]))


@pytest.mark.parametrize(
    "change",
    [
        lambda first, *others: [replace(first, group=first.group[:2]), *others],
        lambda first, *others: [replace(first, unit="bucket 9"), *others],
        lambda first, *others: [replace(first, phase="step"), *others],
        lambda first, *others: [replace(first, collective="reduce"), *others],
        lambda first, *others: [replace(first, payload_bytes=first.payload_bytes + 4), *others],
        lambda first, *others: [*[replace(first, payload_bytes=first.payload_bytes // 2)] * 2, *others],
        lambda first, *others: [replace(first, payload_bytes=0), first, *others],
        lambda first, *others: others,
    ],
    ids=["group", "unit", "phase", "collective", "payload", "in two halves", "one more, empty", "one less"],
)
def test_each_call_of_a_run_has_to_be_the_expected_one(change):
    run = make_run()
    assert run.traffic.is_exact()
    assert not _changed(run, "transfers", lambda listed: change(*listed)).traffic.is_exact()


def test_where_a_strategy_does_not_list_each_call_its_sums_have_to_agree(monkeypatch):
    monkeypatch.setattr(type(strategies.find("ddp")), "lists_each_call", False)

    def halves(listed):
        return [*[replace(listed[0], payload_bytes=listed[0].payload_bytes // 2)] * 2, *listed[1:]]

    run = make_run()
    assert _changed(run, "transfers", halves).traffic.is_exact()
    assert not _changed(run, "transfers", lambda listed: listed[1:]).traffic.is_exact()


def test_states_where_none_were_expected_are_not_exact_and_what_has_no_owner_may_be():
    run = make_run("zero1")
    assert run.memory.is_exact()
    for owner, phase in (("gradients", "step"), ("gathered", "forward"), ("gradients", "forward")):
        stray = Holding(owner, "stray", 4, phase, 0)
        wrong = _changed(run, "holdings", lambda listed, stray=stray: [*listed, stray])
        assert not wrong.memory.is_exact(), (owner, phase)
    nobody = Holding("other", "without an owner", 4, "step", 0)
    assert _changed(run, "holdings", lambda listed: [*listed, nobody]).memory.is_exact()


def test_the_memory_table_names_every_part_of_other():
    text = str(make_run().memory)
    assert _row(text, "other: without an owner") == ["4", "B", "-", "0.000", "not", "predicted"]
    assert text.splitlines()[0] == "memory of rank 0 of 4: ddp: mlp on 4 ranks"


def test_the_timeline_starts_at_zero_and_tells_what_is_hidden():
    run = make_run(ranks=2)
    assert [span.start_seconds for span in run.timeline.measured] == [0, 5, 1, 6]
    assert run.timeline.expected == []
    assert run.timeline.overlap(rank=1).hidden_share == pytest.approx(5 / 7)
    rows = run.timeline.table().rows
    assert rows[1] == [1, 1, "10.00 s", "7.00 s", "5.00 s", "71 %"]


def test_a_run_alone_sends_nothing_and_that_is_exact():
    run = make_run("single", ranks=1)
    assert run.traffic.sent_bytes() == 0
    assert _row(str(run), "per parameter-byte") == ["0.00", "0.00", "exact"]
    assert "payload" not in str(run)


def test_without_kernel_counts_the_formula_stands_alone():
    run = make_run()
    bare = tuple(
        replace(r, transfers=tuple(t for t in r.transfers if t.collective != KERNEL_COUNT))
        for r in run.records
    )
    text = str(replace(run, records=bare))
    assert _row(text, "per parameter-byte") == ["-", "1.50", "no", "kernel", "count", "here"]


def test_a_kernel_count_is_judged_by_the_formula_and_its_headers(monkeypatch):
    assert [wire_verdict(*pair) for pair in ((1001, 1000), (0, 0), (5, 0))] == [
        "+0.10%",
        "exact",
        "expected none",
    ]
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    assert wire_verdict(1_004_000, 1_000_000) == "formula and headers"
    assert wire_verdict(1_200, 100) == "formula and headers"
    assert wire_verdict(1_020_160, 1_000_000) == "off"
    assert wire_verdict(1_020_160, 1_000_000, 21_000) == "formula and headers"  # 70 rounds of small messages
    assert wire_verdict(1_334_000, 1_000_000) == "off"  # what an emulated reduce-scatter sends more


def test_the_ideal_stands_beside_what_a_backend_sends_more_and_not_beside_what_a_root_sends_more():
    ideal = "each collective at its best"
    assert _row(str(make_run("fsdp2")), ideal) == ["-", "2.25"]
    for strategy in ("dp", "ddp", "zero1"):  # a star and a broadcast have a root, which sends for the others
        assert ideal not in str(make_run(strategy))


def test_compare_lays_runs_side_by_side():
    text = str(compare([make_run("single", ranks=1), make_run(), make_run(gradient_as_bucket_view=True)]))
    assert _row(text, "single: mlp on 1 rank")[:2] == ["16.00", "0.00"]
    assert _row(text, "ddp: mlp on 4 ranks")[:3] == ["20.00", "1.50", "2"]
    assert _row(text, "ddp (gradient_as_bucket_view=True): mlp on 4 ranks")[:2] == ["16.00", "1.50"]
    assert "<table" in compare([make_run()])._repr_html_()


def test_compare_refuses_no_run():
    with pytest.raises(ValueError, match=r"compare was given no run; give it a list"):
        compare([])


def test_a_run_needs_no_torch(tmp_path):
    make_run().save(tmp_path / "run.json")
    code = (
        "import sys, dpcourse as dc\n"
        f"run = dc.Run.load({str(tmp_path / 'run.json')!r})\n"
        "str(run), str(run.memory), str(run.traffic), str(run.timeline), str(dc.compare([run, run]))\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


def test_a_step_is_predicted_for_a_link_from_its_own_computation_and_list():
    run = make_run(ranks=2)
    fast, slow = (run.timeline.predicted(Link(0, rate), rank=1) for rate in (1e12, 1e3))
    assert {span.rank for span in fast} == {1}
    sent = run.traffic.expected_sent_bytes(1)
    assert total(select(slow, lane="communication")) == pytest.approx(sent / 1e3)
    assert step_seconds(slow) > step_seconds(fast)
    assert overlap(slow).computation_seconds == pytest.approx(run.timeline.overlap(1).computation_seconds)


@pytest.mark.parametrize("ranks", [2, 4])
def test_gloo_s_headers_are_288_bytes_for_each_round_of_a_collective(ranks, monkeypatch):
    run = dc.train("scratch-naive-ddp", model=Mlp(features=64, width=128, depth=16), ranks=ranks, steps=1)
    step = [t for t in select(run.traffic.expected, rank=0) if t.phase != "init"]
    rounds = sum(num_rounds(t.collective, ranks, "gloo") for t in step)
    headers = run.traffic.sent_bytes() - run.traffic.expected_sent_bytes()
    assert headers / rounds == pytest.approx(288, rel=0.03)
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    assert "off" not in str(run.traffic.table())


def test_a_title_says_that_forward_is_computed_again():
    run = make_run()
    assert "mlp with recomputation on" in replace(run, is_checkpointed=True).title
    assert "with recomputation" not in run.title
