"""Many learners on one machine: who has which card, who waits for it, in which order."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import pytest

import dpcourse as dc
from dpcourse.measure import cores
from dpcourse.measure.cores import CoreUse
from dpcourse.ranks import cluster, progress, queueing
from dpcourse.strategies import find
from tests.conftest import wait_until
from tests.test_progress_line import Terminal
from tests.test_run import make_run

ANN, BOB = 65431, 65430
CUT_IN_SLICES = """\
case "$*" in
  -L)
    echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aa)"
    echo "  MIG 1g.5gb      Device  0: (UUID: MIG-11)"
    echo "  MIG 2g.10gb     Device  1: (UUID: MIG-22)"
    echo "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bb)" ;;
  *) echo "0, GPU-aa, NVIDIA A100-SXM4-40GB, 40960"; echo "1, GPU-bb, NVIDIA A100-SXM4-40GB, 40960" ;;
esac
"""


@pytest.fixture(name="nvidia_smi")
def nvidia_smi_fixture(tmp_path, monkeypatch):
    """Put a nvidia-smi on PATH that says what it is given to say."""

    def put(lines: str) -> None:
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{lines}")
        (tmp_path / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        cluster._nvidia_smi.cache_clear()

    yield put
    cluster._nvidia_smi.cache_clear()


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        ("1", ["GPU-bb"]),
        ("GPU-b", ["GPU-bb"]),
        ("MIG-22", ["MIG-22"]),
        ("MIG-11,MIG-22", ["MIG-11"]),  # CUDA gives a process one slice at most
        ("0", ["MIG-11"]),  # and a card that is cut means its first slice
        ("GPU-aa", ["MIG-11"]),
        ("MIG-33", []),
        (None, ["MIG-11"]),
    ],
)
def test_a_card_has_one_name_however_it_was_asked_for(visible, uuids, nvidia_smi, monkeypatch):
    nvidia_smi(CUT_IN_SLICES)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.uuid for gpu in cluster.gpus()] == uuids


def test_a_slice_says_what_it_is_cut_from_and_how_large_it_is(nvidia_smi, monkeypatch):
    nvidia_smi(CUT_IN_SLICES)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-22")
    assert cluster.gpus() == (cluster.Gpu("NVIDIA A100-SXM4-40GB MIG 2g.10gb", 10 << 30, "MIG-22"),)


# -- whose turn it is: numbers alone ----------------------------------------------------------------------


def ticket(number: int, num_cards: int, candidates: str, taken: str = "") -> queueing.Ticket:
    return queueing.Ticket(number, num_cards, tuple(candidates), tuple(taken))


@pytest.mark.parametrize(
    ("own", "others", "cards"),
    [
        (ticket(1, 2, "abcd"), [], "ab"),
        (ticket(2, 2, "abcd"), [ticket(1, 1, "abcd", "a")], "bc"),
        (ticket(2, 2, "ab"), [ticket(1, 1, "ab", "b")], ""),  # too few are free
        (
            ticket(3, 1, "ab"),
            [ticket(1, 1, "ab", "b"), ticket(2, 2, "ab")],
            "",
        ),  # nobody overtakes a larger run
        (ticket(2, 2, "ab"), [ticket(1, 1, "cd")], "ab"),  # a queue for other cards is another queue
        (ticket(2, 1, "bc"), [ticket(1, 1, "ab")], ""),  # who comes before may want the same
        (ticket(1, 1, "ab"), [ticket(2, 1, "ab")], "a"),
        (ticket(1, 1, "ab"), [ticket(2, 1, "ab", "a")], "b"),  # it came later, from a queue of its own
    ],
)
def test_a_run_takes_free_cards_when_no_earlier_run_waits_for_one_of_them(own, others, cards):
    assert queueing.cards_for(own, others) == tuple(cards)


# -- real processes, real locks ------------------------------------------------------------------------------

RUN = """
import os, sys, tempfile
from dpcourse.ranks import queueing
asked = sys.argv[1], int(sys.argv[2])
with tempfile.TemporaryDirectory() as folder:  # imports all that it needs, while it may still read that
    environment, os.environ["DPCOURSE_QUEUE"] = os.environ["DPCOURSE_QUEUE"], folder + "/queue"
    with queueing.turn(*asked): pass
    os.environ["DPCOURSE_QUEUE"] = environment
