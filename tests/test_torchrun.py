"""Ranks that exist already are joined, and say in words what keeps them apart.

Torchrun's own processes take seconds each to start (tests/test_machines.py has them); here launched ranks get
the environment and the store that torchrun gives, which is all that is asked of it.
"""

import os
import time
from collections.abc import Callable
from typing import Any

import pytest

import dpcourse as dc
from dpcourse.ledger import COUNTS
from dpcourse.ranks import meeting, torchrun

pytestmark = pytest.mark.long

MEMBER = torchrun.Member(1, 4, 1, 2, 0, 2, 29500, "127.0.0.1")


def under_torchrun(function: Callable[..., Any], *args: Any) -> Any:
    """Be a rank of torchrun's, two on one host, and call `function`; give what it raises as text."""
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    launched = dist.distributed_c10d._get_default_store()
    if rank == 0:
        # An attribute, so that it serves the others until this process ends.
        under_torchrun.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        launched.set("port", str(under_torchrun.store.port))
    port = int(launched.get("port"))
    dist.destroy_process_group()
    place = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
    place |= {"GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(TORCHELASTIC_RUN_ID="job", TORCHELASTIC_USE_AGENT_STORE="True")
    try:
        return function(*args)
    except (dc.RankError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def launch_under_torchrun(function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    return dc.launch(under_torchrun, function, *args, ranks=2, everything=True, **options)


# -- finding -----------------------------------------------------------------------------------------------


def set_place(monkeypatch: pytest.MonkeyPatch, **changed: str) -> None:
    numbers = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
    numbers |= {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "host0", "MASTER_PORT": "29500"}
    numbers |= {"TORCHELASTIC_RUN_ID": "job"}
    for name, value in (numbers | changed).items():
        monkeypatch.setenv(name, value)


def test_a_process_of_torchruns_knows_its_place(monkeypatch):
    set_place(monkeypatch)
    assert torchrun.found() == torchrun.Member(5, 8, 1, 4, 1, 2, 29500, "host0")


def test_a_plain_process_and_a_launched_rank_are_none_of_torchruns(monkeypatch):
    assert torchrun.found() is None
    assert dc.launch(torchrun.found) == [None, None]
    set_place(monkeypatch)
    monkeypatch.delenv("GROUP_RANK")
    assert torchrun.found() is None


def test_an_environment_that_torchrun_would_not_make_is_refused(monkeypatch):
    set_place(monkeypatch, LOCAL_RANK="first")
    with pytest.raises(ValueError, match=r"LOCAL_RANK='first'.*not all of them numbers; start with torchrun"):
        torchrun.found()


def test_the_cluster_is_what_torchrun_started(monkeypatch):
    set_place(monkeypatch)
    cluster = dc.Cluster()
    assert (cluster.num_ranks, cluster.hosts, cluster.ranks_per_host) == (8, 2, 4)
    assert dc.Cluster(ranks=8) == cluster
    with pytest.raises(ValueError, match=r"ranks=4 was asked for, and torchrun has started 8"):
        dc.Cluster(ranks=4)
    with pytest.raises(ValueError, match=r"emulated links were asked for in a process that torchrun"):
        dc.Cluster(hosts=2, ranks_per_host=4, inter="1gbit")


# -- training ----------------------------------------------------------------------------------------------


def trained_twice() -> list[dict[str, Any]]:
    """Two runs in one process, as a script may have them: the second finds nothing of the first."""
    first, second = dc.train("ddp"), dc.train("fsdp2", mesh=(1, 2))
    return [
        {
            "losses": run.losses,
            "norms": [record.parameter_norms for record in run.records],
            "held": [
                [h for h in r.holdings if h.phase != "peak"] for r in run.records
            ],  # it depends on timing
            "moved": [[t for t in r.transfers if t.collective not in COUNTS] for r in run.records],
            "is_exact": (run.memory.is_exact(), run.traffic.is_exact()),
        }
        for run in (first, second)
    ]


def test_a_run_is_the_same_on_joined_ranks_as_on_launched_ones_and_all_ranks_have_it():
    one, other = launch_under_torchrun(trained_twice)
    assert one == other
    assert one == trained_twice()
    assert [run["is_exact"] for run in one] == [(True, True)] * 2


def per_rank() -> list[Any]:
    return dc.launch(lambda own, shared: (own, shared), 7, per_rank=[("a",), ("b",)])


def test_launch_calls_the_function_in_the_ranks_that_exist():
    assert launch_under_torchrun(per_rank) == [[("a", 7), ("b", 7)]] * 2


# -- what goes wrong ---------------------------------------------------------------------------------------


def join(function: Callable[[], Any], backend: str | None = None, seconds: float = 30.0) -> list[Any]:
    return dc.launch(function, backend=backend, deadline_seconds=seconds)


def fail_on_rank_1() -> None:
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        raise KeyError("batch")
    dist.all_reduce(torch.zeros(1))


def test_every_rank_has_the_first_cause_of_a_failure():
    one, other = launch_under_torchrun(join, fail_on_rank_1)
    assert one == other
    assert one.startswith("RankError: rank 1 of 2 raised KeyError: 'batch'")
    assert "in fail_on_rank_1" in one


def join_with_different_backends() -> Any:
    return join(bytes, backend=["gloo", "ring"][int(os.environ["RANK"])])


def test_ranks_that_would_do_different_things_are_told_what():
    for said in launch_under_torchrun(join_with_different_backends):
        assert "would not compute on the same (cpu, gloo and cpu, ring); give device= and backend=" in said


def call_different_collectives() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.zeros(4, dtype=[torch.int32, torch.float32][dist.get_rank()]))


def test_collectives_that_differ_and_passed_silently_are_refused():
    for said in launch_under_torchrun(join, call_different_collectives):
        assert "the ranks called different collectives, so the numbers are wrong" in said
        assert "int32" in said
        assert "float32" in said


def join_alone() -> Any:
    return join(bytes, seconds=1.0) if os.environ["RANK"] == "0" else None


def test_a_rank_that_does_not_come_is_named_by_the_deadline():
    said, _ = launch_under_torchrun(join_alone)
    assert "rank 0 of 2, on host 0 of 1, which meet at 127.0.0.1:" in said
    assert "waited for rank 1, which did not come within 1 s; check that the hosts reach each other" in said
    assert "GLOO_SOCKET_IFNAME" in said


def join_over_a_card_that_is_not_there() -> Any:
    os.environ["GLOO_SOCKET_IFNAME"] = "nocard9"
    return join(bytes)


def test_a_card_that_is_not_there_is_said_in_words():
    for said in launch_under_torchrun(join_over_a_card_that_is_not_there):
        assert "could not join the others" in said
        assert "nocard9" in said
        assert "names each host's card" in said


def join_twice() -> Any:
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return join(bytes)


def test_a_process_that_has_a_group_of_its_own_is_told_to_leave_it():
    for said in launch_under_torchrun(join_twice):
        assert "has joined a process group already" in said
        assert "destroy_process_group()" in said


def wait_for_a_peer_that_sleeps() -> None:
    import torch
    import torch.distributed as dist

    if dist.get_rank() == 1:
        time.sleep(100)
    dist.all_reduce(torch.zeros(3))


def test_a_hang_ends_the_process_at_the_deadline_and_says_where_each_rank_stood():
    with pytest.raises(dc.RankError) as found:
        launch_under_torchrun(join, wait_for_a_peer_that_sleeps, None, 2.0)
    said = str(found.value)
    assert "exit code 1" in said
    assert "the run passed its deadline of 2 s: rank 0 waits in all_reduce #1 of [3] float32" in said
    assert "rank 1 runs" in said
    assert "check that" not in said  # both have answered: nothing is wrong with the network


def test_the_card_is_the_one_that_leads_to_where_the_ranks_meet():
    assert meeting._card_towards(MEMBER) in ("lo", "lo0")
    nowhere = torchrun.Member(1, 4, 1, 2, 0, 2, 29500, "no-such-host.invalid")
    assert meeting._card_towards(nowhere) is None
