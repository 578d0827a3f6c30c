"""Emulated hosts with kernel links: what is refused, what crosses, and that nothing is left behind."""

import contextlib
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import dpcourse as dc
from dpcourse.ledger import Transfer
from dpcourse.network import namespaces, probe
from dpcourse.quantities import rate_text, read_rate, read_seconds
from dpcourse.ranks import channel, service
from dpcourse.ranks.links import KERNEL_BYTES_PER_SECOND, Links
from dpcourse.run import Run
from dpcourse.theory.crossing import sent_between_hosts
from tests.conftest import processes_below, processes_marked, wait_until
from tests.hosted import failing, place_and_count, waiting

pytestmark = pytest.mark.long

needs_kernel_links = pytest.mark.skipif(
    bool(probe.kernel_links().problem), reason=f"no kernel links here: {probe.kernel_links().problem}"
)
MESSAGE_BYTES = 1_000_000


def namespaces_of(numbers: Iterable[int | str]) -> set[str]:
    """The network namespaces that these processes are in."""
    found = set()
    for number in numbers:
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{number}/ns/net"))
    return found


def is_gone(names: set[str]) -> bool:
    """Whether no process of the machine is in any of these namespaces; the last may be just ending."""
    everyone = [path.name for path in Path("/proc").iterdir() if path.name.isdigit()]
    return wait_until(lambda: not names & namespaces_of(everyone))


def two_by_two(**others) -> dc.Cluster:
    return dc.Cluster(hosts=2, ranks_per_host=2, inter="500mbit", **others)


# -- what is asked for ----------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [("500mbit", 62.5e6), ("10 Gbit/s", 1.25e9), ("2.5gbps", 312.5e6), ("1e3 kbit", 125e3), ("8bit", 1.0)],
)
def test_rates_are_read_as_people_write_them(text, found):
    assert read_rate("inter", text) == pytest.approx(found)
    assert read_rate("inter", rate_text(found)) == pytest.approx(found)


@pytest.mark.parametrize(
    "text", [5, 5e8, True, None, "mbit", "500", "5mb", "500MB/s", "5 parsec", "nan mbit"]
)
def test_a_rate_without_a_unit_of_bits_is_refused(text):
    with pytest.raises(ValueError, match="give a rate in bits per second as text with its unit"):
        read_rate("inter", text)


@pytest.mark.parametrize("text", ["0mbit", "-5mbit", "1e999mbit"])
def test_a_rate_has_to_be_above_0(text):
    with pytest.raises(ValueError, match="give a rate above 0"):
        read_rate("inter", text)


@pytest.mark.parametrize(("text", "found"), [("50us", 5e-5), ("2 ms", 2e-3), (0.5, 0.5), ("0s", 0.0)])
def test_times_are_read_as_people_write_them(text, found):
    assert read_seconds("latency", text) == pytest.approx(found)


def test_every_micro_and_every_kind_of_number_is_read():
    for text in ("50\u00b5s", "50\u03bcs", "50US", np.float32(5e-5), np.float64(5e-5), Fraction(1, 20_000)):
        assert read_seconds("latency", text) == pytest.approx(5e-5)
    assert read_seconds("latency", np.int64(2)) == 2.0
    assert read_rate("inter", "5\u212abit") == 625.0  # the sign for kelvin, which lower case makes a k


def test_the_reference_configuration_takes_paced_links_unless_asked_since_its_words_are_kept(monkeypatch):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    assert dc.Cluster(hosts=2, ranks_per_host=1).network.kind == "paced"


def test_numpy_s_whole_numbers_are_taken_as_what_they_are():
    asked = dc.Cluster(hosts=np.int64(2), ranks_per_host=np.int32(2), links="paced")
    assert (asked.num_ranks, asked.network.hosts, type(asked.hosts)) == (4, 2, int)


