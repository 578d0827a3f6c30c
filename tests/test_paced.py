"""Paced links: the ring's results, held to the links' times; counts and order, and nothing left behind."""

import os
import signal
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import dpcourse as dc
from dpcourse.ledger import BETWEEN_HOSTS, COMMUNICATION, INSIDE_HOSTS, select
from dpcourse.models import Mlp
from dpcourse.ranks.processes import sleep_until
from dpcourse.scratch import messages
from dpcourse.scratch.work import start_all_gather, start_reduce_scatter
from dpcourse.theory import ring as ring_bytes
from tests.conftest import wait_until

pytestmark = pytest.mark.long

MODEL, STEPS = Mlp(features=16, width=64, depth=3), 2


def cluster(hosts, ranks_per_host=1, inter="1gbit", **more):
    return dc.Cluster(hosts=hosts, ranks_per_host=ranks_per_host, inter=inter, links="paced", **more)


# -- the same results as gloo's -----------------------------------------------


def own(length=7):
    """Whole numbers, so that sums are exact in any order, and a length that divides by no number of ranks."""
    return torch.arange(length) * (dist.get_rank() + 1.0)


def results(group):
    """In a rank: what every collective that the ring has gives in a group, whose ranks all call this."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    last = dist.get_global_rank(group, n - 1)
    found = {name: own() for name in ("sum", "average", "broadcast", "reduce")}
    dist.all_reduce(found["sum"], group=group)
    dist.all_reduce(found["average"], group=group)  # gloo has no average
    found["average"] /= n
    dist.broadcast(found["broadcast"], last, group)
    dist.reduce(found["reduce"], last, group=group)
    if rank != n - 1:
        del found["reduce"]  # gloo leaves partial sums there
    whole, piece, rows = torch.empty(7 * n), torch.empty(3), [torch.empty(7) for _ in range(n)]
    dist.all_gather_into_tensor(whole, own(), group=group)
    dist.reduce_scatter_tensor(piece, own(3 * n), group=group)
    dist.all_gather(rows, own(), group=group)
    gathered = [torch.empty(7) for _ in range(n)] if rank == n - 1 else None
    dist.gather(own(), gathered, last, group)
    scattered = torch.empty(7)
    dist.scatter(scattered, [own() + k for k in range(n)] if rank == n - 1 else None, last, group)
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank}, group)
    dist.barrier(group)
    more = {"whole": whole, "piece": piece, "rows": rows, "gathered": gathered, "scattered": scattered}
    return found | more | {"objects": objects, "scratch": scratch_results(group)}


def scratch_results(group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    works = [start_reduce_scatter(own(), group), start_all_gather(own(), group)]
    received = torch.empty(7)
    messages.exchange(own(), (rank + 1) % n, received, (rank - 1) % n, group)
    return [received, *(work.wait() for work in reversed(works))]


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def on_both():
    """In a rank: results of the paced group, and of gloo, over all ranks and over some."""
    n = dist.get_world_size()
    chosen = sorted({0, n - 1})
    paced = {"all": dist.group.WORLD, "some": dist.new_group(chosen)}
    gloo = {"all": dist.new_group(backend="gloo"), "some": dist.new_group(chosen, backend="gloo")}
    names = ["all", "some"] if dist.get_rank() in chosen else ["all"]
    kinds = {type(paced[name]).__name__ for name in names}
    return kinds, [(results(paced[name]), results(gloo[name])) for name in names]


@pytest.mark.parametrize(("hosts", "ranks_per_host"), [(2, 1), (3, 1), (5, 1), (2, 2)])
def test_every_collective_gives_what_gloo_gives(hosts, ranks_per_host):
    links = cluster(hosts, ranks_per_host, intra="10gbit", latency="10us")
    for kinds, pairs in dc.launch(on_both, cluster=links, everything=True):
        assert kinds == {"PacedProcessGroup"}
        for paced, gloo in pairs:
            assert same(paced, gloo)
            wrong = paced | {"piece": paced["piece"] + 1}
            assert not same(wrong, gloo)


def in_a_mesh():
    """In a rank: where a mesh of 2 x 2 sends what it shards, and the tensor put together again."""
    from dpcourse.network.paced import SentCounter

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("hosts", "ranks"))
    counter, sent = SentCounter(), []
    for name in ("hosts", "ranks"):
        dist.all_reduce(torch.ones(8), group=mesh.get_group(name))
        sent.append(counter.sent_since_last())
    sharded = distribute_tensor(torch.arange(6.0), mesh, [Shard(0), Shard(0)])
    assert isinstance(sharded, DTensor)
    return sent, sharded.full_tensor().tolist()


def test_a_group_of_a_mesh_knows_which_hosts_its_ranks_are_on():
    across, inside = {BETWEEN_HOSTS: 32, INSIDE_HOSTS: 0}, {BETWEEN_HOSTS: 0, INSIDE_HOSTS: 32}
    found = dc.launch(in_a_mesh, cluster=cluster(2, 2), everything=True)
    assert found == [([across, inside], [0, 1, 2, 3, 4, 5])] * 4


def sent_in_a_ring():
    from dpcourse.network.paced import SentCounter

    counter = SentCounter()
    dist.all_reduce(torch.ones(1001))
    dist.barrier()
    return counter.sent_since_last()


def test_what_is_sent_is_counted_by_where_it_goes_to_the_byte():
    for rank, sent in enumerate(dc.launch(sent_in_a_ring, cluster=cluster(2, 2))):
        way, other = (INSIDE_HOSTS, BETWEEN_HOSTS) if rank % 2 == 0 else (BETWEEN_HOSTS, INSIDE_HOSTS)
        parts = (ring_bytes.all_reduce_sent_exactly(length, 4, 4, rank) for length in (1001, 1))
        assert sent == {way: sum(parts), other: 0}  # the next rank of the ring is here, or on the other host


# -- held ---------------------------------------------------------------------


def arrives_early(group, latency_seconds):
    """In two ranks: whether a message is there before it can be. The sender's clock travels with it."""
    stamp = torch.zeros(1, dtype=torch.float64)
    if dist.get_rank() == 0:
        stamp[0] = time.monotonic()
        messages.send(stamp, 1, group)
    else:
        messages.receive(stamp, 0, group)
    return dist.get_rank() == 1 and time.monotonic() < stamp.item() + latency_seconds