if user := int(sys.argv[3]):
    os.setgroups([]); os.setgid(user); os.setuid(user); os.umask(0o077)
if sys.argv[4] == "soon silent":
    queueing._SILENT_SECONDS = 2.0
try:
    with queueing.turn(*asked, lambda doing: print(doing, flush=True)) as own:
        if sys.argv[4] == "forks" and os.fork() == 0:
            sys.stdin.close(); os.read(int(sys.argv[5]), 1); os._exit(0)
        print("has", *own.cards, flush=True)
        sys.stdin.readline()
except BaseException as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""


class Run:
    """A run in a process of its own: it says what it waits for and what it has, and ends when told."""

    def __init__(self, folder: Path, cards: str, num_cards: int, user: int = 0, how: str = "") -> None:
        self.said = folder / f"said-{uuid.uuid4().hex}"
        self.reading, self.writing = os.pipe()
        with self.said.open("w") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, cards, str(num_cards), str(user), how, str(self.reading)],
                stdin=subprocess.PIPE,
                stdout=said,
                pass_fds=[self.reading],
                env={**os.environ, "DPCOURSE_QUEUE": str(folder / "queue")},
            )
        os.close(self.reading)

    @property
    def lines(self) -> list[str]:
        return self.said.read_text().splitlines()

    def says(self, text: str) -> bool:
        """Wait until its last line is this text, or has it."""
        return wait_until(lambda: text in (self.lines or [""])[-1], 20)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.communicate(b"\n", timeout=20)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def close(self) -> None:
        os.close(self.writing)
        self.process.kill()
        self.process.communicate(timeout=20)


@pytest.fixture(name="start")
def start_fixture() -> Iterator[Callable[..., Run]]:
    """Start runs that share a folder which all users can reach; all end with the test."""
    started: list[Run] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)

        def start(*arguments, **keywords) -> Run:
            started.append(Run(folder, *arguments, **keywords))
            return started[-1]

        start.queue = folder / "queue"
        yield start
        for run in started:
            run.close()


def test_runs_have_their_cards_in_the_order_they_came_and_are_told_who_is_ahead(start):
    first = start("ab", 2)
    assert first.says("has a b")
    small = start("ab", 1)
    assert small.says("wait for 1 GPU (0 ahead in the queue, 1 at work)")
    large = start("ba", 2)
    assert large.says("wait for 2 GPUs (1 ahead in the queue, 1 at work)")
    last = start("ba", 1)
    assert last.says("wait for 1 GPU (2 ahead in the queue, 1 at work)")
    apart = start("c", 1)
    assert apart.says("has c")
    first.end()
    assert small.says("has a")
    # It has looked since: a card is free, and stays free for the larger run before it.
    assert last.says("wait for 1 GPU (1 ahead in the queue, 1 at work)")
    small.end()
    assert large.says("has b a")
    assert last.says("wait for 1 GPU (0 ahead in the queue, 1 at work)")
    large.end()
    assert last.says("has b")
    for run in (last, apart):
        run.end()
    assert list(start.queue.iterdir()) == []


def test_the_dead_hold_no_card_and_no_place_not_even_by_a_process_they_forked(start):
    holder = start("a", 1, how="forks")
    assert holder.says("has a")
    waiter = start("a", 1)
    assert waiter.says("0 ahead in the queue, 1 at work")
    behind = start("a", 1)
    assert behind.says("1 ahead in the queue, 1 at work")
    waiter.kill()
    assert behind.says("0 ahead in the queue, 1 at work")
    holder.kill()
    assert behind.says("has a")
    assert len(list(start.queue.iterdir())) == 1  # what the dead have left is cleared away