def test_a_time_or_a_rate_without_end_is_refused():
    for asked in (10**400, math.inf, math.nan, "1e999s"):
        with pytest.raises(ValueError, match="below infinity"):
            read_seconds("latency", asked)
    with pytest.raises(ValueError, match="below infinity"):
        read_rate("inter", "1e308gbit")


@pytest.mark.parametrize("text", ["5", "5m", True, None, "us"])
def test_a_time_without_a_unit_is_refused(text):
    with pytest.raises(ValueError, match="give a time with its unit"):
        read_seconds("latency", text)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"hosts": 0}, "hosts=0: give a whole number from 1 on"),
        ({"hosts": 2.5}, "hosts=2.5: give a whole number"),
        ({"ranks": 4, "ranks_per_host": -1}, "ranks_per_host=-1: give a whole number"),
        ({"hosts": 300}, "hosts=300: the emulated network has 254 addresses; ask for at most as many"),
        ({"hosts": 254, "ranks_per_host": 2}, "ranks=508: give a number from 1 to 256"),
        ({"ranks": 5, "hosts": 2}, "do not divide by hosts=2.*ask for 4 or 6 ranks"),
        ({"ranks": 1, "ranks_per_host": 2}, "do not divide by ranks_per_host=2.*ask for 2 ranks"),
        ({"ranks": 4, "hosts": 2, "ranks_per_host": 3}, "make 6; leave one of the three out"),
        ({"hosts": 2, "inter": "-5mbit"}, "inter='-5mbit': give a rate above 0"),
        ({"hosts": 2, "intra": "fast"}, "intra='fast': give a rate in bits"),
        ({"hosts": 2, "latency": "-1ms"}, "latency='-1ms': give a time of 0 or more"),
        ({"ranks": 2, "inter": "5mbit"}, "inter='5mbit' is between hosts, and there is one host"),
        ({"ranks": 2, "latency": "5us"}, "latency='5us' is between hosts"),
        ({"hosts": 2, "links": "wifi"}, "links='wifi': give 'kernel', 'paced' or None"),
        ({"hosts": 2, "device": "cuda"}, "emulated hosts join ranks on the CPU"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(asked, said, no_process):
    with pytest.raises(ValueError, match=said):
        dc.Cluster(**asked)


def test_ranks_that_would_not_divide_are_given_numbers_that_do():
    for ranks, parts in ((1, 2), (5, 2), (7, 3), (2, 4)):
        with pytest.raises(ValueError, match="do not divide") as caught:
            dc.Cluster(ranks=ranks, hosts=parts)
        numbers = [int(word) for word in str(caught.value).split("ask for")[1].split() if word.isdigit()]
        assert numbers
        assert all(number % parts == 0 for number in numbers)


def test_any_two_of_three_numbers_make_a_cluster():
    shapes = [{"ranks": 6, "hosts": 3}, {"ranks": 6, "ranks_per_host": 2}, {"hosts": 3, "ranks_per_host": 2}]
    for asked in shapes:
        network = dc.Cluster(**asked, links="paced").network
        assert (network.hosts, network.ranks_per_host) == (3, 2)
        assert [network.host_of(rank) for rank in range(6)] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("found", "asked", "said"),
    [
        (probe.KernelLinks("this user may make no namespaces", False), {}, "may make no namespaces"),
        (probe.KernelLinks("", False), {"latency": "1ms"}, "no netem.*or leave latency out"),
    ],
)
def test_kernel_links_that_do_not_work_are_refused_with_the_way_out(
    found, asked, said, monkeypatch, no_process
):
    monkeypatch.setattr(probe, "kernel_links", lambda: found)
    with pytest.raises(ValueError, match=f'links="kernel" was asked for.*{said}') as caught:
        dc.Cluster(hosts=2, links="kernel", **asked)
    assert 'Ask for links="paced"' in str(caught.value)
    assert dc.Cluster(hosts=2, **asked).network.kind == "paced"  # where nothing was demanded


