"""`dc.dry_run`: one rank of many that are not there holds and calls what a real one does, to the byte."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

import dpcourse as dc
from dpcourse.ledger import GATHERED_PEAK, select, sums_by, total
from dpcourse.measure.storages import StorageLedger
from dpcourse.models import ConvNet, GptSmall, Mlp
from dpcourse.request import make_request
from tests.equivalence import (
    LOSS_TOLERANCE,
    SMALL,
    SMALL_GPT,
    WEIGHT_TOLERANCE,
    distance,
    train_on,
    trained,
    trained_alone,
)

pytestmark = pytest.mark.long

UNEVEN = Mlp(features=12, width=300, depth=2, classes=5)  # 300 rows divide over none of the numbers below
CONV = ConvNet(image_size=4, channels=(6,), classes=3)

# -- a real run -----------------------------------------------------------

# Each with the number of ranks; the batch is theirs too.
REAL = {
    "fsdp2": ("fsdp2", SMALL, 4, {}, {}),
    "fsdp2 on 2 ranks": ("fsdp2", SMALL_GPT, 2, {}, {"checkpointing": True}),
    "fsdp2 that keeps units": ("fsdp2", SMALL_GPT, 4, {"reshard_after_forward": False}, {}),
    "fsdp2 in bf16": ("fsdp2", SMALL_GPT, 4, {"mesh": (2, 2)}, {"recipe": "fsdp-mixed"}),
    "fsdp2 and tensor parallelism": ("fsdp2", SMALL_GPT, 4, {"tensor_parallel": 2}, {}),
    "fsdp1": ("fsdp1", SMALL, 4, {}, {}),
    "fsdp1 on 2 ranks": ("fsdp1", SMALL_GPT, 2, {}, {"recipe": "bf16", "checkpointing": True}),
    "fsdp1 that keeps units": ("fsdp1", SMALL_GPT, 4, {"sharding": "SHARD_GRAD_OP"}, {}),
    "fsdp1 hybrid": ("fsdp1", CONV, 4, {"sharding": "HYBRID_SHARD", "mesh": (2, 2)}, {}),
}


class WithoutCopies(StorageLedger):
    """Leaves out the copy that gloo makes of what it reduces and scatters: no other backend makes it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        num_seen = self._num_seen
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func._opname == "split" and self._num_seen > num_seen:
            self.changes.pop()
            self.live[self._num_seen] = 0
        return result


def held_by_a_real_rank(request):
    """In a rank: what it holds, as a run measures it, gloo's copies left out."""
    from dpcourse import trainer

    trainer.StorageLedger = WithoutCopies
    return trainer._measure_memory(request)[0]


def sums(holdings, *phases):
    return {
        key: size for key, size in sums_by(holdings, "phase", "owner", "unit").items() if key[0] in phases
    }


@pytest.mark.parametrize("name", REAL)
def test_a_dry_rank_holds_what_a_real_one_does_to_the_byte_at_the_peak_too(name):
    strategy, model, ranks, options, asked = REAL[name]
    rank = ranks - 1  # which of several has least
    run = dc.dry_run(strategy, model, ranks=ranks, rank=rank, **options, **asked)
    request = make_request(strategy, options, model, ranks=ranks, **asked)
    truth = dc.launch(held_by_a_real_rank, request, ranks=ranks, everything=True)[rank]
    measured = run.memory.measured
    ends = ("forward", "backward", "step", GATHERED_PEAK)
    assert sums(measured, *ends) == sums(truth, *ends)
    assert total(select(measured, phase="peak")) == total(select(truth, phase="peak"))
    assert run.memory.is_exact()
    assert run.traffic.is_exact()


def test_a_dry_run_makes_the_calls_of_a_real_run():
    real, dry = (
        run("fsdp2", SMALL_GPT, ranks=2, backend="gloo", checkpointing=True) for run in (dc.train, dc.dry_run)
    )

    def calls(run):
        rows = [t for t in select(run.traffic.measured, rank=0) if not t.collective.endswith("count")]
        return Counter((t.phase, t.collective, t.unit, t.group, t.payload_bytes) for t in rows)

    assert calls(dry) == calls(real)
    assert dry.traffic.sent_bytes() == dry.traffic.expected_sent_bytes() == real.traffic.expected_sent_bytes()


# -- the expected list ----------------------------------------------------


@pytest.mark.parametrize(("ranks", "rank"), [(256, 0), (4096, 4095)])
@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_one_of_thousands_is_what_the_list_says_where_nothing_divides(strategy, ranks, rank):
    run = dc.dry_run(strategy, UNEVEN, ranks=ranks, rank=rank)
    assert run.memory.is_exact(), str(run.memory)
    assert run.traffic.is_exact(), str(run.traffic)
    assert max(len(t.group) for t in run.traffic.measured) == ranks
    assert run.memory.bytes_per_parameter("backward") > (16 if rank == 0 else 8) / ranks  # shards are padded