def test_a_run_that_was_stopped_while_it_waited_keeps_nobody_from_a_card_and_goes_on_later(start):
    holder = start("a", 1)
    assert holder.says("has a")
    stopped = start("a", 1, how="soon silent")
    assert stopped.says("0 ahead in the queue, 1 at work")
    behind = start("a", 1, how="soon silent")
    assert behind.says("1 ahead in the queue, 1 at work")
    stopped.process.send_signal(signal.SIGSTOP)
    holder.end()
    assert behind.says("has a")
    stopped.process.send_signal(signal.SIGCONT)
    assert stopped.says("0 ahead in the queue, 1 at work")
    behind.end()
    assert stopped.says("has a")


def test_an_interrupt_leaves_the_queue(start):
    holder, waiter = start("a", 1), None
    assert holder.says("has a")
    waiter = start("a", 1)
    assert waiter.says("1 at work")
    waiter.process.send_signal(signal.SIGINT)
    assert waiter.says("LeftQueue: interrupted: the run has left the queue for GPUs")
    assert len(list(start.queue.iterdir())) == 1


def test_the_wait_ends_with_a_word_on_what_to_do(start, monkeypatch):
    monkeypatch.setenv("DPCOURSE_QUEUE_SECONDS", "0.5")
    assert start("ab", 1).says("has a")
    late = start("ab", 2)
    assert late.says(
        "TimeoutError: 2 GPUs could not be had in 0.5 s (0 ahead in the queue, 1 at work); see whose runs "
        f"these are with ls -l {start.queue}, wait longer with DPCOURSE_QUEUE_SECONDS=SECONDS, or ask for "
        'device="cpu"'
    )
    assert len(list(start.queue.iterdir())) == 1


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")
def test_users_take_turns_whoever_made_the_folder(start):
    ann = start("a", 1, user=ANN)
    assert ann.says("has a")
    assert (start.queue.stat().st_uid, start.queue.stat().st_mode & 0o7777) == (ANN, 0o1777)
    bob, root = start("a", 1, user=BOB), None
    assert bob.says("0 ahead in the queue, 1 at work")
    root = start("a", 1)
    assert root.says("1 ahead in the queue, 1 at work")
    bob.kill()
    assert root.says("0 ahead in the queue, 1 at work")
    ann.end()
    assert root.says("has a")
    bob = start("a", 1, user=BOB)
    assert bob.says("0 ahead in the queue, 1 at work")
    root.kill()
    assert bob.says("has a")
    assert len(list(start.queue.iterdir())) == 2  # root's is dead, and not for Bob to take away


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users")
def test_a_folder_that_a_user_may_not_write_to_is_refused(start):
    start.queue.mkdir(0o755)
    said = start("a", 1, user=ANN)
    assert said.says(f"ValueError: runs on GPUs take turns by files in {start.queue}, which cannot be used")
    assert "Permission denied" in said.lines[-1]


# -- in this process -----------------------------------------------------------------------------------------


