"""`dpcourse run` and `dpcourse torchrun`: what they take, what they refuse, and their exit codes."""

import json
import os
import signal
import socket
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest

import dpcourse as dc
from dpcourse import run_command
from dpcourse.ranks import agent
from tests.conftest import is_alive, processes_below, wait_until
from tests.production import free_port

pytestmark = pytest.mark.long


def test_a_run_from_the_command_line_is_that_of_train(tmp_path, capsys):
    out = tmp_path / "run.json"
    asked = ["ddp", "--option", "bucket_cap_mb=1", "--steps", "2", "--seed", "3", "--out", str(out)]
    assert run_command.main(asked) == 0
    run, here = dc.Run.load(out), dc.train("ddp", bucket_cap_mb=1, steps=2, seed=3)
    assert run.losses == here.losses
    assert run.options == here.options
    assert "ddp (bucket_cap_mb=1): mlp on 2 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("mesh=(2, 2)", ("mesh", (2, 2))),
        ("sharding=NO_SHARD", ("sharding", "NO_SHARD")),
        ("static_graph=True", ("static_graph", True)),
    ],
)
def test_an_option_is_read_as_python_would_read_it_and_else_as_text(text, option):
    assert run_command._option(text) == option


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["dpp"], "no strategy is called 'dpp'"),
        (["ddp", "--ranks", "0"], "ranks=0"),
        (["ddp", "--option", "bucket=1"], "bucket"),
        (["ddp", "--option", "batch_size=4"], "no option of a strategy; give --batch-size"),
        (["ddp", "--hosts", "0"], "hosts=0"),
        (["ddp", "--hosts", "2", "--ranks-per-host", "2", "--ranks", "3"], "ranks=3"),
        (["ddp", "--hosts", "2", "--ranks-per-host", "1", "--inter", "fast"], "inter='fast'"),
        (["ddp", "--hosts", "2", "--ranks-per-host", "1", "--links", "carrier"], "links='carrier'"),
        (["ddp", "--inter", "500mbit"], "there is one host; ask for hosts=2 or more"),
        (["ddp", "--hosts", "2", "--ranks-per-host", "1", "--device", "cuda"], "leave device out"),
        (["ddp", "--out", "nowhere/run.json"], "nowhere is no folder that can be written; make it first"),
        (
            ["ddp", "--out", str(Path(__file__).parent)],
            "it cannot be written (Is a directory); name another file",
        ),
    ],
)
def test_what_cannot_be_run_is_one_line_and_exit_code_2(asked, said, capsys):
    assert run_command.main(asked) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("dpcourse run: ")
    assert said in shown
    assert len(shown.splitlines()) == 1


def test_an_option_without_a_value_is_refused_with_an_example(capsys):
    with pytest.raises(SystemExit, match="2"):
        run_command.main(["ddp", "--option", "bucket_cap_mb"])
    assert "'bucket_cap_mb': give name=value, as in bucket_cap_mb=1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--nproc-per-node", "0"], "--nproc-per-node 0: give the number of ranks"),
        (["--nnodes", "0"], "--nnodes 0: give the number of hosts"),
        (["--nnodes", "3:1"], "--nnodes 3:1: give"),
        (["--nnodes", "x"], "--nnodes x: give"),
    ],
)
def test_counts_that_torchrun_meets_with_an_assertion_are_one_line(asked, said, capsys):
    assert agent.main([*asked, "script.py"]) == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert len(shown.splitlines()) == 1


def test_emulated_hosts_are_those_of_a_cluster(capsys):
    asked = ["ddp", "--hosts", "2", "--ranks-per-host", "1", "--inter", "1gbit", "--links", "paced"]
    assert run_command.main([*asked, "--latency", "1ms", "--steps", "1"]) == 0
    assert "2 x 1 ranks, 1 Gbit/s between hosts after 1.00 ms (paced links)" in capsys.readouterr().out