def test_rates_that_the_kernel_cannot_keep_are_left_to_paced_links():
    for asked in ({"inter": "100gbit"}, {"inter": "8bit"}, {"intra": "1tbit"}, {"inter": "1e290gbit"}):
        assert dc.Cluster(hosts=2, ranks_per_host=2, **asked).network.kind == "paced"
        with pytest.raises(ValueError, match=r"they keep rates from 1 Mbit/s to 34\.\d+ Gbit/s, and"):
            dc.Cluster(hosts=2, ranks_per_host=2, links="kernel", **asked)


@needs_kernel_links
def test_kernel_links_keep_the_least_and_the_greatest_rate_they_say_they_do():
    for rate in KERNEL_BYTES_PER_SECOND:
        cluster = dc.Cluster(hosts=2, inter=f"{8 * rate:.0f}bit", links="kernel")
        assert len(dc.launch(os.getpid, cluster=cluster)) == 2


def test_a_cluster_and_another_number_of_ranks_are_refused():
    cluster = dc.Cluster(hosts=2, links="paced")
    for call in (
        lambda: dc.launch(print, ranks=3, cluster=cluster),
        lambda: dc.train("ddp", ranks=4, cluster=cluster),
    ):
        with pytest.raises(ValueError, match="was asked for, and the cluster has 2; leave it out"):
            call()
    with pytest.raises(ValueError, match="device='cuda' was asked for, and the cluster has 'cpu'"):
        dc.launch(print, device="cuda", cluster=cluster)
    with pytest.raises(ValueError, match="backend='gloo' was asked for on paced links"):
        dc.launch(print, backend="gloo", cluster=cluster)
    with pytest.raises(TypeError, match=r"give one, such as dc\.Cluster"):
        dc.train("ddp", cluster="two hosts")


# -- what the probe finds ---------------------------------------------------


def run_apart(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )
    return done.stdout.strip()


@needs_kernel_links
def test_an_ordinary_user_makes_hosts_too_and_keeps_the_own_number():
    code = """
import ctypes, os
from pyroute2 import IPRoute  # while this user may still read it
IPRoute().close()
from dpcourse.network.namespaces import enter, make_hosts
from dpcourse.ranks.links import KERNEL_BYTES_PER_SECOND, Links
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, as for a process that was this user's from its start
before = os.getuid()
hosts = make_hosts(Links("kernel", 3, 1, 1e7, 1e7))
enter(hosts[2])
print(len(hosts), os.getuid() == before, "eth0" in open("/proc/net/dev").read())
"""
    assert run_apart(code) == "3 True True"


@needs_kernel_links
def test_a_system_that_forbids_namespaces_is_told_from_one_that_allows_them():
    code = """
import ctypes, os
from dpcourse.network import namespaces as ns
user, group = os.geteuid(), os.getegid()
ns._call("unshare", ns._NEW_USER)  # its root may set limits for what is below
ns._write("/proc/self/setgroups", "deny")
ns._write("/proc/self/uid_map", f"0 {user} 1")
ns._write("/proc/self/gid_map", f"0 {group} 1")
ns._write("/proc/sys/user/max_net_namespaces", "0")
from dpcourse.network.probe import kernel_links
import dpcourse as dc
print(kernel_links().problem, dc.Cluster(hosts=2).network.kind, sep="; ")
"""
    assert run_apart(code) == "no namespace can be made (the system's limit on them is reached); paced"


def test_a_missing_package_is_named(monkeypatch):
    if sys.platform != "linux":
        pytest.skip("network namespaces are Linux's own")
    assert "pyroute2 cannot be imported" in namespaces.describe(ImportError("No module named 'pyroute2'"))


# -- what crosses -------------------------------------------------------------


@needs_kernel_links
def test_ranks_know_their_host_and_each_cards_counter_says_what_crossed():
    results = dc.launch(place_and_count, MESSAGE_BYTES, cluster=two_by_two(links="kernel", intra="10gbit"))
    assert [place for place, *_ in results] == [[0, 0, 2, 2], [0, 1, 2, 2], [1, 0, 2, 2], [1, 1, 2, 2]]
    for _, total, sent, user, _ in results:
        assert total == 4.0
        assert user == os.getuid()
        # A ring in order of rank: of each host one rank sends to the other host, one inside.
        for way in ("between hosts", "inside hosts"):
            assert 1.5 * MESSAGE_BYTES < sent[way] < 1.53 * MESSAGE_BYTES


