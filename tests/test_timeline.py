"""The timeline against torch's own profile, its lanes, and its trace file."""

import json
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import dpcourse as dc
from dpcourse.figures.timeline import timeline_lanes
from dpcourse.ledger import COMMUNICATION, COMPUTATION, Span, overlap, select, side_by_side
from dpcourse.measure.timeline import Event, TimelineMeter, collectives, spans_of, united, with_held_ends
from dpcourse.measure.trace import chrome_trace
from dpcourse.parts import TimelinePart

MAIN, WORKER = 1, 2


def mark(phase, at):
    return Event(f"dpcourse phase: {phase}", MAIN, at, at)


def names_of(spans, lane=COMMUNICATION):
    return [span.name for span in select(spans, lane=lane)]


# -- beside torch.profiler ----------------------------------------------


def measured_steps():
    """A step of DDP, of FSDP2, of a ring under DDP, and two messages: for each its spans and its profile."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from dpcourse.scratch import ring

    def module():
        torch.manual_seed(0)
        layers = [torch.nn.Linear(256, 256) for _ in range(3)]
        return torch.nn.Sequential(*layers)

    sharded = module()
    for layer in sharded:
        fully_shard(layer)
    hooked = DistributedDataParallel(module(), bucket_cap_mb=0.1)
    hooked.register_comm_hook(None, ring_hook(ring))
    plain = DistributedDataParallel(module(), bucket_cap_mb=0.1)
    return {
        "ddp": profiled(plain),
        "fsdp2": profiled(fully_shard(sharded)),
        "ring": profiled(hooked),
        "messages": profiled(lambda tensor: exchange(tensor).requires_grad_()),
    }


def ring_hook(ring):
    def hook(state, bucket):
        ring.all_reduce(bucket.buffer())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    return hook


def exchange(tensor):
    other = 1 - dist.get_rank()
    received = torch.empty_like(tensor)
    request = dist.isend(tensor, other)
    dist.recv(received, other)
    request.wait()
    return received


def profiled(module):
    inputs, meter = torch.ones(4, 256), TimelineMeter()
    for _ in range(2):
        module(inputs).sum().backward()
    with meter:
        loss = module(inputs).sum()
        meter.mark("forward")
        loss.backward()
        meter.mark("backward")
    shown = [
        (event.name, event.time_range.start, event.time_range.end - event.time_range.start)
        for event in meter.profile.events()
        if event.name.startswith(("gloo:", "scratch:"))
    ]
    return meter.spans(), sorted(shown, key=lambda event: event[1])


@pytest.fixture(scope="module")
def steps():
    return dc.launch(measured_steps, ranks=2, deadline_seconds=100)


def disagreements(spans, shown):
    """Compare a step's communication with the profile of the same step: names and order, then durations."""
    if names_of(spans) != [name for name, _, _ in shown]:
        return [f"names {names_of(spans)}, and the profile shows {[name for name, _, _ in shown]}"]
    pairs = zip(select(spans, lane=COMMUNICATION), shown, strict=True)
    return [name for span, (name, _, length) in pairs if abs(span.seconds - length / 1e6) > 1e-6]


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ("ddp", ["gloo:all_reduce"] * 3),
        ("fsdp2", ["gloo:all_gather"] * 6 + ["gloo:all_reduce"] * 3),
        ("messages", ["gloo:send", "gloo:recv"]),
    ],
)
def test_communication_is_what_torch_profiler_shows_in_names_order_and_counts(steps, step, expected):
    for spans, shown in (result[step] for result in steps):
        assert disagreements(spans, shown) == []
        assert sorted(names_of(spans)) == sorted(expected)


def test_a_lost_a_renamed_and_a_moved_event_are_refused(steps):
    spans, shown = steps[0]["fsdp2"]
    assert disagreements(spans, shown[1:])
    assert disagreements(spans, [shown[1], shown[0], *shown[2:]][::-1])
    assert disagreements(spans, [("gloo:broadcast", *shown[0][1:]), *shown[1:]])
    name, start, length = shown[0]
    assert disagreements(spans, [(name, start, length + 5), *shown[1:]]) == [name]


def test_a_ring_is_one_span_a_bucket_and_neither_its_messages_nor_its_parts(steps):
    spans, shown = steps[0]["ring"]
    assert names_of(spans) == ["scratch: all_reduce"] * 3
    assert {"gloo:send", "gloo:recv", "scratch: reduce_scatter"} < {name for name, _, _ in shown}
    found = overlap(spans)
    assert found.overlap_seconds == 0  # it blocks the thread that computes; what it adds up is no computation


