"""Collectives through host memory: what gloo gives, from systems that do not know of it, on CPU tensors.

The copies are real ones, from one part of host memory to another. In which order a GPU's streams would come
to them is told by stand-ins that write down what they are asked for.
"""

import contextlib
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import dpcourse as dc
from dpcourse.figures import canvas
from dpcourse.ledger import COUNTS
from dpcourse.measure.memory import MemoryMeter
from dpcourse.measure.storages import StorageLedger
from dpcourse.measure.timeline import TimelineMeter
from dpcourse.network import in_order, staged
from dpcourse.network.staged import Copies, StagedProcessGroup
from tests.test_ring_backend import asked_from_everywhere, calls, exchanged_in_lists, reduced_and_exchanged
from tests.test_run import make_run

RANKS = 2


# -- torch's calls ------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
def test_torch_s_collectives_run_through_host_memory(ranks):
    assert dc.launch(calls, ranks=ranks, backend="staged") == ["staged"] * ranks


def exchanged_or_refused():
    try:
        return exchanged_in_lists()
    except RuntimeError as error:
        return str(error)


def test_every_reduction_and_exchange_gives_what_gloo_gives():
    by_backend = [dc.launch(reduced_and_exchanged, ranks=3, backend=name) for name in ("gloo", "staged")]
    assert by_backend[0] == by_backend[1]
    by_backend = [dc.launch(exchanged_or_refused, ranks=3, backend=name) for name in ("gloo", "staged")]
    assert by_backend[0] == by_backend[1]
    assert torch.__version__ < "2.13" or all(isinstance(rank, list) for rank in by_backend[1])


def test_collectives_may_be_asked_for_from_a_callback_and_in_every_mode():
    wanted = [[2, 2], [2, 2], [1, 1], [2, 2]]
    assert dc.launch(asked_from_everywhere, ranks=2, backend="staged") == [wanted] * 2


def undelivered():
    staged.Copies.deliver = lambda copies: None
    return calls()


def unfetched():
    staged.Copies.fetch = lambda copies: None
    return calls()


@pytest.mark.parametrize("broken", [undelivered, unfetched])
def test_a_group_that_leaves_a_copy_out_gives_other_numbers(broken):
    with pytest.raises(dc.RankError, match="AssertionError"):
        dc.launch(broken, ranks=2, backend="staged")


def messages():
    """In a rank: both ask for the other's message before they send; then one takes any."""
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    got, anybody = torch.zeros(3), torch.zeros(2)
    first = dist.irecv(got, other)
    dist.isend(torch.full((3,), rank + 1.0), other).wait()
    assert got.tolist() == [0, 0, 0]
    first.wait()
    source = dist.recv(anybody, tag=8) if rank == 0 else dist.send(torch.full((2,), 5.0), 0, tag=8)
    return got.tolist(), anybody.tolist(), source


def test_messages_do_not_wait_for_one_another_and_lie_there_once_they_are_waited_for():
    first, second = dc.launch(messages, ranks=2, backend="staged")
    assert first == ([2.0] * 3, [5.0, 5.0], 1)
    assert second == ([1.0] * 3, [0.0, 0.0], None)


def what_it_lacks():
    with pytest.raises(
        NotImplementedError, match=r"layout torch.sparse_coo, .* to_dense\(\), or launch with"
    ):
        dist.all_reduce(torch.eye(2).to_sparse())
    with pytest.raises(NotImplementedError, match=r"the staged backend has no allgather_coalesced; launch"):
        dist.group.WORLD.allgather_coalesced([[torch.ones(1)]], [torch.ones(1)])
    return True


def test_what_it_cannot_do_is_refused_with_the_way_out():
    assert all(dc.launch(what_it_lacks, ranks=2, backend="staged"))


def unlike_collectives():
    own = torch.ones(4)
    dist.all_reduce(own) if dist.get_rank() else dist.broadcast(own, 0)


def test_collectives_that_differ_are_named_as_they_are_on_gloo():
    with pytest.raises(dc.RankError) as caught:
        dc.launch(unlike_collectives, ranks=2, backend="staged")
    assert "all_reduce #1 of [4] float32" in str(caught.value)
    assert "broadcast #1 of [4] float32" in str(caught.value)


def profiled():
    meter, own = TimelineMeter(), torch.ones(100)
    with meter:
        dist.all_reduce(own)
        dist.reduce_scatter_tensor(torch.empty(50), own)
        meter.mark("forward")
    return [span.name for span in meter.spans() if span.lane == "communication"]


def test_a_timeline_shows_each_collective_once_and_not_gloo_s_beside_it():
    found = dc.launch(profiled, ranks=2, backend="staged")
    assert found == [["scratch: all_reduce", "scratch: reduce_scatter"]] * 2


# -- systems, beside gloo -----------------------------------------------------


def listed(run):
    """What each rank held and moved; the peak and the kernel's count of the start depend on timing."""
    held = [[h for h in record.holdings if "peak" not in h.phase] for record in run.records]
    return [*held, *([t for t in record.transfers if t.collective not in COUNTS] for record in run.records)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("ddp", {"bucket_cap_mb": 1}),
        ("fsdp1", {}),
        ("fsdp2", {"recipe": "fsdp-mixed"}),
        ("zero1", {}),
        ("scratch-fsdp", {}),
    ],
)
def test_a_system_gives_the_losses_and_the_ledgers_that_it_gives_on_gloo(strategy, options):
    here, there = (
        dc.train(strategy, ranks=RANKS, steps=2, backend=name, **options) for name in ("staged", "gloo")
    )
    assert here.losses == there.losses  # gloo adds in the same order
    assert [r.parameter_norms for r in here.records] == [r.parameter_norms for r in there.records]
    assert listed(here) == listed(there)
    assert here.memory.is_exact()
    assert here.traffic.is_exact()
    assert here.traffic.sent_bytes() == there.traffic.sent_bytes()
    assert here.traffic.expected_sent_bytes() == there.traffic.expected_sent_bytes()
    assert here.facts().count("messages through host memory") == 1