@needs_kernel_links
@pytest.mark.parametrize("hosts", [1, 3, 8])
def test_any_number_of_hosts_is_joined(hosts):
    cluster = dc.Cluster(hosts=hosts, ranks_per_host=1, intra="1gbit", links="kernel")
    results = dc.launch(place_and_count, 400, cluster=cluster)
    assert [total for _, total, *_ in results] == [float(hosts)] * hosts


@needs_kernel_links
@pytest.mark.parametrize(
    ("strategy", "options", "crossing"),
    [
        ("ddp", {}, 1.5),
        ("fsdp2", {"mesh": (2, 2)}, 1.0),
        ("scratch-ddp", {}, 2 * 1.5 * 2 / 3),  # each sends two thirds of its bytes to the other host
    ],
)
def test_bytes_between_hosts_are_those_expected(strategy, options, crossing, tmp_path):
    run = dc.train(strategy, cluster=two_by_two(links="kernel"), **options)
    assert run.memory.is_exact()
    assert run.traffic.is_exact()
    size = run.parameter_bytes
    for host in range(2):
        expected, measured = run.traffic.expected_between_hosts(host), run.traffic.between_hosts(host)
        assert expected == pytest.approx(crossing * size, rel=0.01)
        assert expected <= measured <= 1.005 * expected + 2000  # headers come on top
    cards = [row[5] for row in run.traffic.hosts_table().rows]
    assert None not in cards
    run.save(tmp_path / "run.json")
    assert Run.load(tmp_path / "run.json") == run
    assert "(kernel links)" in run.title
    assert "500 Mbit/s between hosts (kernel links)" in run.facts()


def test_a_list_that_is_off_does_not_pass_for_what_crosses():
    host_of = Links("kernel", 2, 2, 1e6, None).host_of
    row = Transfer("all_reduce", "bucket 0", (0, 1, 2, 3), 100, 150.0, "backward", 1)
    assert [sent_between_hosts(replace(row, rank=rank), host_of) for rank in range(4)] == [0, 150, 0, 150]
    apart = replace(row, group=(1, 3))
    assert sent_between_hosts(apart, host_of) == 150
    assert sent_between_hosts(row, host_of, direct=("all_reduce",)) == pytest.approx(100)
    assert sent_between_hosts(replace(row, collective="broadcast"), host_of) is None
    assert sent_between_hosts(replace(row, sent_bytes=None), host_of) is None
    assert sent_between_hosts(replace(row, collective="broadcast", sent_bytes=0.0), host_of) == 0


def test_a_run_without_hosts_has_no_table_of_them():
    run = dc.train("ddp", ranks=2, steps=1)
    assert run.traffic.between_hosts() is None
    with pytest.raises(ValueError, match=r"this run had no emulated hosts; give dc\.train a cluster"):
        run.traffic.hosts_table()


# -- nothing is left ---------------------------------------------------------


@needs_kernel_links
def test_errors_and_deadlines_are_as_without_hosts_and_the_hosts_go():
    with pytest.raises(dc.RankError, match=r"rank 2 of 4.*KeyError"):
        dc.launch(failing, cluster=two_by_two(links="kernel"))
    with pytest.raises(dc.RankError, match="the run passed its deadline of 5 s") as caught:
        dc.launch(waiting, cluster=two_by_two(links="kernel"), deadline_seconds=5)
    assert "rank 0 waits in all_reduce" in str(caught.value)
    assert wait_until(lambda: not processes_below(service.current().pid))


@needs_kernel_links
def test_a_run_that_is_over_leaves_no_namespace():
    results = dc.launch(place_and_count, 400, cluster=dc.Cluster(hosts=3, links="kernel"))
    names = {namespace for *_, namespace in results}
    assert len(names) == 3
    assert is_gone(names)