@pytest.fixture(name="queue")
def queue_fixture(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DPCOURSE_QUEUE", str(tmp_path / "queue"))
    return tmp_path / "queue"


def take(cards: Iterable[str], num_cards: int) -> None:
    """Have cards that should not be had."""
    with queueing.turn(cards, num_cards):
        pytest.fail("it has cards")


@pytest.mark.parametrize("make", ["a file", "a link", "no parent"])
def test_what_is_no_folder_to_share_is_refused(make, queue, monkeypatch):
    if make == "a file":
        queue.touch()
    elif make == "a link":
        queue.symlink_to(queue.parent)
    else:
        monkeypatch.setenv("DPCOURSE_QUEUE", str(queue / "below"))
    with pytest.raises(ValueError, match=r"name a folder .* with DPCOURSE_QUEUE=FOLDER"):
        take("a", 1)


def test_a_folder_named_from_here_would_be_another_one_elsewhere(monkeypatch):
    monkeypatch.setenv("DPCOURSE_QUEUE", "queue")
    with (
        pytest.raises(ValueError, match=r"DPCOURSE_QUEUE='queue' is another folder wherever .*/queue"),
        queueing.turn("a", 1),
    ):
        pass


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_a_longest_wait_that_is_none_is_refused(text, queue, monkeypatch):
    monkeypatch.setenv("DPCOURSE_QUEUE_SECONDS", text)
    with pytest.raises(ValueError, match=f"SECONDS='{text}': give the number of seconds"):
        take("a", 1)


def test_more_cards_than_there_are_are_refused_before_anyone_waits(queue):
    with pytest.raises(ValueError, match="3 GPUs for one run were asked for, and 2 can be seen"):
        take(["a", "b", "a"], 3)
    assert not queue.exists()


def test_a_stopped_process_that_keeps_the_folder_locked_is_told(queue, monkeypatch):
    monkeypatch.setenv("DPCOURSE_QUEUE_SECONDS", "0.1")
    queue.mkdir()
    folder = os.open(queue, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    said: list[str] = []
    with (
        pytest.raises(TimeoutError, match=r"kept .*/queue locked for 0\.1 s, and may be stopped"),
        queueing.turn("a", 1, said.append),
    ):
        pass
    assert set(said) == {"wait for the queue's folder, which another process keeps locked"}
    os.close(folder)


def test_what_is_no_ticket_stops_nobody(queue):
    queue.mkdir()
    os.mkfifo(queue / "fifo.ticket")
    (queue / "link.ticket").symlink_to("/dev/zero")
    (queue / "folder.ticket").mkdir()
    with (queue / "words.ticket").open("w") as words, (queue / "number.ticket").open("w") as number:
        print("[" * 70_000, file=words, flush=True)
        print('{"number": "1", "num_cards": 1, "candidates": ["a"], "taken": []}', file=number, flush=True)
        for file in (words, number):
            fcntl.flock(file, fcntl.LOCK_EX)
        with queueing.turn("a", 1) as own:
            assert own.cards == ("a",)


def test_a_ticket_that_somebody_has_removed_is_not_made_anew(queue):
    place = queueing.Place(ticket(0, 1, "a"), queue, 5.0)

    def remove(doing: str) -> None:
        for path in queue.glob("*.ticket"):
            path.unlink()

    with queueing.turn("a", 1), pytest.raises(ValueError, match=r"cannot be used .*No such file"):
        place.wait(remove)
    place.close()


# -- in a run ------------------------------------------------------------------------------------------------


def seen() -> tuple[str, ...]:
    return tuple(os.environ.get(name, "") for name in ("CUDA_VISIBLE_DEVICES", queueing.HELD_VARIABLE))


@pytest.fixture(name="cards")
def cards_fixture(queue, monkeypatch) -> None:
    """Pretend that this machine's CPU ranks need one card each of three."""
    monkeypatch.setattr(
        queueing, "cards_wanted", lambda cluster, number: (["a", "b", "c"], number or cluster.num_ranks)
    )


@pytest.mark.long
def test_ranks_see_the_cards_that_their_run_has_and_no_others(cards, queue):
    with queueing.turn("a", 1):
        assert dc.launch(seen, ranks=2) == [("b,c", "b,c")] * 2
        assert dc.launch(seen, ranks=2, gpus=1) == [("b", "b")] * 2
        assert dc.launch(seen, ranks=2, env={"CUDA_VISIBLE_DEVICES": "mine"}) == [("mine", "b,c")] * 2
    assert list(queue.iterdir()) == []


@pytest.mark.long
def test_waiting_counts_for_no_deadline_and_stands_in_the_record(cards, start, monkeypatch):
    monkeypatch.setenv("DPCOURSE_QUEUE", str(start.queue))
    dc.launch(seen, ranks=1, everything=True)  # so that the fork server is there
    holder = start("abc", 2)
    assert holder.says("has a b")
    freeing = threading.Timer(10.5, holder.end)
    freeing.start()
    assert dc.launch(seen, ranks=2, deadline_seconds=10) == [("a,b", "a,b")] * 2
    freeing.join()
    holder = start("abc", 2)
    assert holder.says("has a b")
    freeing = threading.Timer(1.2, holder.end)
    freeing.start()
    run = dc.train("ddp", ranks=2)
    freeing.join()
    assert 1.0 < run.waited_seconds < 20
    assert run.facts().endswith(f"after {run.waited_seconds:.0f} s in the queue for GPUs")
    assert run.traffic.is_exact()
    assert run.memory.is_exact()


def test_who_waits_sees_how_many_are_ahead_until_the_line_goes(cards, queue, monkeypatch):
    monkeypatch.setattr(progress, "_QUIET_SECONDS", -1.0)
    monkeypatch.setenv("DPCOURSE_QUEUE_SECONDS", "0.1")
    terminal = Terminal()
    with queueing.turn("abc", 2), redirect_stderr(terminal), pytest.raises(TimeoutError):
        dc.launch(seen, ranks=2)
    assert "\r\033[K2 ranks wait for 2 GPUs (0 ahead in the queue, 1 at work): 0 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\033[K")


def test_a_run_inside_a_run_needs_no_second_turn(cards, queue, monkeypatch):
    monkeypatch.setenv("DPCOURSE_QUEUE_SECONDS", "0.1")
    with queueing.own_cards(dc.Cluster(ranks=3)) as outside:
        monkeypatch.setenv(queueing.HELD_VARIABLE, outside[queueing.HELD_VARIABLE])
        with queueing.own_cards(dc.Cluster(ranks=2)) as inside:
            assert inside["CUDA_VISIBLE_DEVICES"] == "a,b"


def test_cards_are_taken_for_ranks_on_gpus_alone(queue, nvidia_smi, monkeypatch):
    nvidia_smi(CUT_IN_SLICES)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-bb")
    with queueing.own_cards(dc.Cluster(ranks=2)) as environment:
        assert environment == {}
    assert not queue.exists()
    monkeypatch.setattr(cluster, "torch_has_cuda", lambda: True)
    with queueing.own_cards(dc.Cluster(ranks=1, device="cuda")) as environment:
        assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-bb"
    monkeypatch.setattr(cluster, "gpus", lambda: tuple(cluster.Gpu("", 0, name) for name in "abc"))
    monkeypatch.setattr(queueing, "gpus", cluster.gpus)
    with queueing.own_cards(dc.Cluster(ranks=4, device="cuda", share=True), 2) as environment:
        assert environment["CUDA_VISIBLE_DEVICES"] == "a,b"
    with pytest.raises(ValueError, match="gpus=1: 2 ranks need one each; leave gpus out, or share"):
        dc.launch(seen, ranks=2, gpus=1)
    for number in (0, "1", True):
        with pytest.raises(ValueError, match=f"gpus={number!r}: give a whole number from 1 on"):
            dc.launch(seen, ranks=1, device="cuda", gpus=number)


def test_nn_data_parallel_takes_every_gpu_and_one_process_of_another_kind_one(monkeypatch):
    asked = []
    monkeypatch.setattr("dpcourse.ranks.launch.launch", lambda *_, gpus, **__: asked.append(gpus) or [])
    monkeypatch.setattr(cluster, "gpus", lambda: (cluster.Gpu("a card", 80 << 30),) * 3)
    monkeypatch.setattr(cluster, "torch_has_cuda", lambda: True)
    for strategy, options in (("dp", {"threads": True}), ("dp", {}), ("ddp", {})):
        dc.train(strategy, ranks=1, **options)
    assert asked == [3, None, None]
    assert not find("single").takes_all_gpus(None)


# -- cores that others have ----------------------------------------------------------------------------------


def test_what_others_take_of_the_cores_is_told_from_what_a_rank_takes():
    spin = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(spin) for _ in range(cluster.num_cores())]
    meter, until = cores.CoreMeter(), time.process_time() + 0.5
    while time.process_time() < until:
        pass
    use = meter.read()
    for other in others:
        other.kill()
        other.wait(20)
    assert 0.5 <= use.own_seconds < 0.6
    # With one spinning process more than there are cores, no core is idle; the system counts in hundredths.
    assert use.all_seconds == pytest.approx(use.num_cores * use.seconds, rel=0.15)
    assert use.all_seconds - use.own_seconds > 0.25 * use.seconds