def early_ones():
    from dpcourse.network import ring

    found = [arrives_early(None, 0.5)]
    ring.make = ring.RingProcessGroup  # groups that hold nothing
    return [*found, arrives_early(dist.new_group(), 0.5)]


def test_a_message_is_there_after_its_latency_and_one_that_is_not_held_is_noticed():
    assert dc.launch(early_ones, cluster=cluster(2, latency="500ms"))[1] == [False, True]


def incast():
    """In a rank: when it started its part of an incast, and when its messages were over."""
    group, n = dist.group.WORLD, dist.get_world_size()
    ends, wait = [], group.cards.wait

    def noted(key, more_seconds):
        ends.append(wait(key, more_seconds))
        return ends[-1]

    group.cards.wait = noted
    start = time.monotonic()
    if dist.get_rank():
        messages.send(torch.ones(25_000), 0)
    else:
        into = [(torch.empty(25_000), source) for source in range(1, n)]
        for work in messages.start([], into):
            work.wait()
    return start, ends


def test_messages_into_one_card_share_it():
    each = 100_000 / 12.5e6  # at 100 Mbit/s
    (_, received), *senders = dc.launch(incast, cluster=cluster(4, inter="100mbit"))
    assert sorted(received) == sorted(end for _, ends in senders for end in ends)  # both sides know one time
    assert max(received) >= min(start for start, _ in senders) + 3 * each


def late_wakers():
    """In a rank that wakes 20 ms late: when an all-reduce was asked for and over, with and without care."""
    from dpcourse.network import cards, paced

    cards.sleep_until = lambda seconds: sleep_until(seconds + 0.02)
    found = [asked_and_over()]
    paced._start_seconds = lambda: None
    return [*found, asked_and_over()]


def asked_and_over():
    group, ends = dist.group.WORLD, []
    wait = type(group.cards).wait

    def noted(key, more_seconds):
        ends.append(wait(group.cards, key, more_seconds))
        return ends[-1]

    group.cards.wait = noted
    before = time.monotonic()
    work = dist.all_reduce(torch.ones(12_500), async_op=True)
    after = time.monotonic()
    work.wait()
    return before, after, max(ends)


def test_what_a_rank_is_late_by_does_not_add_up_over_the_messages_of_a_collective():
    num_bytes = ring_bytes.all_reduce_sent_exactly(12_500, 4, 4, 0)  # in 6 messages, one after another
    found = dc.launch(late_wakers, cluster=cluster(4, inter="20mbit"))
    careful, careless = zip(*found, strict=True)
    (_, after, end), (before, _, careless_end) = (map(max, zip(*x, strict=True)) for x in (careful, careless))
    assert end <= after + num_bytes / 2.5e6 + 1e-6
    assert careless_end >= before + num_bytes / 2.5e6 + 5 * 0.02


