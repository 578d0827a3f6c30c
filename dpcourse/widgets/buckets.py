"""DDP's backward, run for real on a slow link for the bucket size that is chosen: a point on the U a move."""

import threading
import time
from typing import Any

from dpcourse.experiments.live_buckets import LiveBuckets, Stopped
from dpcourse.figures.canvas import Figure
from dpcourse.figures.live_buckets import live_bucket_curve
from dpcourse.show import is_reference
from dpcourse.widgets.controls import button, number
from dpcourse.widgets.panel import Panel

_QUIET_SECONDS = 2.0
_KIB = 1024


class BucketPanel(Panel):
    """A panel whose runs go on in a thread, so that its stop button is heard; one run at a time."""

    def __init__(self, kib: int, ranks: Any = None) -> None:
        self.ranks = ranks or LiveBuckets()
        self._runner: threading.Thread | None = None
        self._lock = threading.Lock()
        self._wanted: int | None = None
        self._is_stopping = False
        controls = {"kib": number("Bucket size (KiB)", kib, 1, _KIB, is_doubling=True)}
        super().__init__(self._drawn, controls, [button("Run", self.run), button("Stop", self.stop)])

    def _drawn(self, kib: int) -> Figure:
        return live_bucket_curve(self.ranks.points())

    def redraw(self) -> None:
        """A moved control asks for a run; its point is drawn when it is there."""
        self.run()

    def run(self) -> None:
        """Run the chosen size, after the one that is running; of several that wait the last is taken."""
        with self._lock:
            self._wanted = self.values["kib"]
            if self._runner is None:
                self._runner = threading.Thread(target=self._work, name="bucket slider", daemon=True)
                self._runner.start()

    def stop(self) -> None:
        """Stop what is running, and end the ranks."""
        with self._lock:
            self._wanted, self._is_stopping = None, True
            runner = self._runner
        self.ranks.stop()
        if runner is None:
            self.say("Nothing is running.", is_seen=True)

    def wait(self, seconds: float) -> None:
        """Wait until nothing runs any more.

        Raises TimeoutError where something still does after so many seconds.
        """
        runner = self._runner
        if runner:
            runner.join(seconds)
            if runner.is_alive():
                raise TimeoutError(f"the bucket slider still runs after {seconds:g} s; press Stop")

    def _next(self) -> int | None:
        with self._lock:
            wanted, self._wanted, self._is_stopping = self._wanted, None, False
            if wanted is None:
                self._runner = None
            return wanted

    def _work(self) -> None:
        while (kib := self._next()) is not None:
            try:
                self._measure(kib)
            except Stopped:
                self.say("Stopped. The ranks have ended.", is_seen=True)
            except Exception as error:  # a thread's error would be shown nowhere
                self.complain(error)

    def _measure(self, kib: int) -> None:
        started = time.monotonic()
        self.say(f"Running {kib} KiB.", is_seen=True)
        self.ranks.measure(kib / _KIB, lambda words: self._hear(kib, started, words))
        self.show(live_bucket_curve(self.ranks.points()))

    def _hear(self, kib: int, started: float, words: str) -> None:
        if self._is_stopping:  # it was, before the ranks knew that they would be asked
            raise Stopped
        seconds = time.monotonic() - started
        if seconds > _QUIET_SECONDS:
            self.say(f"Running {kib} KiB, {seconds:.0f} s: {words}.", is_seen=True)


def bucket_slider(kib: int = 64) -> Any:
    """Choose a size of bucket: DDP's backward runs with it on two ranks with a slow link between them.

    The first picture has the model's curve alone, for the link that was asked for. The first run starts the
    ranks and measures the link, which takes some seconds; each later one takes two or three. The ranks end
    when they are stopped, or when nobody has asked for a minute.
    """
    return live_bucket_curve(LiveBuckets().points()) if is_reference() else BucketPanel(kib)
