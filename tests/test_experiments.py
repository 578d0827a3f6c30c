"""Experiments on links: bytes and counts are the formulas', a fit finds what was there, figures show rows."""

import re
from dataclasses import replace

import pytest

import dpcourse as dc
from dpcourse import experiments
from dpcourse.experiments.all_reduce import SIZES, AllReduceSweep, Timed, fit_link, num_in_a_row
from dpcourse.experiments.base import slowest
from dpcourse.experiments.buckets import CAPS_MB, Backward, BucketSweep, predicted_seconds, slow_hosts
from dpcourse.experiments.hybrid import DDP, FULL, HYBRID, HybridRuns, OnHosts
from dpcourse.experiments.star_or_ring import expected_bytes, expected_seconds
from dpcourse.experiments.steps import Step
from dpcourse.experiments.timing import seconds_of
from dpcourse.layout import ddp_buckets
from dpcourse.models import Mlp
from dpcourse.parts.traffic import HEADER_BYTES, HEADER_SHARE
from dpcourse.ranks.links import Links
from dpcourse.request import make_request
from dpcourse.strategies import STEADY_STEP
from dpcourse.theory.links import Link, ring_seconds

pytestmark = pytest.mark.long

LINK = Link(1e-3, 12.5e6)
SMALL = Mlp(features=16, width=32, depth=4)
PACED = Links("paced", 2, 1, 12.5e6, None)


def times_of(link: Link, num_ranks: int = 2, sizes=SIZES) -> dict[int, float]:
    return {size: ring_seconds(size, num_ranks, link) for size in sizes}


# -- the fit


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize("link", [LINK, Link(0.0, 1e9), Link(5e-5, 125e6)])
def test_a_fit_finds_the_link_that_the_times_are_those_of(link, num_ranks):
    found = fit_link(times_of(link, num_ranks), num_ranks)
    assert found.latency_seconds == pytest.approx(link.latency_seconds, rel=1e-6, abs=1e-12)
    assert found.bytes_per_second == pytest.approx(link.bytes_per_second, rel=1e-6)


def test_one_spoiled_time_moves_nothing():
    for spoiled in (SIZES[0], SIZES[3], SIZES[-1]):
        times = times_of(LINK)
        times[spoiled] *= 5
        found = fit_link(times, 2)
        assert found.latency_seconds == pytest.approx(LINK.latency_seconds, rel=1e-6)
        assert found.bytes_per_second == pytest.approx(LINK.bytes_per_second, rel=1e-6)


def test_times_that_would_need_a_latency_below_0_get_one_of_0():
    times = {size: seconds - 0.9 * min(times_of(LINK).values()) for size, seconds in times_of(LINK).items()}
    earlier = {size: ring_seconds(size, 2, Link(0, 1e6)) ** 1.1 for size in SIZES}
    assert fit_link(times, 2).latency_seconds >= 0
    assert fit_link(earlier, 2).latency_seconds == 0


def test_times_that_do_not_grow_are_refused():
    with pytest.raises(ValueError, match=r"16\.78 MB took no longer than one of 1\.02 kB.*give larger sizes"):
        fit_link(dict.fromkeys(SIZES, 1e-3), 2)


def sweep_with(fit: Link) -> AllReduceSweep:
    times = tuple(Timed(size, (seconds, seconds, 9.0)) for size, seconds in times_of(LINK).items())
    return AllReduceSweep(PACED, 2, times, fit)


def test_a_wrong_fit_is_noticed():
    right, slow, late = map(sweep_with, (LINK, Link(1e-3, 6e6), Link(2e-3, 12.5e6)))
    assert max(map(abs, right.errors())) < 1e-9
    assert right.bandwidth_error == pytest.approx(0)
    assert slow.bandwidth_error < -0.5
    assert max(slow.errors()) > 1
    assert max(late.errors()) == pytest.approx(1, rel=0.05)
    assert "off by 0% at most" in right.words()
    assert "off by 108% at most" in slow.words()


def test_bus_bandwidth_grows_with_the_payload_up_to_the_link_s():
    latency, rate = LINK.latency_seconds, 8 * LINK.bytes_per_second
    table = sweep_with(LINK).table()
    column = table.columns.index("bus bandwidth")
    found = [_bits_per_second(row[column]) for row in table.rows]
    assert found == sorted(found)
    assert found[-1] == pytest.approx(rate, rel=0.02)
    assert found[0] == pytest.approx(8 * SIZES[0] / (2 * latency + 8 * SIZES[0] / rate), rel=0.01)


def _bits_per_second(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"Gbit/s": 1e9, "Mbit/s": 1e6, "kbit/s": 1e3}[unit]