def goes_on():
    """In a rank: whether collectives that are under way leave the rank and its messages alone."""
    tensors = [torch.ones(10_000) for _ in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    is_over_at_once = works[2].is_completed()
    received, other = torch.zeros(5_000), 1 - dist.get_rank()
    messages.exchange(torch.full((5_000,), 7.0), other, received, other)  # as long as a collective's own
    result = works[1].get_future().wait()[0]
    are_over = [work.is_completed() for work in works[:2]]  # in order
    works[2].wait()
    return is_over_at_once, received.unique().tolist(), are_over, result.sum().item(), tensors[2].sum().item()


def test_collectives_go_on_while_the_rank_does_something_else_and_end_in_order():
    found = dc.launch(goes_on, cluster=cluster(2, inter="1mbit"))
    assert found == [(False, [7], [True, True], 20_000, 20_000)] * 2


def without_limits():
    group = dist.group.WORLD
    dist.all_reduce(torch.ones(5))
    return group.cards.capacities, group.cards.end(0)


def test_ranks_of_one_host_without_a_limit_are_not_held():
    one = dc.Cluster(hosts=1, ranks_per_host=2, links="paced")
    assert dc.launch(without_limits, cluster=one) == [({}, None)] * 2


# -- strategies -----------------------------------------------------------------


@pytest.fixture(scope="module")
def losses_of_one_rank():
    return dc.train("single", model=MODEL, steps=STEPS).mean_losses


@pytest.mark.parametrize(
    ("name", "options", "hosts", "ranks_per_host"),
    [
        ("ddp", {"bucket_cap_mb": 0.02}, 3, 1),
        ("fsdp1", {"sharding": "FULL_SHARD"}, 2, 1),
        ("fsdp2", {"mesh": (2, 2)}, 2, 2),
        ("zero1", {}, 2, 1),
        ("scratch-ddp", {"bucket_cap_mb": 0.02}, 2, 1),
        ("scratch-zero2", {}, 2, 1),
        ("scratch-fsdp", {}, 2, 1),
    ],
)
def test_strategies_train_as_on_one_rank_with_the_calls_that_are_expected(
    name, options, hosts, ranks_per_host, losses_of_one_rank
):
    links = cluster(hosts, ranks_per_host)
    size = {"batch_size": 18} if hosts == 3 else {}
    run = dc.train(name, model=MODEL, steps=STEPS, cluster=links, **size, **options)
    alone = losses_of_one_rank
    if size:
        alone = dc.train("single", model=MODEL, steps=STEPS, **size).mean_losses
    assert run.mean_losses == pytest.approx(alone, abs=1e-5)
    assert run.traffic.is_exact()  # each call once, though another thread carries it out
    calls = [
        t for t in run.traffic.expected if t.phase != "init" and t.rank == 0 and t.collective != "barrier"
    ]
    assert len(select(run.timeline.measured, lane=COMMUNICATION, rank=0)) == len(calls)


# -- what goes wrong --------------------------------------------------------------


def wrong_size():
    whole = torch.empty(5)
    work = dist.all_gather_into_tensor(whole, torch.ones(2), async_op=True)
    with pytest.raises(ValueError, match="has 5 of 5 numbers, and was given a piece of 2"):
        work.wait()
    with pytest.raises(RuntimeError, match="has 5 of 5 numbers"):
        work.get_future().wait()
    return work.is_completed(), work.is_success()


def test_an_error_in_the_thread_of_collectives_reaches_who_waits():
    assert dc.launch(wrong_size, cluster=cluster(1, 1, inter=None)) == [(True, False)]


def one_too_few():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(4))


def test_a_collective_that_a_rank_never_joins_is_judged_before_the_deadline():
    words = r"rank 1 finished after 0 collectives, rank 0 waits in all_reduce #1 of \[4\] float32"
    with pytest.raises(dc.RankError, match=words) as caught:  # as on gloo, which torch's recorder knows
        dc.launch(one_too_few, cluster=cluster(2), deadline_seconds=40)
    assert caught.value.kind == "hang"


def one_is_told():
    told = torch.ones(1) * (1 - dist.get_rank())
    dist.broadcast(told, 0)
    return told.item()


def test_a_rank_that_sleeps_until_a_message_is_there_is_not_judged_though_the_sender_has_left():
    assert dc.launch(one_is_told, cluster=cluster(2, latency="4s")) == [1, 1]


def sends_for_long():
    dist.all_reduce(torch.ones(10**6))  # 8 seconds and more at 4 Mbit/s


def test_a_deadline_ends_ranks_that_sleep_until_a_message_is_over():
    with pytest.raises(dc.RankError, match="deadline"):
        dc.launch(sends_for_long, cluster=cluster(2, inter="1mbit"), deadline_seconds=3)


def says_where_it_is(folder):
    (folder / f"rank{dist.get_rank()}").write_text(str(os.getpid()))
    dist.all_reduce(torch.ones(10**6))  # 32 seconds at 1 Mbit/s


def test_an_interrupt_ends_ranks_that_sleep_and_leaves_nothing(tmp_path, monkeypatch):
    """The cell's thread is this one; another one interrupts it once both ranks are under way."""
    places, files = tmp_path / "places", tmp_path / "files"
    places.mkdir(), files.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(files))

    def interrupt():
        assert wait_until(lambda: len(list(places.iterdir())) == 2, 40)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        dc.launch(says_where_it_is, places, cluster=cluster(2, inter="1mbit"), deadline_seconds=50)
    thread.join()
    assert wait_until(lambda: not any(psutil.pid_exists(int(file.read_text())) for file in places.iterdir()))
    assert list(files.iterdir()) == []
