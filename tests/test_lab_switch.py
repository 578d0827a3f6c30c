"""The switch takes whatever a rank may send it: it names what it refuses, and keeps nothing for ever."""

import socket
import time
from contextlib import suppress

import pytest

from dpcourse.labs import frames, plug, switch
from dpcourse.labs.frames import Frame
from dpcourse.labs.switch import Switch
from dpcourse.ranks.launch import launch
from tests.conftest import wait_until


def connect(plugged: Switch, token: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(10)
    sock.connect(plugged.plugs[0].path)
    sock.sendall(token.encode())
    return sock


def send(sock: socket.socket, *sent: Frame) -> None:
    for frame in sent:
        for part in frame.encode():
            sock.sendall(part)


def receive(sock: socket.socket) -> Frame:
    with sock.makefile("rb") as stream:
        frame, num_bytes = frames.decode(stream.read(frames.HEAD_BYTES))
        return Frame(frame.kind, frame.number, frame.peer, frame.tag, stream.read(num_bytes))


def test_a_message_is_handed_over_when_its_receiver_is_ready_and_stands_in_the_log():
    with Switch(2) as plugged:
        first, second = (connect(plugged, plug.token) for plug in plugged.plugs)
        with first, second:
            send(first, Frame(frames.SEND, 7, 1, 3, b"abc"))
            send(second, Frame(frames.READY, 9, 0, 4), Frame(frames.READY, 8, 0, 3))
            assert receive(second) == Frame(frames.DATA, 8, 0, 3, b"abc")
            assert receive(first) == Frame(frames.TAKEN, 7)
    assert plugged.log.sent_bytes(0) == 3
    assert plugged.log.sent(1) == []
    assert not plugged.log.deadlock
    assert not plugged.folder.exists()


def test_ranks_that_all_wait_are_told_so_and_one_that_may_yet_act_is_waited_for():
    with Switch(2) as plugged:
        first, second = (connect(plugged, plug.token) for plug in plugged.plugs)
        with first, second:
            send(first, Frame(frames.READY, 1, 1), Frame(frames.WAIT, 1))
            first.settimeout(0.3)
            with pytest.raises(TimeoutError):
                first.recv(1)  # the other rank computes: it may send
            first.settimeout(10)
            send(second, Frame(frames.DONE))
            assert receive(first).kind == frames.STOP
    assert plugged.log.deadlock == "rank 0 waits to receive from rank 1, rank 1 is done"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (b"x" * 100, "a message of"),
        (Frame(b"WHAT").encode()[0], "a frame of no kind"),
        (Frame(frames.SEND, 1, 5).encode()[0], "rank 5, which there is not"),
    ],
)
def test_nonsense_ends_the_connection_and_is_named(sent, said):
    with Switch(2) as plugged, connect(plugged, plugged.plugs[0].token) as sock:
        sock.sendall(sent)
        assert sock.recv(1) == b""
        assert said in plugged.log.broken


def test_nobody_joins_without_a_token_or_twice_with_one():
    with Switch(2) as plugged, connect(plugged, "0" * 32) as stranger:
        assert stranger.recv(1) == b""
        with connect(plugged, plugged.plugs[0].token), connect(plugged, plugged.plugs[0].token) as again:
            assert again.recv(1) == b""


def test_what_nobody_takes_is_held_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(switch, "_HELD_BYTES", 1000)
    with Switch(2) as plugged, connect(plugged, plugged.plugs[0].token) as sock:
        send(sock, *[Frame(frames.SEND, number, 1, 0, b"x" * 300) for number in range(4)])
        assert wait_until(lambda: "that nobody takes" in plugged.log.broken)


def test_the_log_has_an_end(monkeypatch):
    monkeypatch.setattr(switch, "_MAX_EVENTS", 3)
    with Switch(2) as plugged, connect(plugged, plugged.plugs[0].token) as sock:
        with suppress(BrokenPipeError):  # the switch closes the line at the fourth
            send(sock, *[Frame(frames.NOTE, payload=b"again")] * 5)
        assert wait_until(lambda: "more than 3 messages" in plugged.log.broken)
    assert len(plugged.log.events) == 3


def test_a_rank_that_goes_without_a_word_has_failed_and_is_no_deadlock():
    with Switch(2) as plugged:
        first, second = (connect(plugged, plug.token) for plug in plugged.plugs)
        with first:
            send(first, Frame(frames.READY, 1, 1), Frame(frames.WAIT, 1))
            second.close()
            first.settimeout(0.3)
            with pytest.raises(TimeoutError):
                first.recv(1)
    assert not plugged.log.deadlock
    assert not plugged.log.broken


def _times_around_the_join(own_plug, slow_rank):
    if own_plug.rank == slow_rank:
        time.sleep(1)
    entered = time.monotonic()
    plug.join(own_plug, ())
    left = time.monotonic()
    plug.leave()
    return entered, left


def test_no_rank_closes_gloo_while_another_may_still_be_connecting():
    """A quick rank's connections, closed then, failed a slow one: right answers got nothing under load."""
    with Switch(3) as plugged:
        own = [(one,) for one in plugged.plugs]
        times = launch(_times_around_the_join, 2, ranks=3, per_rank=own, device="cpu")
    assert min(left for _, left in times) > max(entered for entered, _ in times)
