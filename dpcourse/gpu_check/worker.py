"""The process that carries steps out: one while all goes well, a new one after a step that did not end.

It keeps its fork server warm from step to step, which saves an import of torch for each.
"""

import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence

from dpcourse.gpu_check.place import Place
from dpcourse.gpu_check.report import Check
from dpcourse.gpu_check.running import Skipped
from dpcourse.gpu_check.steps import STEPS

DONE, BROKEN, SKIPPED = b"d", b"b", b"s"


class Worker:
    """A process that is told the names of steps, one after another, and answers each with how it ended."""

    def __init__(self, place: Place) -> None:
        self._answers, theirs = os.pipe()
        command = [sys.executable, "-m", "dpcourse.gpu_check.worker", str(theirs), *place.as_arguments()]
        with (place.out / "gpu-check.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[theirs],
                start_new_session=True,
            )
        os.close(theirs)

    def carry_out(self, name: str, limit_seconds: float) -> bytes | None:
        """Have a step done; gives how it ended, nothing where the process did, and None at the limit."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{name}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            return b""
        if not select.select([self._answers], [], [], limit_seconds)[0]:
            return None
        return os.read(self._answers, 1)

    def end(self) -> int:
        """End the process at once; its ranks see that it has gone, and end too."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.close(self._answers)
        return code


def main(arguments: Sequence[str]) -> None:
    """Be the process: do the steps that are named on standard input until nobody names any more."""
    from dpcourse.gpu_check.__main__ import read_place

    answers, place = int(arguments[0]), read_place(arguments[1:])
    for line in sys.stdin:
        os.write(answers, _carry_out(line.strip(), place))


def _carry_out(name: str, place: Place) -> bytes:
    """Do one step, and note each thing as soon as it is known."""
    with place.notes(name).open("a", buffering=1) as file:

        def note(check: Check) -> None:
            file.write(json.dumps({"check": vars(check)}) + "\n")

        try:
            STEPS[name].function(place, note)
        except Skipped as reason:
            file.write(json.dumps({"why": str(reason)}) + "\n")
            return SKIPPED
        except Exception as error:
            traceback.print_exc()
            first_line = str(error).partition("\n")[0]
            file.write(json.dumps({"why": f"{type(error).__name__}: {first_line}"}) + "\n")
            return BROKEN
    return DONE


if __name__ == "__main__":
    main(sys.argv[1:])
