"""The bucket slider: real ranks that stay between moves, are stopped at once, and leave nothing behind."""

import subprocess
import sys
import threading

import psutil
import pytest

from dpcourse.experiments import buckets
from dpcourse.experiments.buckets import Backward
from dpcourse.experiments.live_buckets import LiveBuckets, Stopped
from dpcourse.figures.canvas import Figure
from dpcourse.widgets.buckets import BucketPanel, bucket_slider
from tests.conftest import is_alive, wait_until

pytestmark = pytest.mark.long


def ranks_alive():
    """Processes below this one's fork server: leaders and ranks."""
    children = psutil.Process().children()
    return [one.pid for child in children for one in child.children(recursive=True)]


def test_ranks_answer_stay_and_are_stopped_in_the_middle_of_a_step():
    before, live, heard = set(ranks_alive()), LiveBuckets(), []
    assert not live.points().is_fitted
    first = live.measure(1 / 16, heard.append)
    assert heard[:2] == ["starting two ranks and measuring their link", "measuring the link"]
    assert first.num_buckets == len(_expected(live, 1 / 16))
    ranks, heard = set(ranks_alive()) - before, []
    assert len(ranks) == 3  # two ranks, and the leader that keeps them
    second = live.measure(1.0, heard.append)
    assert set(ranks_alive()) - before == ranks
    assert heard[0] == "step 1 of 5"
    points = live.points()
    assert points.is_fitted
    assert [row.seconds for row in points.times] == [first.seconds, second.seconds]
    # 1.07 MB take 171 ms on 50 Mbit/s, whatever the model says of the rest.
    assert all(min(row.seconds) > 0.15 for row in points.times)

    with pytest.raises(Stopped):
        live.measure(1 / 1024, lambda words: live.stop() if words == "step 2 of 5" else None)
    assert wait_until(lambda: not set(ranks_alive()) & ranks, 20)
    assert live.points().times == points.times


def _expected(live, cap):
    request = buckets.request_of(live.cluster, buckets.MODEL, buckets.PACE, cap)
    return [each for each in request.expected_traffic() if (each.rank, each.phase) == (0, "backward")]


def test_ranks_that_die_are_reported_and_others_take_their_place():
    before, live = set(ranks_alive()), LiveBuckets()
    live.measure(1.0)
    doomed = [psutil.Process(pid) for pid in set(ranks_alive()) - before]

    def kill(words):
        if words == "step 1 of 5":
            next(one for one in doomed if not one.children()).kill()

    with pytest.raises(Exception, match=r"rank \d of 2"):
        live.measure(1.0, kill)
    assert live.measure(1.0).seconds
    live.stop()
    assert wait_until(lambda: set(ranks_alive()) <= before, 20)


def test_ranks_end_with_the_process_that_asked():
    code = (
        "import psutil\nfrom dpcourse.experiments.live_buckets import LiveBuckets\n"
        "LiveBuckets().measure(1.0)\n"
        "print(*(child.pid for child in psutil.Process().children(recursive=True)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    pids = list(map(int, found.stdout.split()))
    assert len(pids) == 4
    assert wait_until(lambda: not any(map(is_alive, pids)), 20)


# -- the panel, with ranks that answer when they are told to ----------------------


class Ranks:
    """In the place of real ones: each answer waits until the test lets it go."""

    def __init__(self):
        self.real, self.asked, self.go, self.is_stopped = LiveBuckets(), [], threading.Semaphore(0), False

    def points(self):
        return self.real.points()

    def measure(self, cap_mb, hear):
        self.asked.append(round(cap_mb * 1024))
        hear("step 1 of 5")
        assert self.go.acquire(timeout=10)
        if self.is_stopped:
            raise Stopped
        if cap_mb * 1024 == 13:
            raise ValueError("13 KiB: give <another>")
        self.real.times.append(Backward(cap_mb, 3, (0.2, 0.3, 0.25), 0.2))

    def stop(self):
        if self.asked:
            self.is_stopped = True
            self.go.release()


@pytest.fixture
def panel(monkeypatch):
    from IPython import display

    monkeypatch.setattr(display, "update_display", lambda picture, display_id: None)
    return BucketPanel(64, Ranks())


def test_a_move_runs_its_size_and_draws_its_point(panel):
    assert "nothing measured yet" in panel.picture.title
    panel.controls["kib"].field.value = 256
    panel.ranks.go.release()
    panel.wait(10)
    assert panel.ranks.asked == [256]
    assert "256 KiB took 250.00 ms, the model says 200.00 ms" in panel.picture.title
    assert panel.words == panel.picture.title
    assert panel.picture.png().startswith(b"\x89PNG")


def test_while_one_runs_the_last_of_those_that_wait_is_taken(panel):
    panel.run()
    assert wait_until(lambda: panel.ranks.asked == [64], 20)
    for kib in (1, 2, 4):
        panel.controls["kib"].field.value = kib
    assert panel.words == "Running 64 KiB."
    for _ in range(2):
        panel.ranks.go.release()
    panel.wait(10)
    assert panel.ranks.asked == [64, 4]


def test_stop_ends_it_and_says_so(panel):
    run, stop = panel.buttons
    stop.click()
    assert panel.words == "Nothing is running."
    run.click()
    stop.click()  # before the ranks are asked, or after
    panel.wait(10)
    assert not panel.ranks.real.times
    assert "Running" not in panel.words


def test_an_error_of_the_thread_stands_in_words_in_the_panel(panel):
    panel.controls["kib"].field.value = 13
    panel.ranks.go.release()
    panel.wait(10)
    assert panel.words == "13 KiB: give <another>"
    assert "&lt;another&gt;" in panel._news.value


def test_waiting_for_what_still_runs_ends_too(panel):
    panel.run()
    with pytest.raises(TimeoutError, match=r"still runs after 0\.01 s; press Stop"):
        panel.wait(0.01)
    panel.ranks.go.release()
    panel.wait(10)


def test_the_reference_configuration_shows_the_model_alone(monkeypatch):
    monkeypatch.setenv("DPCOURSE_REFERENCE", "1")
    picture = bucket_slider()
    assert isinstance(picture, Figure)
    assert "nothing measured yet" in picture.title