def test_a_wrong_list_is_noticed(monkeypatch):
    from dpcourse.layout import DTYPE_BYTES
    from dpcourse.strategies import fsdp2_lists

    def without_padding(parameter, num_shards):
        return parameter.num_elements * DTYPE_BYTES[parameter.dtype] // num_shards

    monkeypatch.setattr(fsdp2_lists, "padded_shard_bytes", without_padding)
    run = dc.dry_run("fsdp2", UNEVEN, ranks=256)
    assert not run.memory.is_exact()
    assert not run.traffic.is_exact()
    one_less = replace(run.records[0], transfers=run.records[0].transfers[:-1])
    assert not replace(run, records=(one_less,)).traffic.is_exact()


@pytest.mark.parametrize("strategy", ["ddp", "single"])
def test_what_cannot_run_on_a_fake_group_is_answered_from_its_list_and_says_so(strategy, no_process):
    ranks = 1 if strategy == "single" else 512
    run = dc.dry_run(strategy, "gpt-7b", ranks=ranks)
    assert "(expected list of rank 0)" in str(run)
    assert "nothing was run" in str(run)
    assert run.memory.measured == run.traffic.measured == []
    assert not run.memory.is_exact()
    held = run.memory.bytes_per_parameter("backward")
    assert held == pytest.approx(16 if strategy == "single" else 20, rel=1e-3)
    assert run.traffic.sent_bytes() == (0 if strategy == "single" else None)
    assert not [row for row in run.headlines().texts() if row[1] != "-"][1:]


# -- what it is -----------------------------------------------------------


def test_a_dry_run_shows_itself_as_one_and_is_kept_like_any_run(tmp_path):
    run = dc.dry_run("fsdp2", SMALL, ranks=64, rank=3)
    assert run.title == "fsdp2: mlp on 64 ranks (dry run of rank 3)"
    assert "nothing computed" in run.facts()
    assert run.losses == [[]]
    assert run.timeline.measured == []
    assert "loss of the first step" not in str(run)
    for part in (run.memory, run.traffic, run.timeline):
        assert "dry run of rank 3" in str(part)
        assert "dry run of rank 3" in str(part.plot())
    figure = run.memory.plot_over_time()
    assert "Memory of rank 3 of 64" in str(figure)
    figure.save(tmp_path / "figure.png")
    listed = dc.dry_run("ddp", SMALL, ranks=64)
    rows = dc.compare([run, listed]).table().texts()
    assert [row[4] for row in rows] == ["-", "-"]
    assert rows[1][1] == "20.01"
    dc.compare([run, listed]).plot().save(tmp_path / "figure.png")
    for one in (run, listed):
        one.memory.plot().save(tmp_path / "figure.png")
        one.traffic.plot().save(tmp_path / "figure.png")
        one.save(tmp_path / "run.json")
        assert dc.Run.load(tmp_path / "run.json") == one
    with pytest.raises(ValueError, match=r"rank 0 has no record in this run; rank 3 alone has one"):
        run.memory.table(rank=0)


def test_the_callers_process_gets_no_group_and_no_changed_torch():
    before = torch.chunk, torch.Tensor.new_empty, torch.UntypedStorage.data_ptr
    dc.dry_run("fsdp1", SMALL, ranks=1000)
    assert not torch.distributed.is_initialized()
    assert (torch.chunk, torch.Tensor.new_empty, torch.UntypedStorage.data_ptr) == before


