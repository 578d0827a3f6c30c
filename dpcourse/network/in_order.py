"""Collectives that go on while the rank computes: a thread of a group's own carries them out in order."""

# mypy: disable-error-code="override"

import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from dpcourse.scratch import announce

THREAD_NAME = "dpcourse-collectives"


class Job(dist._Work):
    """A collective that is under way, or waits for its turn: as torch's own works, with wait and get_future.

    An error is raised by wait as it was, by the future as a RuntimeError with its text: torch keeps no more.
    """

    def __init__(self, function: Callable[[], None], results: list[torch.Tensor]) -> None:
        super().__init__()
        self.asked_seconds = time.monotonic()
        self._function: Callable[[], None] | None = function
        self._is_inference = torch.is_inference_mode_enabled()
        self._is_over = False
        # A lock and no Event: the witness of a hang sees who waits by the file that it stands in.
        self._under_way = threading.Lock()
        self._under_way.acquire()
        self._error: BaseException | None = None
        # A future that gives tensors of a GPU has to be told so: it lets streams that take them wait.
        gpus: list[Any] = list(dict.fromkeys(tensor.device for tensor in results if tensor.is_cuda))
        self._end: torch.futures.Future = torch.futures.Future(devices=gpus)
        self._future = self._end.then(lambda _: self._given(results))

    def wait(self, timeout: Any = None) -> bool:
        with self._under_way:
            pass
        if self._error is not None:
            raise self._error
        return True

    def get_future(self) -> torch.futures.Future:
        return self._future

    def is_completed(self) -> bool:
        return self._is_over

    def is_success(self) -> bool:
        return self._is_over and self._error is None

    def carry_out(self) -> None:
        try:
            with torch.inference_mode(self._is_inference), torch.no_grad():
                self._call()
        except BaseException as error:
            self._error = error
        self._is_over = True
        self._under_way.release()
        self._end.set_result(None)

    def _call(self) -> None:
        """Call the function, and let go of it: whoever waits may look at what memory there is."""
        function, self._function = self._function, None
        assert function is not None
        function()

    def _given(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return results


class InOrder:
    """A thread, started with the first job, that carries out one job after another."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, function: Callable[[], None], results: list[torch.Tensor]) -> Job:
        """Have a function called after all that were given before; its work gives the results."""
        if self._thread is None:
            # A daemon, since a rank that fails must not wait for a collective that its peers never join.
            self._thread = threading.Thread(target=_work, args=(self._jobs,), name=THREAD_NAME, daemon=True)
            self._thread.start()
            weakref.finalize(self, self._jobs.put, None)
        job = Job(function, results)
        if self.is_here():  # a callback of the job before asks for another collective, and may wait for it
            job.carry_out()
        else:
            self._jobs.put(job)
        return job

    def is_here(self) -> bool:
        """Tell whether the caller runs in this thread."""
        return threading.current_thread() is self._thread


def _work(jobs: "queue.SimpleQueue[Job | None]") -> None:
    while (job := jobs.get()) is not None:
        announce.carry_out(job.asked_seconds)
        job.carry_out()
        del job  # and its tensors with it