def test_small_all_reduces_are_timed_in_a_row_and_large_ones_alone():
    assert [num_in_a_row(size) for size in (1024, 65536, 524288, 16 << 20)] == [32, 8, 1, 1]


def test_of_each_repeat_the_slowest_rank_counts():
    assert slowest([[1.0, 5.0], [2.0, 3.0]]) == (2.0, 5.0)


# -- the model of the buckets


def predicted(link: Link, compute_seconds: float, caps: list[float]) -> list[float]:
    model = Mlp(features=64, width=64, depth=64)
    return [
        predicted_seconds(make_request("ddp", {"bucket_cap_mb": cap}, model), compute_seconds, link)
        for cap in caps
    ]


def test_the_model_s_curve_is_a_u_where_a_link_has_a_latency_and_a_bandwidth():
    caps = list(CAPS_MB)
    seconds = predicted(LINK, 0.08, caps)
    assert 0 < seconds.index(min(seconds)) < len(caps) - 1
    on_no_latency = predicted(Link(0.0, 12.5e6), 0.08, caps)
    assert on_no_latency == sorted(on_no_latency)
    on_no_limit = predicted(Link(1e-3, 1e15), 0.0, caps)
    assert on_no_limit == sorted(on_no_limit, reverse=True)


def bucket_rows(measured: list[float], model: list[float]) -> BucketSweep:
    rows = tuple(
        Backward(2.0**index, 8 >> index, (seconds, seconds), own)
        for index, (seconds, own) in enumerate(zip(measured, model, strict=True))
    )
    curve = tuple((row.bucket_cap_mb, row.predicted_seconds) for row in rows)
    return BucketSweep(sweep_with(LINK), 10**6, "1ms", 0.1, rows, curve)


def test_a_bucket_sweep_says_which_is_best_and_what_the_model_s_choice_costs():
    found = bucket_rows([0.4, 0.2, 0.25, 0.5], [0.4, 0.3, 0.2, 0.5])
    assert (found.measured_best.bucket_cap_mb, found.predicted_best.bucket_cap_mb) == (2.0, 4.0)
    assert found.lost_by_prediction == pytest.approx(0.25)
    assert found.has_minimum_inside
    assert not bucket_rows([0.1, 0.2, 0.25], [0.1, 0.2, 0.3]).has_minimum_inside
    assert not bucket_rows([0.3, 0.2, 0.1], [0.1, 0.2, 0.3]).has_minimum_inside
    assert "Best: 2 MiB; by the model 4 MiB, with which backward takes +25%" in found.words()
    assert max(map(abs, found.errors())) == pytest.approx(0.5)


# -- star and ring


def test_the_star_s_main_rank_sends_a_payload_to_each_other_and_the_ring_s_its_share():
    assert [expected_bytes("star", 800, n) for n in (2, 3, 8)] == [800, 1600, 5600]
    assert [expected_bytes("ring", 800, n) for n in (2, 4, 8)] == [800, 1200, 1400]
    two, eight = (replace(PACED, hosts=hosts) for hosts in (2, 8))
    star, ring = ([expected_seconds(name, 10**6, on) for on in (two, eight)] for name in ("star", "ring"))
    assert star[1] / star[0] == pytest.approx(7)
    assert ring[1] / ring[0] == pytest.approx(7 / 8 * 2)


# -- real runs, small


@pytest.fixture(scope="module")
def two_hosts():
    return dc.Cluster(hosts=2, ranks_per_host=1, inter="400mbit")


@pytest.fixture(scope="module")
def sweep(two_hosts):
    return experiments.all_reduce_sweep(two_hosts, sizes=(1024, 65536, 1 << 20), repeats=2)


def test_a_sweep_times_each_size_on_the_link_that_was_asked_for(sweep, two_hosts):
    assert [timed.payload_bytes for timed in sweep.times] == [1024, 65536, 1 << 20]
    assert {len(timed.seconds) for timed in sweep.times} == {2}
    assert sweep.times[-1].median_seconds > 0.9 * ring_seconds(1 << 20, 2, two_hosts.network.inter)
    assert sweep.links == two_hosts.network
    assert f"({two_hosts.network.kind} links)" in str(sweep)


@pytest.fixture(scope="module")
def bucket_run(two_hosts):
    return experiments.bucket_sweep(two_hosts, (1 / 512, 1 / 128, 1), SMALL, "500us", repeats=2)


def test_a_bucket_sweep_runs_the_buckets_that_ddp_would_make(bucket_run):
    counts = [row.num_buckets for row in bucket_run.times]
    caps = [row.bucket_cap_mb for row in bucket_run.times]
    assert counts == [len(ddp_buckets(SMALL.layout(), STEADY_STEP, cap)) for cap in caps] == [4, 2, 1]
    assert {len(row.seconds) for row in bucket_run.times} == {2}
    assert bucket_run.compute_seconds >= 2 * 5 * 500e-6
    assert min(row.predicted_seconds for row in bucket_run.times) >= bucket_run.compute_seconds
    assert len(bucket_run.curve) == 2 * 4 + 1


