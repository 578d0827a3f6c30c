"""Lab 03, third question: hooks that fill buckets, and all-reduces that travel while backward goes on."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpcourse.labs.ddp.bucket_mistakes import BUCKETS_MISTAKES
from dpcourse.labs.ddp.chains import NUM_STEPS, UNUSED, Share, awkward_models
from dpcourse.labs.ddp.means import judge_means
from dpcourse.labs.ddp.passes import FINISHED, OVER, STEP, Pass, left_early, passes_of
from dpcourse.labs.question import Case, CodeQuestion, Finding, Target
from dpcourse.labs.switch import Log
from dpcourse.tables import Table


def cases(seed: int, sizes: tuple[int, ...]) -> tuple[Case, ...]:
    """One run for each world size, of three models and two steps each."""
    return tuple(_case(seed, size) for size in sizes)


def _case(seed: int, size: int, num_models: int = 3) -> Case:
    random = np.random.default_rng([seed, size, 33])
    models = awkward_models(random, size)[:num_models]
    return Case(f"{size} ranks", tuple(zip(*models, strict=True)))


def call(answer: Callable[..., Any], shares: tuple[Share, ...]) -> list[Any]:
    """In a rank: each model's gradients, step by step, or what the answer returned in place of a function."""
    from dpcourse.labs import plug

    found: list[Any] = []
    for share in shares:
        plug.note(f"model {share.chain.title}")
        found.append(_train(answer, share))
    return found


def _train(answer: Callable[..., Any], share: Share) -> Any:
    from dpcourse.labs import plug
    from dpcourse.labs.ddp.module import Layers, enter_gate, meet, note_gradients, open_gate

    model, steps = Layers(share.chain), []
    note_gradients(model)
    finish = answer(model, share.chain.cap_bytes)
    if not callable(finish):
        return {"type": type(finish).__name__}
    for step in range(NUM_STEPS):
        model.zero_grad()
        plug.note(STEP)
        enter_gate(share)
        model.backward(share, step)
        plug.note(OVER)
        gate = open_gate(share)
        finish()
        plug.note(FINISHED)
        if gate is not None:
            gate.wait()
        meet()
        steps.append(model.gradients())
    return steps


def judge(case: Case, sent: list[Any], log: Log) -> Finding:
    """After every step each rank holds the mean, and buckets are those asked for and leave once full."""
    if any(type(steps) is dict for own in sent for steps in own):
        kind = next(steps["type"] for own in sent for steps in own if type(steps) is dict)
        return Finding("no_finish", f"{case.title}: what was returned is of type {str(kind)[:40]}")
    if where := left_early(log):
        return Finding("not_waited", f"{case.title}: {where}")
    shares = list(zip(*case.inputs, strict=True))
    targets: tuple[Target, ...] = ()
    for k, steps in enumerate(passes_of(log, shares, NUM_STEPS)):
        for step, passes in enumerate(steps):
            place = f"{case.title}, {shares[k][0].chain.title}, step {step + 1}"
            finding = _judge_step(place, shares[k], step, [own[k][step] for own in sent], passes)
            if finding.mistake:
                return finding
            targets = targets or finding.targets  # of the plain model: all of them have a number there
    return Finding(targets=targets)


def _judge_step(
    place: str, shares: tuple[Share, ...], step: int, sent: list[Any], passes: list[Pass]
) -> Finding:
    """Values first, then the all-reduces of every rank."""
    finding = judge_means(place, shares, step, sent)
    targets = (*finding.targets, *passes[0].targets())
    if finding.mistake:
        mistake = _with_the_calls(finding.mistake, step, passes)
        return Finding(mistake, f"{finding.where}; {passes[0].where()}", targets)
    for own in passes:
        if mistake := own.mistake():
            return Finding(mistake, f"{place}: {own.where()}", targets)
    return Finding(targets=targets)


def _with_the_calls(mistake: str, step: int, passes: list[Pass]) -> str:
    """A wrong value, where the all-reduces say more about it."""
    if mistake in ("wrong_type", "wrong_dtype", "wrong_shape", "changed_parameters", "frozen_gradient"):
        return mistake
    if any(own.mistake() == "tied_twice" for own in passes):
        return "tied_twice"
    return "only_first_step" if step else mistake


def name_deadlock(log: Log) -> str:
    """In the plain model rank 0 must get through backward alone; in the last one nobody may skip a bucket."""
    models = [event.what for event in log.events if event.what.startswith("model ")]
    if models and models[-1] == f"model {UNUSED}":
        return "unused"
    over = {event.rank for event in log.events if event.what == OVER}
    return "waits" if models and 0 not in over else "hang"


def draw(case: Case, sent: list[Any], log: Log) -> Table:
    """What happened on rank 0 in one step, in order."""
    shares = list(zip(*case.inputs, strict=True))
    events = passes_of(log, shares, NUM_STEPS)[0][1][0].events
    rows: list[tuple[int, str, str]] = []
    for event in events:
        kind, _, rest = event.what.partition(" ")
        if kind == "ready":
            rows.append((len(rows) + 1, rest, ""))
        elif kind == "call":
            rows.append((len(rows) + 1, "", f"{rest.rpartition(' ')[2]} bytes set out"))
        elif event.what in (OVER, FINISHED):
            rows.append((len(rows) + 1, event.what, ""))
    return Table(("", "gradient ready", "all-reduce"), rows, "Rank 0 in one step, in order")


BUCKETS = CodeQuestion(
    name="buckets",
    title="Buckets that leave while backward goes on",
    points=45,
    minutes=30,
    cases=cases,
    call=call,
    judge=judge,
    draw=draw,
    example=lambda ranks: _case(0, ranks, num_models=1),
    mistakes=BUCKETS_MISTAKES,
    entry="average_in_buckets",
    allowed=("all_reduce",),
    witnesses=("dpcourse.labs.ddp.module",),
    name_deadlock=name_deadlock,
)