class Decides(nn.Module):
    """A model that looks at numbers, which are not there."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, points):
        return self.layer(points if points.sum() > 0 else -points)


def points(batch_size, seed):
    return torch.ones(batch_size, 3), torch.ones(batch_size, 2)


def test_a_model_that_decides_by_numbers_is_refused_with_the_reason():
    with pytest.raises(dc.RankError, match=r"Decides decides by a number of a tensor .*dc.expect"):
        dc.dry_run("fsdp2", Decides, ranks=8, batch=points)


def test_a_model_of_ones_own_is_exact_too():
    run = dc.dry_run("fsdp1", lambda: nn.Sequential(nn.Linear(3, 7), nn.Linear(7, 2)), ranks=8, batch=points)
    assert run.memory.is_exact()
    assert run.traffic.is_exact()


def test_tensor_parallelism_trains_as_one_rank_alone_does():
    together = train_on("fsdp2", 4, SMALL_GPT, tensor_parallel=2)
    weights, losses = distance(together, trained_alone(SMALL_GPT))
    assert weights < WEIGHT_TOLERANCE
    assert losses < LOSS_TOLERANCE


def test_heads_that_lie_on_other_ranks_than_their_projection_are_caught():
    def as_they_lie(rows, num_parts):
        return rows

    results = dc.launch(_trained_with, "by_rank", as_they_lie, ranks=2, everything=True)
    assert distance(results, trained_alone(SMALL_GPT))[1] > 10 * LOSS_TOLERANCE


def _trained_with(name, wrong):
    from dpcourse.strategies import tensor_parallel

    setattr(tensor_parallel, name, wrong)
    asked = {"ranks": 2, "batch_size": 8, "optimizer": "momentum"}
    return trained(make_request("fsdp2", {"tensor_parallel": 2}, SMALL_GPT, **asked))


def test_a_real_run_with_tensor_parallelism_is_exact_on_both_axes():
    run = dc.train("fsdp2", SMALL_GPT, ranks=4, tensor_parallel=2, checkpointing=True)
    assert run.memory.is_exact(), str(run.memory)
    assert run.traffic.is_exact(), str(run.traffic)


def test_the_next_dimension_is_a_ledger_too():
    model = GptSmall(vocabulary=512, context=16, width=1024, heads=16, depth=2)
    flat, both = (dc.dry_run("fsdp2", model, ranks=256, tensor_parallel=t, backend="nccl") for t in (1, 8))
    assert both.memory.is_exact()
    assert both.traffic.is_exact()
    held = [run.memory.bytes_per_parameter("step") for run in (flat, both)]
    in_blocks = 2 * 12 * 1024**2 / both.num_params
    assert held[1] == pytest.approx(12 * (in_blocks / 256 + (1 - in_blocks) / 32), rel=0.02)
    reduced = select(both.traffic.measured, collective="all_reduce")
    assert [(t.group, t.payload_bytes) for t in reduced] == [(tuple(range(8)), 16 * 1024 * 4)] * 8
    gathered = select(both.traffic.measured, collective="all_gather")
    assert {t.group for t in gathered} == {tuple(range(0, 256, 8))}
    most = [total(select(run.memory.measured, phase=GATHERED_PEAK)) for run in (flat, both)]
    assert most[1] < most[0] / 4  # no rank has a whole block, even while it computes


REFUSALS = {
    "parts": ({"ranks": 8, "tensor_parallel": 3}, r"tensor_parallel=3 does not divide 8 ranks"),
    "no parts": ({"ranks": 8, "tensor_parallel": 0}, r"tensor_parallel=0 does not divide 8 ranks"),
    "heads": ({"ranks": 8, "tensor_parallel": 8}, r"does not divide the model's 4 heads"),
    "two meshes": ({"ranks": 8, "tensor_parallel": 2, "mesh": (2, 4)}, r"makes a mesh of its own"),
    "no blocks": ({"model": "mlp", "ranks": 8, "tensor_parallel": 2}, r"cuts the blocks of the course's GPT"),
    "not on a fake group": (
        {"strategy": "zero1"},
        r"zero1 cannot be dry-run: .*fsdp1 and fsdp2 run on fake tensors, single and ddp are answered",
    ),
    "scratch": ({"strategy": "scratch-fsdp"}, r"scratch-fsdp cannot be dry-run"),
    "no strategy": ({"strategy": "fsdp3"}, r"no strategy is called 'fsdp3'"),
    "too many": ({"ranks": 5000}, r"a dry run of 5,000 ranks was asked for, and 4096 is the most"),
    "no ranks": ({"ranks": 0}, r"ranks=0: give a whole number from 1 on"),
    "rank": ({"ranks": 8, "rank": 8}, r"rank=8: give a whole number from 0 to 7, one of the 8 ranks"),
    "negative": ({"ranks": 8, "rank": -1}, r"rank=-1: give a whole number from 0 to 7"),
    "no rank": ({"ranks": 8, "rank": True}, r"rank=True: give a whole number from 0 to 7"),
    "shares": ({"ranks": 64, "batch_size": 8}, r"64 ranks share a global batch of 8"),
    "backend": ({"backend": "mpi"}, r"no backend is called 'mpi'; there is gloo"),
    "mesh": ({"ranks": 64, "mesh": (4, 4)}, r"mesh=\(4, 4\) has 16 places for 64 ranks"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_dry_run_is_refused_before_a_process_starts(name, no_process):
    asked, message = REFUSALS[name]
    with pytest.raises(ValueError, match=message):
        dc.dry_run(**{"strategy": "fsdp2", "model": GptSmall(depth=1), **asked})