@pytest.fixture(scope="module")
def crowds():
    return experiments.star_or_ring(hosts=(2, 3), payload_bytes=120_000, inter="400mbit", repeats=1)


def test_the_kernel_counts_what_star_and_ring_should_send(crowds):
    assert [(row.algorithm, row.num_ranks) for row in crowds.rows] == [
        ("star", 2),
        ("star", 3),
        ("ring", 2),
        ("ring", 3),
    ]
    for row in crowds.rows:
        headers = max(HEADER_SHARE * row.expected_bytes, HEADER_BYTES)
        assert row.expected_bytes <= row.sent_bytes <= row.expected_bytes + headers
    assert crowds.rows[1].sent_bytes > 1.4 * crowds.rows[3].sent_bytes
    assert set(crowds.growth) == {"star", "ring"}


def test_a_ring_that_grows_like_a_star_is_not_praised(crowds):
    def timed(seconds):
        return replace(
            crowds,
            rows=tuple(replace(row, seconds=(s,)) for row, s in zip(crowds.rows, seconds, strict=True)),
        )

    assert (
        timed([1, 2, 1, 1.3])
        .words()
        .endswith("the star's main card carries all, each of the ring's its share.")
    )
    assert timed([1, 2, 1, 2.1]).words().endswith("the ranks wait for cores of this machine.")


@pytest.fixture(scope="module")
def ways(two_hosts):
    return experiments.overlap(two_hosts, SMALL, "2ms", bucket_cap_mb=1 / 512, steps=2)


def test_ways_to_average_make_the_collectives_that_name_them_and_hide_what_they_should(ways):
    num_params = 2 * (SMALL.depth + 1)
    assert [step.num_collectives for step in ways.steps] == [num_params + 1, 1, 4, 8, 4]
    hidden = {step.name: step.hidden_share for step in ways.steps}
    assert max(hidden[name] for name in ("naive", "flat", "buckets, waiting")) < 0.05
    assert min(hidden[name] for name in ("buckets, overlapped", "torch's DDP")) > 0.05
    for step in ways.steps:
        assert ways.over_bound(step) == step.seconds / ways.bound_seconds - 1
        assert step.compute_seconds >= 3 * (SMALL.depth + 1) * 2e-3


def test_what_is_expected_to_cross_crosses_exactly_and_the_hybrid_s_is_least():
    found = experiments.hybrid([(2, 2)], inter="400mbit", links="paced", model=SMALL, steps=1)
    [shape] = found.shapes
    for step in shape.steps:
        assert step.between_hosts_bytes == step.expected_between_hosts_bytes
    ddp, full, hybrid = (shape.step(name).between_hosts_bytes for name in (DDP, FULL, HYBRID))
    assert hybrid < ddp < full
    full, hybrid = (shape.step(name).least_communication_seconds for name in (FULL, HYBRID))
    assert hybrid < full
    assert found.table().number(2, "across") == pytest.approx(1.0, abs=0.02)


@pytest.fixture(scope="module")
def prefetched(two_hosts):
    return experiments.prefetch(two_hosts, SMALL, "1ms", steps=2)


def test_prefetch_moves_the_same_bytes_and_should_take_less_time(prefetched):
    on, off = prefetched.on, prefetched.off
    assert on.num_collectives == off.num_collectives
    assert on.expected_between_hosts_bytes == off.expected_between_hosts_bytes
    assert prefetched.gain == off.seconds / on.seconds


# -- how they show themselves


@pytest.fixture(scope="module")
def hybrid_rows():
    step = Step("", 3, 0.2, 0.1, 0.05, 0.1, 0.08, 0.0, 15e6, 15e6, 10**7)
    steps = tuple(replace(step, name=name) for name in (DDP, FULL, HYBRID))
    nobody_knows = {"between_hosts_bytes": None, "expected_between_hosts_bytes": None}
    uncounted = tuple(replace(step, **nobody_knows) for step in steps)
    return HybridRuns((OnHosts(PACED, steps), OnHosts(PACED, uncounted)))


def test_an_order_that_the_model_does_not_have_is_said(hybrid_rows):
    assert "the hybrid's gathers stay inside the hosts" in hybrid_rows.words()
    ddp, full, hybrid = hybrid_rows.shapes[0].steps
    turned = OnHosts(PACED, (ddp, replace(full, predicted_seconds=2 * full.predicted_seconds), hybrid))
    assert f"on {turned.name} in the other order than by the model" in HybridRuns((turned,)).words()