def test_json_is_the_run_as_it_is_saved_and_stands_alone_on_stdout(tmp_path, capsys):
    out = tmp_path / "run.json"
    assert run_command.main(["ddp", "--steps", "1", "--json", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads(out.read_text())


def test_a_run_that_cannot_be_saved_is_shown_and_nothing_is_left(tmp_path, monkeypatch, capsys):
    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    out = tmp_path / "run.json"
    assert run_command.main(["ddp", "--steps", "1", "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert "ddp: mlp on 2 ranks" in said.out
    assert f"--out {out}: not written (No space left on device); the run is shown above" in said.err
    assert list(tmp_path.iterdir()) == []


def test_what_is_printed_on_the_way_is_no_part_of_the_document(monkeypatch, capsys):
    def chatty(*args: object, **words: object) -> object:
        print("a word")
        return types.SimpleNamespace(to_json=lambda: '{"kind": "run"}')

    monkeypatch.setattr("dpcourse.training.train", chatty)
    assert run_command.main(["ddp", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"kind": "run"}
    assert said.err == "a word\n"


def test_a_rank_that_fails_is_one_line_and_exit_code_1(monkeypatch, capsys):
    def fail(*args: object, **keywords: object) -> None:
        raise dc.RankError("rank 1 of 2 raised KeyError", kind="raised", world_size=2, detail="line 3")

    monkeypatch.setattr("dpcourse.training.train", fail)
    assert run_command.main(["ddp"]) == 1
    assert capsys.readouterr().err == "dpcourse run: rank 1 of 2 raised KeyError\n"


def test_the_help_of_each_teaches_by_examples(capsys):
    with pytest.raises(SystemExit, match="0"):
        run_command.main(["--help"])
    assert 'dpcourse run fsdp2 --ranks 4 --option "mesh=(2, 2)"' in capsys.readouterr().out
    assert agent.main(["--help"]) == 0
    assert "--rdzv-endpoint HOST0:29500" in capsys.readouterr().out
    assert agent.main([]) == 2


def test_a_deadline_that_is_none_is_refused(capsys):
    assert agent.main(["--deadline", "soon", "script.py"]) == 2
    assert "--deadline 'soon': give a whole number of seconds from 1 on" in capsys.readouterr().err


# -- the agent: a process of its own, since it takes the signals of the one it is in -----------------------


def started(*arguments: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "dpcourse", "torchrun", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_meeting_place_that_does_not_answer_is_said_by_the_deadline():
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:1", "--rdzv-conf", "is_host=0")
    agent = started("--deadline", "2", "--nnodes", "2", *meeting, "--no-python", "true")
    said = agent.communicate(timeout=100)[1]
    assert agent.returncode == 2
    assert said.startswith("dpcourse torchrun: no answer from 127.0.0.1:1, where the hosts meet, within 2 s")
    assert len(said.splitlines()) == 1


def test_the_first_host_says_so_where_the_others_are_lost():
    meeting = ("--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    agent = started("--deadline", "2", "--nnodes", "2", *meeting, "--no-python", "true")
    said = agent.communicate(timeout=100)[1]
    assert agent.returncode == 1
    assert said.splitlines()[-1].startswith(
        "dpcourse torchrun: lost the other hosts, which meet at 127.0.0.1:"
    )


def test_a_rank_that_fails_is_named_with_how():
    agent = started("--nproc-per-node", "1", "--no-python", "false")
    said = agent.communicate(timeout=100)[1]
    assert agent.returncode == 1
    assert said.splitlines()[-1] == "dpcourse torchrun: rank 0 failed first: exit code 1"


def test_an_agent_that_is_told_to_end_ends_its_ranks_and_says_so():
    agent = started("--nproc-per-node", "1", "--no-python", "sleep", "100")
    ranks: list[psutil.Process] = []
    try:
        assert wait_until(lambda: ranks.extend(ranks_of(agent)) or ranks, 100)
        agent.send_signal(signal.SIGTERM)
        said = agent.communicate(timeout=100)[1]
    finally:
        agent.kill()
    assert agent.returncode == 128 + signal.SIGTERM
    assert said.splitlines()[-1] == "dpcourse torchrun: ended by SIGTERM"
    assert wait_until(lambda: not any(is_alive(rank.pid) for rank in ranks))


def ranks_of(agent: subprocess.Popen) -> list[psutil.Process]:
    return [process for process in processes_below(agent.pid) if process.name() == "sleep"]


# An agent that is told to end when a rank has been started and torch has not yet written it down.
ENDS_TOO_EARLY = """
import os, signal, sys
from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler
from dpcourse.ranks import agent

start = SubprocessHandler._popen

def start_and_be_told_to_end(*arguments):
    print(start(*arguments).pid, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

SubprocessHandler._popen = start_and_be_told_to_end
sys.exit(agent.main(["--nproc-per-node", "1", "--no-python", "sleep", "100"]))
"""


def test_an_agent_that_is_told_to_end_while_it_starts_a_rank_leaves_none_behind():
    done = subprocess.run([sys.executable, "-c", ENDS_TOO_EARLY], capture_output=True, text=True, timeout=50)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert wait_until(lambda: not is_alive(int(done.stdout)))


def test_the_host_that_has_the_address_is_the_one_that_keeps_the_meeting_place():
    assert not agent._is_of_this_host("127.0.0.1:0")  # loopback is everyone's
    assert not agent._is_of_this_host("192.0.2.1:0")
    assert not agent._is_of_this_host("")
    own = [address for address in addresses_of_this_machine() if not address.startswith("127.")]
    assert all(agent._is_of_this_host(f"{address}:0") for address in own)


def addresses_of_this_machine() -> list[str]:
    import psutil

    cards = psutil.net_if_addrs().values()
    return [entry.address for card in cards for entry in card if entry.family == socket.AF_INET]