def held_after_a_slow_reduce_scatter():
    """What lives at the end of a phase, where the thread that communicates keeps its tensors a while."""
    carry_out = in_order.Job.carry_out

    def slowly(job):
        carry_out(job)
        time.sleep(0.1)

    in_order.Job.carry_out = slowly
    with StorageLedger() as ledger:
        meter = MemoryMeter(ledger, list, dist.get_rank())
        whole, shard = torch.ones(2 * dist.get_world_size()), torch.empty(2)
        dist.reduce_scatter_tensor(shard, whole)
        del whole, shard
        meter.mark("backward")
    return meter.holdings


@pytest.mark.parametrize("backend", ["staged", "ring"])
def test_what_the_thread_still_holds_of_a_reduce_scatter_is_not_counted(backend):
    assert dc.launch(held_after_a_slow_reduce_scatter, ranks=2, backend=backend) == [[], []]


# -- in which order a GPU would come to it ------------------------------------


class Gpu:
    """Streams, tensors and gloo's work, that write into one list what they are asked for."""

    device = torch.device("cuda", 0)

    def __init__(self, monkeypatch):
        self.said = []
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.stream("the caller's"))
        monkeypatch.setattr(torch.cuda, "stream", self.on)
        monkeypatch.setattr(staged, "_twin", lambda tensor: self.tensor(f"twin of {tensor.label}"))
        self.beside = self.stream("its own")

    def stream(self, name):
        return SimpleNamespace(
            name=name,
            record_event=lambda: self.said.append(f"event on {name} stream") or "event",
            wait_event=lambda event: self.said.append(f"{name} stream waits for {event}"),
            synchronize=lambda: self.said.append(f"program waits for {name} stream"),
        )

    @contextlib.contextmanager
    def on(self, stream):
        self.said.append(f"on {stream.name} stream:")
        yield

    def tensor(self, name):
        return Tensor(self, name)


class Tensor(torch.Tensor):
    """As much of a tensor on a GPU as the copies ask for."""

    def __new__(cls, gpu, name):
        tensor = torch.Tensor._make_subclass(cls, torch.empty(0))
        tensor.gpu, tensor.label = gpu, name
        return tensor

    is_cuda = True
    device = Gpu.device

    def copy_(self, source, non_blocking=False):
        self.gpu.said.append(f"{source.label} to {self.label}")
        return self


def test_copies_wait_for_the_caller_s_stream_and_the_program_for_the_copies(monkeypatch):
    gpu = Gpu(monkeypatch)
    given, result = gpu.tensor("given"), gpu.tensor("result")
    copies = Copies([given], [result], lambda device: gpu.beside)
    gpu.said.append("-- in the thread")
    copies.fetch()
    gpu.said.append("gloo reduces")
    copies.deliver()
    assert gpu.said == [
        "event on the caller's stream",
        "-- in the thread",
        "its own stream waits for event",
        "on its own stream:",
        "given to twin of given",
        "program waits for its own stream",
        "gloo reduces",
        "its own stream waits for event",
        "on its own stream:",
        "twin of result to result",
        "program waits for its own stream",
    ]
    assert copies.on_host([[given], [result]])[0][0] is copies.on_host(given)


def test_a_work_that_gives_tensors_of_a_gpu_says_so_to_its_future(monkeypatch):
    made = []

    class Future:
        def __init__(self, devices=None):
            made.append(devices)

        def then(self, callback):
            return self

    monkeypatch.setattr(torch.futures, "Future", Future)
    gpu = Gpu(monkeypatch)
    in_order.Job(lambda: None, [gpu.tensor("a"), gpu.tensor("b")])
    in_order.Job(lambda: None, [torch.ones(1)])
    assert made == [[Gpu.device], []]


def test_the_names_of_older_torch_versions_are_there():
    for old, new in {
        "_allgather_base": "all_gather_single",
        "_reduce_scatter_base": "reduce_scatter_single",
        "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
        "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
        "alltoall_base": "all_to_all_single",
    }.items():
        assert getattr(StagedProcessGroup, old) is getattr(StagedProcessGroup, new)


# -- how it is labelled -------------------------------------------------------


def on_cards(*cards):
    run = make_run(ranks=len(cards))
    records = (
        replace(record, environment={**record.environment, "card": card, "backend": "staged"})
        for record, card in zip(run.records, cards, strict=True)
    )
    return replace(run, device="cuda", backend="staged", records=tuple(records))


def test_a_run_says_which_ranks_shared_a_card_wherever_it_is_shown():
    shared = on_cards("GPU-a", "GPU-a", "GPU-a", "GPU-a")
    assert shared.title == "ddp: mlp on 4 ranks sharing one card"
    assert "messages through host memory" in shared.facts()
    assert canvas.where(shared) == "sharing one card, messages through host memory"
    assert on_cards("GPU-a", "GPU-b", "GPU-a", "GPU-b").title.endswith("on 4 ranks sharing 2 cards")
    assert on_cards("GPU-a", "GPU-b").title == "ddp: mlp on 2 ranks"  # a card each
    assert replace(shared, backend="nccl").cards_text == ""
    assert canvas.where(make_run(ranks=2)) == ""