def test_paced_hosts_of_the_bucket_sweep_have_a_latency_far_above_their_ranks_own_work():
    found = slow_hosts("paced").network
    assert (found.kind, found.inter.latency_seconds) == ("paced", 1e-3)


@pytest.fixture(params=["sweep", "bucket_run", "crowds", "ways", "prefetched", "hybrid_rows"])
def result(request):
    return request.getfixturevalue(request.param)


def test_each_result_shows_a_table_a_figure_with_words_and_what_they_say(result):
    figure = result.plot()
    assert figure.png().startswith(b"\x89PNG")
    assert result.words() in figure.alt
    assert re.search(r"\((kernel|paced) links\)", figure.title)
    drawn = figure.draw()
    assert any(f"{kind} links" in _labels(drawn) for kind in ("kernel", "paced"))
    html = result.to_html()
    assert "<table" in html
    assert "<img" in html
    assert result.words().split(" ")[0] in str(result)


def _labels(drawn) -> str:
    return " ".join(ax.get_xlabel() + ax.get_ylabel() for ax in drawn.axes)


def test_a_figure_of_paced_computation_says_so(ways, prefetched, bucket_run):
    for result in (ways, prefetched):
        assert "paced computation" in _labels(result.plot().draw())
        assert "layers paced to" in result.title
    legend = bucket_run.plot().draw().legends[0]
    assert "computation alone (paced)" in [text.get_text() for text in legend.texts]
    unpaced = replace(bucket_run, pace_compute=None)
    assert "paced" not in unpaced.title.replace("paced links", "")


def test_points_and_bars_stand_where_the_rows_say(crowds, ways):
    times, _ = crowds.plot().draw().axes
    points = [line for line in times.lines if line.get_linestyle() == "None" and line.get_marker() in "so"]
    heights = [list(line.get_ydata()) for line in points]
    assert heights == [[1e3 * row.median_seconds for row in crowds.of(name)] for name in ("star", "ring")]
    [ax] = ways.plot().draw().axes
    solid = [bar.get_width() for bar in ax.patches if bar.get_fill()]
    outlines = [bar.get_width() for bar in ax.patches if not bar.get_fill()]
    assert solid == [1e3 * step.seconds for step in ways.steps]
    assert outlines == [pytest.approx(1e3 * ways.bound_seconds)] * 5


def test_the_reference_configuration_shows_nothing_that_a_clock_has_a_part_in(result, monkeypatch):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    columns = set(result.table().columns)
    assert not columns & {
        "measured",
        "sent by rank 0",
        "across",
        "computes",
        "step",
        "model",
        "fitted",
        "off",
    }
    assert len(columns) >= 2
    assert result.words() not in str(result)


# -- what is refused


@pytest.mark.parametrize(
    ("cluster", "found"),
    [
        (dc.Cluster(ranks=2, device="cpu"), "this machine as it is"),
        (dc.Cluster(hosts=1, ranks_per_host=2, links="paced"), "one host"),
    ],
)
def test_a_cluster_without_a_link_between_hosts_is_refused_with_one_that_has(cluster, found):
    for experiment in (experiments.all_reduce_sweep, experiments.overlap, experiments.prefetch):
        with pytest.raises(
            ValueError, match=rf"the cluster is {found}; give one such as dc\.Cluster\(hosts=2"
        ):
            experiment(cluster)


def test_what_is_no_cluster_is_refused():
    with pytest.raises(TypeError, match=r"cluster='500mbit': give one"):
        experiments.bucket_sweep("500mbit")


def test_sizes_that_are_none_are_refused(two_hosts):
    for sizes, message in (
        ((1024, 2048), "two sizes would fit any two times; give three at least"),
        ((1024, 2048, 4097), "4097 bytes, and a number of fp32 has 4; give multiples of 4"),
        ((0, 4, 8), "sizes=0: give a whole number from 1 on"),
    ):
        with pytest.raises(ValueError, match=message):
            experiments.all_reduce_sweep(two_hosts, sizes=sizes)
    with pytest.raises(ValueError, match="a minimum lies between others; give three sizes at least"):
        experiments.bucket_sweep(two_hosts, caps_mb=(1, 2, 2))
    with pytest.raises(ValueError, match=r"payload_bytes has 1001 bytes, .*give multiples of 4"):
        experiments.star_or_ring(payload_bytes=1001, links="paced")


def time_a_wrong_sum():
    import torch

    return seconds_of(lambda tensor, group: tensor.mul_(3), torch.zeros(3))


def test_a_wrong_sum_is_an_error_and_not_a_time():
    with pytest.raises(dc.RankError, match="gave a wrong sum on 2 ranks"):
        dc.launch(time_a_wrong_sum, ranks=2, device="cpu")