# -- events to spans ----------------------------------------------------


def test_each_bucket_has_its_name_also_where_two_are_under_way_at_once():
    events = [
        Event("aten::mm", MAIN, 0.0, 1.0),
        Event("gloo:all_reduce", WORKER, 1.0, 4.0),
        Event("gloo:all_reduce", WORKER + 1, 2.0, 3.0),
        mark("backward", 5.0),
    ]
    spans = spans_of(events, ["bucket 0", "bucket 1"], rank=1)
    assert spans == [
        Span(COMPUTATION, "backward", 0.0, pytest.approx(1.0), 1),
        Span(COMMUNICATION, "bucket 0", 1.0, 4.0, 1),
        Span(COMMUNICATION, "bucket 1", 2.0, 3.0, 1),
    ]
    assert (
        names_of(spans_of(events, ["bucket 0"], rank=1)) == ["gloo:all_reduce"] * 2
    )  # not as many: no guess


def test_an_announced_collective_lasts_until_its_last_message_has_ended():
    events = [
        Event("scratch: all_gather", MAIN, 1.0, 2.0),
        Event("gloo:send", MAIN, 1.2, 3.0),
        Event("gloo:recv", MAIN, 1.4, 6.0),
        Event("gloo:send", MAIN, 4.0, 4.5),  # a message of its own
    ]
    assert collectives(events) == [
        Event("scratch: all_gather", MAIN, 1.0, 6.0),
        Event("gloo:send", MAIN, 4.0, 4.5),
    ]


def test_a_message_that_was_held_ends_when_it_was_let_go_and_not_when_it_was_waited_for():
    events = [
        Event("scratch: all_gather", MAIN, 1.0, 2.0),
        Event("held message 7", MAIN, 1.1, 1.3),
        Event("gloo:recv", MAIN, 1.2, 9.0),
        Event("held message 8", MAIN, 1.4, 1.6),
        Event("gloo:recv", WORKER, 1.5, 3.0),  # of another thread
        Event("gloo:send", MAIN, 1.5, 1.6),
        Event("gloo:send", MAIN, 6.0, 6.5),
    ]
    ended = with_held_ends(events, {"held message 7": 4.0, "held message 8": 5.0})
    assert [(event.name, event.end) for event in ended] == [
        ("scratch: all_gather", 2.0),
        ("gloo:recv", 4.0),
        ("gloo:recv", 3.0),
        ("gloo:send", 5.0),
        ("gloo:send", 6.5),
    ]
    assert collectives(ended)[0] == Event("scratch: all_gather", MAIN, 1.0, 5.0)
    assert collectives(with_held_ends(events, {}))[0].end == 9.0


def test_on_a_gpu_kernels_count_and_those_of_nccl_are_communication():
    events = [
        Event("aten::mm", MAIN, 0.0, 0.1),
        Event("gemm", 7, 1.0, 3.0, is_kernel=True),
        Event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 8, 2.0, 5.0, is_kernel=True),
        Event("Memcpy DtoH", 7, 5.0, 6.0, is_kernel=True),
        mark("backward", 7.0),
    ]
    spans = spans_of(events, ["bucket 0"], rank=0)
    assert spans == [
        Span(COMPUTATION, "backward", 1.0, pytest.approx(3.0)),
        Span(COMMUNICATION, "bucket 0", 2.0, 5.0),
    ]


def recorded(name, start, end, device="CPU", is_annotation=False):
    return SimpleNamespace(
        name=lambda: name,
        start_thread_id=lambda: MAIN,
        start_ns=lambda: start,
        end_ns=lambda: end,
        device_type=lambda: SimpleNamespace(name=device),
        is_user_annotation=lambda: is_annotation,
    )


def test_what_a_profile_draws_on_the_device_a_second_time_is_no_kernel():
    meter = TimelineMeter()
    events = [
        recorded("gemm", 3000, 4000, "CUDA"),
        recorded("nccl:all_reduce", 2000, 5000, "CUDA", is_annotation=True),
        recorded("nccl:all_reduce", 1000, 2000),
    ]
    results = SimpleNamespace(events=lambda: events)
    meter.profile = SimpleNamespace(profiler=SimpleNamespace(kineto_results=results))
    assert [(event.name, event.is_kernel) for event in meter.events()] == [
        ("nccl:all_reduce", False),
        ("gemm", True),
    ]
    assert meter.events()[1].start == pytest.approx(3e-6)


