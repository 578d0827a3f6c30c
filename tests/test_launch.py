"""Launching: as it should go, and each way in which it can go wrong."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np
import psutil
import pytest
import torch
import torch.distributed as dist

import dpcourse as dc
from dpcourse.ranks import service
from tests.conftest import is_alive, processes_below, processes_marked, wait_until


def reduced(value: float = 1.0) -> float:
    tensor = torch.full((3,), value * (dist.get_rank() + 1))
    dist.all_reduce(tensor)
    return tensor[0].item()


def nothing_is_left() -> bool:
    """Whether no process stands below the fork server; on a busy machine the last may be just ending."""
    return wait_until(lambda: not processes_below(service.current().pid))


# -- results ------------------------------------------------------------


def test_threads_of_a_rank_wait_asleep_so_that_a_busy_core_goes_to_who_computes():
    assert dc.launch(lambda: 1, ranks=1) == [1]
    assert psutil.Process(service.current().pid).environ()["OMP_WAIT_POLICY"] == "PASSIVE"


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5])
def test_one_result_a_rank_in_order(num_ranks):
    assert dc.launch(lambda: (dist.get_rank(), reduced()), ranks=num_ranks) == [
        (rank, num_ranks * (num_ranks + 1) / 2) for rank in range(num_ranks)
    ]


def test_arguments_and_keywords_arrive_and_tensors_come_back():
    def scaled(tensor, factor):
        return tensor * factor + dist.get_rank()

    first, second = dc.launch(scaled, torch.ones(3), factor=2.0)
    assert torch.equal(first, torch.full((3,), 2.0))
    assert torch.equal(second, torch.full((3,), 3.0))


def test_a_rank_is_given_its_own_arguments_only():
    def secrets_in_memory(own, common):
        memory = open("/proc/self/mem", "rb", buffering=0)  # noqa: SIM115
        found = set()
        for line in open("/proc/self/maps"):  # noqa: SIM115
            start, end = (int(number, 16) for number in line.split()[0].split("-"))
            if " rw-p " in line and end - start < 1 << 27:
                memory.seek(start)
                found |= set(re.findall(rb"secret-of-rank-\d", memory.read(end - start)))
        return own, common, sorted(text.decode() for text in found)

    secrets = [f"secret-of-{'rank'}-{rank}" for rank in range(2)]
    results = dc.launch(secrets_in_memory, "all", per_rank=[(secret,) for secret in secrets])
    assert results == [(secret, "all", [secret]) for secret in secrets]


def test_per_rank_needs_one_tuple_a_rank():
    with pytest.raises(ValueError, match="per_rank has arguments for 1 ranks, and ranks=2"):
        dc.launch(reduced, per_rank=[(1.0,)])


def test_plain_results_are_never_unpickled():
    class Trap:
        def __reduce__(self):
            return os.abort, ()

    with pytest.raises(dc.RankError, match="a value of type Trap"):
        dc.launch(lambda: Trap(), plain=True)


def test_plain_results_carry_numbers_text_arrays_and_tensors():
    def values():
        return {
            "loss": [0.5, float("inf"), None, True],
            "name": "é",
            "a": np.arange(3),
            "t": torch.ones(2, 2),
        }

    value = dc.launch(values, plain=True)[1]
    assert value["loss"] == [0.5, float("inf"), None, True]
    assert value["name"] == "é"
    assert np.array_equal(value["a"], np.arange(3))
    assert np.array_equal(value["t"], np.ones((2, 2), np.float32))


def test_groups_of_some_ranks_work():
    def pair_sum():
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        tensor = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(tensor, group=groups[dist.get_rank() // 2])
        return tensor.item()

    assert dc.launch(pair_sum, ranks=4) == [1.0, 1.0, 5.0, 5.0]


def scatter_and_more():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = torch.zeros(1)
    dist.scatter(mine, [torch.tensor([float(r)]) for r in range(world_size)] if rank == 0 else None, src=0)
    objects = [None]
    dist.scatter_object_list(objects, list(range(world_size)) if rank == 0 else None, src=0)
    gathered = [torch.zeros(1) for _ in range(world_size)] if rank == 0 else None
    dist.gather(mine, gathered, dst=0)
    everything = [None] * world_size
    dist.all_gather_object(everything, "x" * (rank + 1))
    return mine.item(), objects[0], len(everything[-1])


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_collectives_in_which_ranks_rightly_differ_are_let_through(num_ranks):
    assert dc.launch(scatter_and_more, ranks=num_ranks) == [
        (float(rank), rank, num_ranks) for rank in range(num_ranks)
    ]


def test_threads_share_the_cores():
    cores = len(os.sched_getaffinity(0))
    assert dc.launch(lambda: torch.get_num_threads(), ranks=2) == [max(1, cores // 2)] * 2
    assert dc.launch(lambda: torch.get_num_threads(), ranks=1) == [cores]
    assert dc.launch(lambda: torch.get_num_threads(), ranks=4) == [max(1, cores // 4)] * 4


def test_cuda_that_the_notebook_has_used_is_unknown_to_the_ranks(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_initialized", True)  # a fork of this process would inherit it
    assert dc.launch(lambda: torch.cuda.is_initialized()) == [False, False]


def test_environment_and_folder_are_the_notebooks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPCOURSE_TEST_SETTING", "now")

    def seen():
        return os.getcwd(), os.environ["DPCOURSE_TEST_SETTING"], os.environ["RANK"], os.environ["EXTRA"]

    assert dc.launch(seen, env={"EXTRA": "yes"})[1] == (str(tmp_path), "now", "1", "yes")


def test_a_rank_waits_until_the_others_have_returned():
    def slow_partner():
        time.sleep(0.5 * dist.get_rank())
        return dist.get_rank()

    assert dc.launch(slow_partner, ranks=3) == [0, 1, 2]


def test_files_are_flushed_when_ranks_leave(tmp_path):
    def write():
        import atexit

        file = open(tmp_path / f"{dist.get_rank()}.txt", "w")  # noqa: SIM115  left open on purpose
        file.write("kept")
        atexit.register(file.close)

    dc.launch(write)
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in range(2)] == ["kept", "kept"]


# -- refused before anything starts ------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: dc.launch(3), TypeError, "launch runs a function; it was given a int"),
        (lambda: dc.launch(reduced, ranks=0), ValueError, "ranks=0: give a number from 1"),
        (lambda: dc.launch(reduced, ranks=2.5), ValueError, "ranks=2.5: give a whole number"),
        (lambda: dc.launch(reduced, ranks=True), ValueError, "ranks=True: give a whole number"),
        (lambda: dc.launch(reduced, ranks=100_000), ValueError, "ranks=100000: give a number from 1"),
        (lambda: dc.launch(reduced, deadline_seconds=0), ValueError, "give a number of seconds above 0"),
        (lambda: dc.launch(reduced, deadline_seconds=float("inf")), ValueError, "up to 1,000,000"),
        (lambda: dc.launch(reduced, deadline_seconds=None), ValueError, "deadline_seconds=None"),
        (lambda: dc.launch(reduced, per_rank=[1, 2]), TypeError, "one tuple of arguments for each rank"),
        (lambda: dc.launch(reduced, env={"A": 1}), ValueError, "env={'A': 1}: give names and values as text"),
        (lambda: dc.launch(reduced, env={"A=B": "1"}), ValueError, "give names and values as text"),
        (lambda: dc.launch(reduced, device="tpu"), ValueError, "device='tpu'"),
        (lambda: dc.launch(reduced, threading.Lock()), TypeError, "cannot be sent to another process"),
    ],
)
def test_bad_requests_are_refused_in_words(call, kind, message, monkeypatch):
    monkeypatch.setattr(service, "current", lambda: pytest.fail("a process was started"))
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value)


def test_a_gpu_that_shares_the_machines_memory_has_as_much_as_the_machine(monkeypatch):
    from dpcourse.ranks import cluster

    monkeypatch.setattr(cluster, "ask_nvidia_smi", lambda *_: "0, GPU-a, NVIDIA GB10, [N/A]\n")
    cluster._nvidia_smi.cache_clear()
    try:
        [(_, _, gpu)] = cluster._nvidia_smi()
    finally:
        cluster._nvidia_smi.cache_clear()
    assert gpu.memory_bytes == cluster.memory_bytes()


def test_more_ranks_than_gpus_is_refused_with_both_counts(tmp_path, monkeypatch):
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho '0, GPU-a, NVIDIA Test, 81559'\necho '1, GPU-b, NVIDIA Test, 81559'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    from dpcourse.ranks import cluster

    cluster._nvidia_smi.cache_clear()
    monkeypatch.setattr(cluster, "torch_has_cuda", lambda: True)
    try:
        assert [gpu.memory_bytes for gpu in cluster.gpus()] == [81559 << 20] * 2
        assert dc.Cluster(ranks=2).chosen_device == "cuda"
        assert dc.Cluster(ranks=3).chosen_device == "cpu"
        with pytest.raises(
            ValueError,
            match=r'3 ranks on GPUs .* 2 GPUs are visible; .* Ask for 2 ranks, .*, or for device="cpu"',
        ):
            dc.launch(reduced, ranks=3, device="cuda")
        monkeypatch.setattr(cluster, "torch_has_cuda", lambda: False)
        assert dc.Cluster(ranks=2).chosen_device == "cpu"
        with pytest.raises(ValueError, match="the installed torch is a build for the CPU alone"):
            dc.launch(reduced, ranks=2, device="cuda")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        assert len(cluster.gpus()) == 1
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert cluster.gpus() == ()
    finally:
        cluster._nvidia_smi.cache_clear()


def test_a_build_of_torch_is_told_by_its_files():
    from dpcourse.ranks import cluster

    assert cluster.torch_has_cuda() == (torch.version.cuda is not None)


def test_too_few_open_files_is_said(monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (80, 80))
    with pytest.raises(
        ValueError, match=r"8 ranks need 104 open files, and this process may have 80.*at most 3 ranks"
    ):
        dc.launch(reduced, ranks=8)


# -- ranks that fail ------------------------------------------------------------


def raising():
    if dist.get_rank() == 2:
        raise ValueError("bad batch")
    dist.all_reduce(torch.ones(2))


def exiting():
    if dist.get_rank() == 2:
        sys.exit(3)
    dist.all_reduce(torch.ones(2))


def killed():
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(2))


def crashing():
    if dist.get_rank() == 2:
        os.write(2, b"why it aborts\n")
        os.abort()
    dist.all_reduce(torch.ones(2))


def leaving():
    if dist.get_rank() == 2:
        os._exit(0)
    dist.all_reduce(torch.ones(2))


def out_of_memory():
    if dist.get_rank() == 2:
        torch.ones(1 << 50)
    dist.all_reduce(torch.ones(2))


@pytest.mark.parametrize(
    ("function", "kind", "said", "line"),
    [
        (raising, "raised", "rank 2 of 4 raised ValueError: bad batch", 'raise ValueError("bad batch")'),
        (exiting, "exited", "rank 2 of 4 called sys.exit(3)", "sys.exit(3)"),
        (killed, "died", "rank 2 of 4 was killed by SIGKILL; the machine may have run out of memory", ""),
        (crashing, "died", "rank 2 of 4 was killed by SIGABRT", "why it aborts"),
        (leaving, "exited", "rank 2 of 4 ended by itself with exit code 0 before its function returned", ""),
        (out_of_memory, "raised", "rank 2 of 4 raised RuntimeError", "torch.ones(1 << 50)"),
    ],
)
def test_the_rank_that_failed_first_is_named(function, kind, said, line):
    with pytest.raises(dc.RankError) as caught:
        dc.launch(function, ranks=4)
    error = caught.value
    assert str(error).startswith(said)
    assert (error.kind, error.rank, error.world_size) == (kind, 2, 4)
    assert line in str(error)
    assert line in error.traceback_text
    assert "closed by peer" not in str(error)
    assert nothing_is_left()


def test_an_error_that_follows_from_another_is_not_shown_as_the_cause():
    def peer_dies():
        if dist.get_rank() == 0:
            raise RuntimeError("[../gloo/pair.cc] Connection closed by peer [127.0.0.1]")
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(dc.RankError, match="rank 1 of 2 was killed by SIGKILL"):
        dc.launch(peer_dies)


def test_the_same_error_on_every_rank_is_said_once():
    def all_raise():
        raise KeyError("weights")

    with pytest.raises(dc.RankError) as caught:
        dc.launch(all_raise, ranks=3)
    assert str(caught.value).startswith(
        "rank 0 of 3 raised KeyError: 'weights' (2 other ranks raised the same)"
    )
    assert caught.value.exception_name == "KeyError"


def test_causes_are_kept():
    def chained():
        try:
            {}["a"]
        except KeyError as error:
            raise ValueError("no such weight") from error

    with pytest.raises(dc.RankError) as caught:
        dc.launch(chained, ranks=1)
    text = caught.value.traceback_text
    assert text.index("KeyError: 'a'") < text.index("ValueError: no such weight")


def test_a_result_that_cannot_travel_is_an_error_of_its_rank():
    with pytest.raises(dc.RankError, match="the Popen that was returned cannot be sent"):
        dc.launch(lambda: subprocess.Popen(["true"]), ranks=1)


def test_long_errors_are_cut_and_repeated_lines_said_once():
    def verbose():
        raise ValueError("x" * 70_000_000)

    def endless(depth=0):
        return endless(depth + 1)

    with pytest.raises(
        dc.RankError, match=r"raised ValueError: x+ \.\.\. \(70,000,0\d\d characters in all\)"
    ):
        dc.launch(verbose, ranks=1)
    with pytest.raises(dc.RankError, match="rank 0 of 1 raised RecursionError") as caught:
        dc.launch(endless, ranks=1)
    assert str(caught.value).count("return endless(depth + 1)") == 1
    assert "times more)" in str(caught.value)


def test_what_cannot_be_read_back_names_its_rank():
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(one)

    with pytest.raises(dc.RankError, match="what rank 0 of 1 returned cannot be read here"):
        dc.launch(lambda: Odd(1, 2), ranks=1)


def test_a_process_that_the_function_forked_never_speaks_for_the_rank(capfd):
    def fork_and_return():
        if os.fork() == 0 and dist.get_rank() == 1:
            raise KeyError("in the child")
        return os.getpid()

    pids = dc.launch(fork_and_return)
    assert len(set(pids)) == 2
    assert "KeyError: 'in the child'" in capfd.readouterr().err


def test_a_rank_may_close_or_replace_its_output(capfd):
    def quiet():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        sys.stdout.close()
        sys.stderr = None
        return 1

    assert dc.launch(quiet) == [1, 1]
    assert capfd.readouterr() == ("", "")


def test_an_error_survives_a_pickle():
    import pickle

    error = dc.RankError("rank 1 of 2 raised X", kind="raised", world_size=2, rank=1, detail="there")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.rank, copy.kind) == (str(error), 1, "raised")


# -- ranks that hang ------------------------------------------------------------


def one_batch_more():
    for _ in range(5 + dist.get_rank()):
        dist.all_reduce(torch.ones(72))


def different_operations():
    if dist.get_rank() == 0:
        dist.broadcast(torch.ones(3), 0)
    else:
        dist.all_reduce(torch.ones(3))


def swapped_order():
    calls = [lambda: dist.all_reduce(torch.ones(3)), lambda: dist.broadcast(torch.ones(3), 0)]
    for call in calls if dist.get_rank() == 0 else reversed(calls):
        call()


def unlike_sizes():
    dist.all_reduce(torch.ones(1_000_000 * (1 + dist.get_rank())))


def lonely_receiver():
    if dist.get_rank() == 1:
        dist.recv(torch.ones(2), 0)


def lonely_barrier():
    if dist.get_rank() == 1:
        dist.barrier()


def uneven_backward():
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    for _ in range(5 + dist.get_rank()):
        model(torch.ones(2, 4)).sum().backward()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            one_batch_more,
            [
                "rank 0 finished after 5 collectives",
                "rank 1 waits in all_reduce #6 of [72] float32",
                "dist.all_reduce(torch.ones(72))",
            ],
        ),
        (different_operations, ["rank 0 waits in broadcast #1", "rank 1 waits in all_reduce #1"]),
        (lonely_receiver, ["rank 0 finished", "rank 1 waits for a peer", "dist.recv(torch.ones(2), 0)"]),
        (lonely_barrier, ["rank 0 finished", "rank 1 waits in barrier #1"]),
        (uneven_backward, ["rank 0 finished", "rank 1 waits in all_reduce", "backward()"]),
    ],
)
def test_a_hang_that_is_certain_is_named_before_the_deadline(function, said):
    with pytest.raises(dc.RankError) as caught:
        dc.launch(function, ranks=2, deadline_seconds=50)
    assert caught.value.kind == "hang"
    assert all(words in str(caught.value) for words in said), str(caught.value)
    assert nothing_is_left()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (unlike_sizes, ["all_reduce #1 of [1000000] float32", "all_reduce #1 of [2000000] float32"]),
        (swapped_order, ["broadcast", "all_reduce"]),
        (
            lambda: dist.all_reduce(torch.ones(20, dtype=[torch.int32, torch.float32][dist.get_rank()])),
            ["int32", "float32"],
        ),
    ],
)
def test_collectives_that_differ_are_named_even_where_the_backend_lets_them_pass(function, said):
    with pytest.raises(dc.RankError) as caught:
        dc.launch(function, ranks=2, deadline_seconds=50)
    assert caught.value.kind in ("hang", "mismatch")
    assert all(words in str(caught.value) for words in said), str(caught.value)


def test_at_the_deadline_every_rank_is_placed():
    def both_receive():
        if dist.get_rank() == 2:
            while True:
                pass
        dist.recv(torch.ones(2), 1 - dist.get_rank())

    with pytest.raises(dc.RankError) as caught:
        dc.launch(both_receive, ranks=3, deadline_seconds=3)
    assert caught.value.kind == "deadline"
    assert "deadline of 3 s" in caught.value.summary
    assert "rank 0 waits for a peer" in str(caught.value)
    assert "rank 2 runs, at" in str(caught.value)
    assert nothing_is_left()


def late_then_busy():
    if dist.get_rank() == 1:
        time.sleep(3.2)
    dist.all_reduce(torch.ones(2))
    if dist.get_rank() == 0:
        time.sleep(2)


def late_sender():
    if dist.get_rank() == 1:
        time.sleep(3.2)
        dist.send(torch.ones(2), 0)
    else:
        dist.recv(torch.ones(2), 1)
        time.sleep(2)


def busy_subgroup():
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2))
    if dist.get_rank() < 2:
        for _ in range(450):
            dist.all_reduce(torch.ones(2), group=group)
        time.sleep(2)
    elif dist.get_rank() == 2:
        time.sleep(1)


def group_made_anew():
    path = os.path.join(os.environ["MEETING"], "store")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.ones(2))
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.FileStore(path, world_size), rank=rank, world_size=world_size)
    dist.broadcast(torch.ones(2), 0)


@pytest.mark.parametrize("function", [late_then_busy, late_sender, busy_subgroup, group_made_anew])
def test_a_right_program_is_never_judged_to_hang(function, tmp_path):
    assert dc.launch(function, ranks=3 if function is busy_subgroup else 2, env={"MEETING": str(tmp_path)})


def test_a_rank_that_is_merely_slow_is_left_alone():
    def late():
        time.sleep(3.0 * dist.get_rank())
        return reduced()

    assert dc.launch(late, deadline_seconds=30) == [3.0, 3.0]


# -- what is left ------------------------------------------------------------


def test_nothing_of_a_rank_outlives_its_run():
    mark = f"dpcourse-outliving-{os.getpid()}"

    def leave_children():
        daemon = "import os, time; os.setsid(); os.fork() and os._exit(0); time.sleep(300)"
        subprocess.Popen([sys.executable, "-c", daemon, mark])
        subprocess.Popen(["sleep", "300"], env={"MARK": mark}, start_new_session=True)
        return "left two"

    assert dc.launch(leave_children, ranks=2) == ["left two"] * 2
    assert processes_marked(mark) == []


def test_a_killed_rank_is_named_while_its_child_still_holds_its_sockets():
    def leave_a_child_and_die():
        if dist.get_rank() == 0 and os.fork() == 0:
            os.setsid()
            time.sleep(300)
        os.kill(os.getpid(), signal.SIGKILL) if dist.get_rank() == 0 else time.sleep(300)

    with pytest.raises(dc.RankError, match="rank 0 of 2 was killed by SIGKILL"):
        dc.launch(leave_a_child_and_die, deadline_seconds=50)
    assert nothing_is_left()


def test_a_stopped_rank_is_ended_at_the_deadline():
    def stop():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.barrier()

    with pytest.raises(dc.RankError, match="rank 1 did not answer") as caught:
        dc.launch(stop, deadline_seconds=4)
    assert caught.value.kind == "deadline"
    assert nothing_is_left()


def test_a_run_that_dies_with_its_notebook_leaves_nothing(tmp_path):
    mark = f"dpcourse-orphan-{os.getpid()}"
    script = tmp_path / "notebook.py"
    script.write_text(
        "import dpcourse as dc, time, os, sys\n"
        "def wait():\n    open(os.environ['READY'] + os.environ['RANK'], 'w'); time.sleep(300)\n"
        "dc.launch(wait, ranks=2)\n"
    )
    environment = {**os.environ, "MARK": mark, "READY": str(tmp_path / "ready"), "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, str(script)], env=environment)
    assert wait_until(lambda: (tmp_path / "ready0").exists() and (tmp_path / "ready1").exists(), 50)
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not processes_marked(mark))
    assert list(tmp_path.glob("dpcourse-*")) == []


@pytest.mark.parametrize("level", ["server", "leader"])
def test_a_killed_server_or_leader_ends_the_run_and_the_next_one_works(level):
    def kill_above():
        server_of = {"leader": psutil.Process().parent(), "server": psutil.Process().parent().parent()}
        if dist.get_rank() == 0:
            server_of[level].kill()
        time.sleep(100)

    with pytest.raises(dc.RankError, match="the process that keeps the ranks has gone"):
        dc.launch(kill_above, deadline_seconds=50)
    assert dc.launch(reduced) == [3.0, 3.0]


@pytest.mark.parametrize("moment", ["starts", "is ready"])
def test_a_server_that_is_killed_while_it_is_asked_is_replaced(moment, monkeypatch):
    from dpcourse.ranks import service

    if moment == "starts":
        service.close()
    server = service.current()
    os.kill(server.pid, 9)
    assert wait_until(lambda: not is_alive(server.pid))
    monkeypatch.setattr(server, "is_alive", lambda: server._process.returncode is None)  # as if just killed
    assert dc.launch(reduced) == [3.0, 3.0]
    assert service.current().pid != server.pid


def test_a_server_that_never_lives_ends_the_launch_with_its_last_words(monkeypatch):
    from dpcourse.ranks import service

    service.close()
    monkeypatch.setattr(service, "_enclosing", ("/bin/sh", "-c", "echo no memory >&2; exit 3", "sh"))
    with pytest.raises(RuntimeError, match="the fork server has ended:\nno memory"):
        dc.launch(reduced)
    monkeypatch.undo()
    assert dc.launch(reduced) == [3.0, 3.0]


def test_many_launches_leave_no_file_thread_or_socket():
    dc.launch(reduced)
    me = psutil.Process()
    before = me.num_fds(), me.num_threads(), len(me.net_connections("all"))
    for _ in range(10):
        dc.launch(reduced)
    assert (me.num_fds(), me.num_threads(), len(me.net_connections("all"))) == before
    assert nothing_is_left()


def test_threads_launch_at_once():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda value: dc.launch(reduced, value), range(8)))
    assert results == [[3.0 * value] * 2 for value in range(8)]


def test_no_port_is_fixed():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 29500))
        taken.listen()
        assert dc.launch(reduced) == [3.0, 3.0]


def test_four_processes_launch_at_once(tmp_path):
    script = tmp_path / "notebook.py"
    script.write_text(
        "import dpcourse as dc, sys\n"
        "def add(seed):\n"
        "    import torch, torch.distributed as dist\n"
        "    t = torch.full((5,), float(seed + dist.get_rank())); dist.all_reduce(t); return t[0].item()\n"
        "print([dc.launch(add, int(sys.argv[1]), ranks=2) for _ in range(3)])\n"
    )
    run = [sys.executable, str(script)]
    notebooks = [subprocess.Popen([*run, str(i)], stdout=subprocess.PIPE, text=True) for i in range(4)]
    outputs = [notebook.communicate(timeout=55)[0].strip() for notebook in notebooks]
    assert outputs == [str([[2.0 * i + 1] * 2] * 3) for i in range(4)]


@pytest.mark.skipif(
    os.getuid() != 0 or not sys.platform.startswith("linux"), reason="needs root to name a host"
)
@pytest.mark.parametrize("address", [None, "203.0.113.7"], ids=["does not resolve", "another machine"])
def test_a_host_name_that_leads_nowhere_changes_nothing(tmp_path, address):
    script = tmp_path / "notebook.py"
    script.write_text(
        "import dpcourse as dc\n"
        "def add():\n"
        "    import torch, torch.distributed as dist\n"
        "    t = torch.ones(2); dist.all_reduce(t); return t[0].item()\n"
        "print(dc.launch(add, ranks=2))\n"
    )
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n" + (f"{address} nowhere.invalid\n" if address else ""))
    shell = f"mount --bind {hosts} /etc/hosts && hostname nowhere.invalid && exec {sys.executable} {script}"
    command = ["unshare", "--uts", "--mount", "sh", "-c", shell]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55)
    assert (done.stdout.strip(), done.stderr.strip()) == ("[2.0, 2.0]", "")


# -- printing ------------------------------------------------------------


def test_what_ranks_print_is_whole_and_marked(capfd):
    def talk():
        print("plain")
        print("to stderr", file=sys.stderr)
        os.write(1, b"by the system\n")
        print("x" * 1_000_000)
        sys.stdout.write("without an end")

    dc.launch(talk, ranks=2)
    out, err = capfd.readouterr()
    for rank in range(2):
        mine = [line for line in out.splitlines() if line.startswith(f"[rank {rank}] ")]
        texts = [line.removeprefix(f"[rank {rank}] ") for line in mine]
        assert texts == ["plain", "by the system", "x" * 1_000_000, "without an end"]
        assert f"[rank {rank}] to stderr\n" in err
    assert len(out.splitlines()) == 8


def test_a_rank_with_all_warnings_on_prints_nothing_of_ours(capfd):
    def strict():
        import warnings

        warnings.simplefilter("always")
        return reduced()

    dc.launch(strict)
    assert capfd.readouterr() == ("", "")


def test_output_comes_while_the_run_goes_on(tmp_path):
    script = tmp_path / "notebook.py"
    script.write_text(
        "import dpcourse as dc, time\n"
        "def talk():\n    print('early'); time.sleep(300)\n"
        "dc.launch(talk, ranks=1, deadline_seconds=400)\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "[rank 0] early\n"
    finally:
        process.kill()
        process.wait()


def test_reference_output_is_in_order_of_rank(capfd, monkeypatch):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")

    def late_first():
        time.sleep(0.3 * (1 - dist.get_rank()))
        print("here")

    dc.launch(late_first, ranks=2)
    assert capfd.readouterr().out == "[rank 0] here\n[rank 1] here\n"


@dataclass
class Point:
    x: int


def test_classes_keep_their_identity():
    assert dc.launch(lambda p: Point(p.x + dist.get_rank()), Point(1)) == [Point(1), Point(2)]


def _asked_while_groups_are_made() -> int:
    """Ask where this rank stands, again and again, while its main thread makes groups; count the failures."""
    import threading

    import torch.distributed as dist

    from dpcourse.ranks import witness

    is_over, failures = threading.Event(), []

    def ask():
        while not is_over.is_set():
            try:
                witness.calls()
            except RuntimeError as error:
                failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(60):
        dist.new_group([0, 1])
    is_over.set()
    asking.join()
    return len(failures)


def test_a_rank_can_be_asked_where_it_stands_while_it_makes_groups():
    assert dc.launch(_asked_while_groups_are_made) == [0, 0]