@needs_kernel_links
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_hosts_go_with_the_process_that_asked_for_them(number, tmp_path):
    mark, ready = f"hosts-{os.getpid()}-{number}", tmp_path / "ready"
    code = f"""
import pathlib, time, dpcourse as dc
def wait():
    import torch.distributed as dist
    dist.barrier()
    pathlib.Path({str(ready)!r}).touch()
    time.sleep(600)
dc.launch(wait, cluster=dc.Cluster(hosts=2, ranks_per_host=2, links="kernel"), deadline_seconds=600)
"""
    environment = {**os.environ, "DPCOURSE_TEST_MARK": mark}
    notebook = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL)
    assert wait_until(ready.exists, 50)
    names = namespaces_of(process.pid for process in processes_marked(mark)) - namespaces_of(["self"])
    assert len(names) == 3  # of two hosts, and of their switch
    notebook.send_signal(number)
    notebook.wait(20)
    assert wait_until(lambda: not processes_marked(mark))
    assert is_gone(names)


@needs_kernel_links
def test_hosts_that_cannot_be_made_after_all_are_an_error_in_words(monkeypatch):
    cluster = dc.Cluster(hosts=2, links="kernel")
    object.__setattr__(cluster, "network", replace(cluster.network, inter_bytes_per_second=-1.0))
    with pytest.raises(RuntimeError, match=r"could not be made: .*tbf.*links=\"paced\""):
        dc.launch(print, cluster=cluster)


@needs_kernel_links
def test_hosts_that_are_not_made_by_the_deadline_or_whose_maker_dies_are_an_error_in_words(monkeypatch):
    cluster, receive = dc.Cluster(hosts=2, links="kernel"), channel.receive

    def hear_once(what: type[OSError]):
        def hear(sock):
            monkeypatch.setattr(channel, "receive", receive)
            raise what

        monkeypatch.setattr(channel, "receive", hear)

    hear_once(TimeoutError)
    with pytest.raises(dc.RankError, match=r"deadline of 60 s, while the hosts of 2 x 1 ranks.*being made"):
        dc.launch(print, cluster=cluster)
    hear_once(ConnectionResetError)
    with pytest.raises(dc.RankError, match=r"the process that keeps the ranks has gone"):
        dc.launch(print, cluster=cluster)
    assert len(dc.launch(os.getpid, cluster=cluster)) == 2


# -- the command line ------------------------------------------------------


def run_hosts(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "dpcourse", "hosts", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


@needs_kernel_links
def test_a_command_runs_on_each_host_and_is_marked_with_it():
    done = run_hosts(
        "2", "--inter", "100mbit", "--", "sh", "-c", "echo {host}/{hosts} {address}; exit {host}"
    )
    assert sorted(done.stdout.splitlines()) == ["[host 0] 0/2 10.77.0.1", "[host 1] 1/2 10.77.0.2"]
    assert done.returncode == 1


@needs_kernel_links
def test_a_command_that_never_ends_is_ended_at_the_deadline():
    mark = f"600.{os.getpid()}"
    done = run_hosts("2", "--deadline", "0.5", "--", "sleep", mark)
    assert done.returncode == 1
    assert "the deadline of 0.5 s passed, and the command went on on host 0, 1" in done.stderr
    assert not processes_marked(mark)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("2",), "no command was given; write it after --"),
        (("0", "--", "true"), "hosts=0: give a whole number"),
        (("2", "--inter", "fast", "--", "true"), "inter='fast': give a rate"),
        (("2", "--deadline", "0", "--", "true"), "deadline_seconds=0.0: give a number of seconds above 0"),
        (("2", "--deadline", "nan", "--", "true"), "deadline_seconds=nan: give a number of seconds"),
    ],
)
def test_hosts_that_cannot_be_are_refused_in_a_line(arguments, said):
    done = run_hosts(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
