"""Graders on other machines, through Dask distributed: `dask worker` wherever dpcourse is installed.

Each worker of the cluster grades as this machine would, in the same isolation, and sends back what it found;
records are written here only. A worker that is lost costs its time: Dask gives its submission to another.
"""

import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from dpcourse.grade.grading import Graded, Kept, Plan
from dpcourse.grade.intake import Submission
from dpcourse.grade.workers import Stopped

_CONNECT_SECONDS = 20
_WAITING = 2  # submissions under way for each thread of the cluster: the next is there when one is done


class Cluster:
    """The workers that a Dask scheduler has.

    Raises:
        ValueError: Dask is not installed, nobody answers at the address, or there is no worker.
    """

    def __init__(self, address: str, seconds: float = _CONNECT_SECONDS) -> None:
        try:
            from distributed import Client
            from distributed.comm import resolve_address
        except ImportError:
            raise ValueError("--scheduler needs Dask: pip install 'dpcourse[cluster]'") from None
        try:
            resolve_address(address)  # a client that is only half made complains when it goes
            self._client = Client(address, timeout=seconds, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"--scheduler {address}: no Dask scheduler answered within {seconds:g} s ({error}); start "
                "one with `dask scheduler`, and `dask worker ADDRESS` on each machine"
            ) from None
        threads = self._client.nthreads()
        if not threads:
            self._client.close()
            raise ValueError(f"--scheduler {address}: it has no workers; start `dask worker {address}`")
        self.jobs = _WAITING * sum(threads.values())

    def grade(self, submission: Submission, plan: Plan, kept: Kept | None) -> Graded:
        """Grade one submission on some worker of the cluster."""
        try:
            future = self._client.submit(grade_there, submission, plan, kept, pure=False)
            graded: Graded = future.result()
        except CancelledError as error:  # the client was closed
            raise Stopped from error
        return graded

    def close(self) -> None:
        """Take back what is under way."""
        self._client.close()


_here = threading.local()


def grade_there(submission: Submission, plan: Plan, kept: Kept | None) -> Graded:
    """On a worker of the cluster: grade, on a worker process that this thread keeps."""
    from dpcourse.grade.grading import grade

    return grade(submission, plan, kept, _desk(plan.isolation.kind))


def _desk(kind: str) -> Any:
    from dpcourse.grade.isolation import find
    from dpcourse.grade.workers import Desk
    from dpcourse.ranks.processes import adopt_orphans

    if getattr(_here, "kind", None) != kind:
        if hasattr(_here, "desk"):
            _here.desk.close()
        root = Path(__file__).parents[2]
        adopt_orphans()
        _here.desk, _here.kind = Desk(find(kind, [root / "labs" / "source", root / ".git"])), kind
    return _here.desk