def test_operations_close_together_are_one_span():
    assert united([(0.0, 1.0), (1.05, 2.0), (3.0, 4.0)], gap=0.1) == [
        (0.0, pytest.approx(2.0)),
        (3.0, pytest.approx(4.0)),
    ]


# -- lanes and figure ---------------------------------------------------

OVERLAPPING = [
    Span(COMPUTATION, "backward", 0.0, 10.0),
    Span(COMMUNICATION, "bucket 0", 5.0, 9.0),
    Span(COMMUNICATION, "bucket 1", 6.0, 12.0),
    Span(COMMUNICATION, "bucket 2", 9.0, 11.0),
    Span(COMMUNICATION, "bucket 3 with a name too long for it", 11.9, 12.0),
]


def lies_on_another(rows):
    return any(left.end_seconds > right.start_seconds for row in rows for left, right in pairwise(row))


def test_spans_that_overlap_lie_side_by_side_in_as_few_rows_as_it_takes():
    rows = side_by_side(select(OVERLAPPING, lane=COMMUNICATION))
    assert [[span.name[:8] for span in row] for row in rows] == [
        ["bucket 0", "bucket 2", "bucket 3"],
        ["bucket 1"],
    ]
    assert not lies_on_another(rows)
    assert lies_on_another([select(OVERLAPPING, lane=COMMUNICATION)])
    assert side_by_side([]) == []


class Run:
    """As much of a run as its timeline needs."""

    title, world_size = "ddp: mlp on 2 ranks", 2
    links = pace_compute = None

    def __init__(self):
        spans = [
            *OVERLAPPING,
            *(Span(s.lane, s.name, s.start_seconds, s.end_seconds, 1) for s in OVERLAPPING[:2]),
        ]
        self.records = [
            SimpleNamespace(rank=rank, spans=tuple(select(spans, rank=rank))) for rank in range(2)
        ]


def test_the_figure_lays_no_bar_on_another_and_names_only_what_has_room():
    figure = timeline_lanes(TimelinePart(Run()))
    ax = figure.draw().axes[0]
    boxes = [
        (bar.get_x(), bar.get_y(), bar.get_x() + bar.get_width(), bar.get_y() + bar.get_height())
        for bar in ax.patches
    ]
    assert len(boxes) == 7
    for index, (left, low, right, high) in enumerate(boxes):
        for other in boxes[index + 1 :]:
            assert right <= other[0] or other[2] <= left or high <= other[1] or other[3] <= low
    texts = [text.get_text() for text in ax.texts]
    assert {"bucket 0", "bucket 1", "bucket 2"} < set(texts)
    assert not any("too long" in text for text in texts)
    assert "71 % hidden" in texts
    assert "rank 0: 4 collectives, 71 % hidden behind computation" in figure.alt


def test_the_table_s_share_reads_as_a_number():
    assert TimelinePart(Run()).table().number(0, "hidden") == 71


# -- trace --------------------------------------------------------------


def test_a_saved_trace_has_every_span_with_its_time_a_process_a_rank_and_a_thread_a_lane(tmp_path):
    part = TimelinePart(Run())
    part.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(part.measured) == 7
    for rank in range(2):
        for lane in (COMPUTATION, COMMUNICATION):
            saved = {e["name"]: (e["ts"], e["dur"]) for e in spans if (e["pid"], e["cat"]) == (rank, lane)}
            mine = select(part.measured, rank=rank, lane=lane)
            assert saved == {
                span.name: pytest.approx((span.start_seconds * 1e6, span.seconds * 1e6)) for span in mine
            }
    threads = [
        event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 0
    ]
    assert threads == ["computation", "communication", "communication 2"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        "rank 0",
        "rank 1",
    }


def test_no_two_spans_of_one_thread_of_a_trace_overlap():
    spans = [event for event in chrome_trace(OVERLAPPING)["traceEvents"] if event["ph"] == "X"]
    for thread in {event["tid"] for event in spans}:
        mine = sorted((event["ts"], event["ts"] + event["dur"]) for event in spans if event["tid"] == thread)
        assert all(end <= start for (_, end), (start, _) in pairwise(mine))
