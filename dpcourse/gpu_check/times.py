"""Steps about time: what prefetching hides, and whether a timeline's clock is that of CUDA's own events."""

from collections.abc import Callable, Iterator

import dpcourse as dc
from dpcourse import recorded
from dpcourse.gpu_check.place import Place
from dpcourse.gpu_check.report import Check
from dpcourse.gpu_check.running import Note, Skipped, judge, judge_losses, train
from dpcourse.ledger import COMMUNICATION, select
from dpcourse.run import Run

_NEAR_SECONDS = 200e-6  # an event is noted by the GPU a little after the kernel before it has ended
_NUM_SLEEPS, _SLEEP_CYCLES = 3, 10**7  # some milliseconds each


def prefetch(place: Place, note: Note) -> None:
    """How much of its gathers FSDP hides, with and without prefetching: noted, it depends on the card."""
    runs = [train(place, "scratch-fsdp", model="gpt-small", prefetch=asked) for asked in (True, False)]
    judge_losses(runs[0], runs[1], note)
    if place.backend is None and place.device == "cuda":
        runs.append(train(place, "fsdp2", model="gpt-small", wrapping="layer"))
    for run in runs:
        found = run.timeline.overlap()
        text = f"{found.hidden_share:.1%} of {found.communication_seconds * 1e3:.2f} ms hidden"
        note(Check(f"{run.title}: communication of rank 0", text))


def timeline(place: Place, note: Note) -> None:
    """Every collective has its span, and kernels lie where CUDA's events put them."""
    run = train(place, "ddp", model="gpt-small", bucket_cap_mb=1)
    for record in run.records:
        spans = select(record.spans, lane=COMMUNICATION)
        listed = run.traffic.num_collectives(record.rank)
        judge(f"{run.title}: rank {record.rank}, spans of communication", len(spans), listed, note)
    if place.device != "cuda":
        note(Check("CUDA's events beside the timeline", "no CUDA here"))
        return
    apart = dc.launch(seconds_apart, ranks=1, device="cuda")[0]
    text = f"at most {max(apart) * 1e6:.0f} us apart"
    is_near = max(apart) <= _NEAR_SECONDS
    note(
        Check(
            "lengths by CUDA's events beside kernels", text, f"within {_NEAR_SECONDS * 1e6:.0f} us", is_near
        )
    )


def seconds_apart() -> list[float]:
    """In a rank on a GPU: how far the lengths of some kernels are from what events around them say."""
    import torch

    from dpcourse.measure.timeline import TimelineMeter

    meter = TimelineMeter()
    torch.cuda._sleep(_SLEEP_CYCLES)
    with meter:
        pairs = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(_NUM_SLEEPS)]
        for before, after in pairs:
            before.record()
            torch.cuda._sleep(_SLEEP_CYCLES)
            after.record()
        meter.mark("forward")
    by_events = [before.elapsed_time(after) / 1e3 for before, after in pairs]
    kernels = [event for event in meter.events() if event.is_kernel]
    by_kernels = [event.end - event.start for event in kernels][:_NUM_SLEEPS]
    return [abs(one - other) for one, other in zip(by_events, by_kernels, strict=True)]


def figures(place: Place, note: Note) -> None:
    """Draw what was recorded, from the files alone."""
    paths = sorted(place.runs.glob("*.json"))
    if not paths:
        raise Skipped("no step before this one has recorded a run")
    for path in paths[: 1 if place.is_quick else None]:
        run = recorded.load(path.stem, place.runs)
        for name, draw in _drawings(run):
            target = place.figures / f"{path.stem}_{name}.png"
            draw().save(str(target))
            note(Check(f"{run.title}: {name}", f"{target.stat().st_size} bytes"))


def _drawings(run: Run) -> Iterator[tuple[str, Callable]]:
    yield "memory", run.memory.plot
    if run.world_size > 1:
        yield "traffic", run.traffic.plot
        yield "timeline", run.timeline.plot