def test_a_sandbox_without_counts_gives_none(monkeypatch):
    meter = cores.CoreMeter()

    def unreadable(percpu: bool) -> None:
        raise FileNotFoundError("/proc/stat")

    monkeypatch.setattr("psutil.cpu_times", unreadable)
    assert meter.read() is None
    assert cores.CoreMeter().read() is None


def shared(*uses: CoreUse | None, waited: float = 0.0) -> dc.Run:
    """A run whose ranks had these cores."""
    run = make_run(ranks=len(uses))
    records = (
        replace(record, cores=use, waited_seconds=waited)
        for record, use in zip(run.records, uses, strict=True)
    )
    return replace(run, records=tuple(records))


def test_a_run_says_when_others_had_the_cores():
    busy = shared(CoreUse(4, 10.0, 36.0, 5.0), CoreUse(4, 10.0, 36.0, 11.0))
    assert busy.cores_of_others == pytest.approx(2.0)
    assert busy.facts().endswith("a busy machine: other programs took 2.0 of 4 cores")
    own = shared(CoreUse(4, 10.0, 38.0, 19.0), CoreUse(4, 10.0, 38.0, 18.5))
    assert own.cores_of_others == pytest.approx(0.05)
    assert "busy" not in own.facts()
    assert shared(CoreUse(4, 10.0, 1.0, 2.0)).cores_of_others == 0  # counted in hundredths of a second
    assert shared(None, None).cores_of_others is None
    assert "busy" not in shared(None, None).facts()


def test_a_run_says_how_long_it_waited_and_keeps_both_in_its_file(tmp_path, monkeypatch):
    run = shared(CoreUse(4, 10.0, 36.0, 5.0), None, waited=12.3)
    assert run.facts().endswith("took 3.1 of 4 cores, after 12 s in the queue for GPUs")
    run.save(tmp_path / "run.json")
    assert dc.Run.load(tmp_path / "run.json").records == run.records
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    assert "busy" not in run.facts()
    assert "queue" not in run.facts()


def standing() -> tuple[int, bool, int]:
    return os.getsid(0), os.getpgid(0) == os.getpid(), os.nice(0)


@pytest.mark.long
def test_a_run_has_one_share_of_the_cores_however_many_ranks_it_has(monkeypatch):
    monkeypatch.setattr(cluster, "num_cores", lambda: 2)
    for num_ranks, steps in ((2, 0), (4, 3)):
        sessions, leads_its_group, nice = zip(*dc.launch(standing, ranks=num_ranks), strict=True)
        assert len(set(sessions)) == 1
        assert sessions[0] != os.getsid(0)
        assert all(leads_its_group)
        assert nice == (min(19, os.nice(0) + steps),) * num_ranks


@pytest.mark.parametrize(("num_ranks", "steps"), [(1, 0), (4, 0), (5, 1), (8, 3), (16, 6), (256, 19)])
def test_ranks_give_way_by_as_much_as_they_are_more_than_the_cores(num_ranks, steps, monkeypatch):
    monkeypatch.setattr(cluster, "num_cores", lambda: 4)
    assert cluster.niceness(num_ranks) == steps
    weight = num_ranks / 1.25 ** cluster.niceness(num_ranks)  # of the run, in processes that do not give way
    assert num_ranks <= 4 or weight == pytest.approx(4, rel=0.12)


def test_the_readme_names_what_can_be_set():
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    assert f"`{queueing.FOLDER_VARIABLE}`" in readme
    assert f"`{queueing.SECONDS_VARIABLE}`" in readme
    assert f"`{queueing._DEFAULT_FOLDER}`" in readme
