"""Runs a merged notebook through papermill, for the report: limited, and never for points."""

import copy
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import papermill_io
from papermill.utils import merge_kwargs

from dpcourse.grade.kernel import Judged, Kernel, manager_of
from dpcourse.grade.limits import Limits

_MESSAGE_BYTES = (
    64  # counted for every message beside its text, so that a million empty ones are no way round
)


@dataclass(frozen=True)
class Executed:
    """The notebook after its run, what went wrong with the run as a whole, and which cells never ran.

    num_left: processes that had not ended when the kernel had.
    """

    notebook: dict[str, Any]
    problem: str
    cells_not_run: tuple[str, ...]
    num_left: int


class LimitedClient(PapermillNotebookClient):
    """A client that leaves out what a cell shows beyond its share."""

    def __init__(self, *args: Any, output_bytes: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.output_bytes, self.shown_bytes = output_bytes, dict[int, int]()

    def output(self, outs: Any, msg: Any, display_id: Any, cell_index: int) -> Any:
        """Take one message of a cell, or what of it still fits into the cell's share."""
        before = self.shown_bytes.get(cell_index, 0)
        self.shown_bytes[cell_index] = before + _num_bytes(msg["content"])
        if self.shown_bytes[cell_index] <= self.output_bytes:
            return super().output(outs, msg, display_id, cell_index)
        if before > self.output_bytes:
            return None
        kept = msg["content"]["text"][: self.output_bytes - before] if msg["msg_type"] == "stream" else ""
        note = f"{kept}\n[output beyond {self.output_bytes} bytes was left out]\n"
        stream = {**msg, "msg_type": "stream", "content": {"name": "stderr", "text": note}}
        stream["header"] = {**msg["header"], "msg_type": "stream"}
        return super().output(outs, stream, None, cell_index)


def _num_bytes(content: dict[str, Any]) -> int:
    texts = [content.get("text", ""), *content.get("data", {}).values(), *content.get("traceback", [])]
    return _MESSAGE_BYTES + sum(len(text) if isinstance(text, str) else len(str(text)) for text in texts)


class LimitedEngine(NBClientEngine):
    """papermill's own engine, with the limited client."""

    @classmethod
    def execute_managed_notebook(
        cls, nb_man: Any, kernel_name: str, start_timeout: int = 60, **kwargs: Any
    ) -> Any:
        """Run the notebook that papermill manages; the options that are known here go to the client."""
        known = ("timeout_func", "output_bytes", "allow_errors", "shutdown_kernel", "kernel_manager_class")
        chosen = {name: kwargs[name] for name in known if name in kwargs}
        final = merge_kwargs(chosen, startup_timeout=start_timeout, kernel_name=kernel_name)
        return LimitedClient(nb_man, **final).execute()


class Memory:
    """Keeps what papermill writes under a name that begins with `memory:`, out of reach of the kernel."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def read(self, path: str) -> str:
        """The text under a name."""
        return self.texts[path]

    def write(self, text: str, path: str) -> None:
        """Keep a text, in place of one that was there."""
        self.texts[path] = text

    def listdir(self, path: str) -> list[str]:
        """The names that begin so."""
        return [name for name in self.texts if name.startswith(path)]

    def pretty_path(self, path: str) -> str:
        """The name itself."""
        return path


_OUTPUT = "memory:executed.ipynb"
_memory = Memory()
papermill_io.register("memory:", _memory)
papermill_engines.register("dpcourse", LimitedEngine)


def execute(
    notebook: dict[str, Any],
    limits: Limits,
    parameters: dict[str, Any],
    transport: str = "tcp",
    judged: Judged | None = None,
) -> Executed:
    """Run the notebook from top to bottom, past errors, within the limits, in a kernel that is forked here.

    transport: how the kernel is talked to; "ipc" where it has no network in common with this process.
    judged: verdicts for the notebook's checks to show; without them, each check judges.
    """
    _memory.texts.clear()
    started: list[Kernel] = []
    try:
        copied = nbformat.from_dict(copy.deepcopy(notebook))
        problem = _run(copied, limits, parameters, manager_of(started, transport, judged))
    finally:
        for kernel in started:
            kernel.kill()
    written = _memory.texts.get(_OUTPUT)
    done = nbformat.reads(written, as_version=4) if written else nbformat.from_dict(notebook)
    left = sum(kernel.num_left for kernel in started)
    return Executed(_without_traces(done), problem, _cells_not_run(done), left)


class _Clock:
    """Gives each cell its seconds, out of those left to the whole run, and remembers which cell runs."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.cell = limits, ""
        self.deadline = time.monotonic() + limits.run_seconds

    def __call__(self, cell: Any) -> float:
        self.cell = cell.get("id", "?")
        return max(0.1, min(self.limits.cell_seconds, self.deadline - time.monotonic()))

    def passed(self) -> str:
        """Which limit was passed, in words."""
        if time.monotonic() >= self.deadline:
            return f"the limit of {self.limits.run_seconds:g} s for the whole run was passed"
        return f"the limit of {self.limits.cell_seconds:g} s for a cell was passed"


def _run(notebook: Any, limits: Limits, parameters: dict[str, Any], manager: type) -> str:
    clock = _Clock(limits)
    try:
        papermill.execute_notebook(
            notebook,
            _OUTPUT,
            parameters,
            engine_name="dpcourse",
            kernel_name="python3",
            progress_bar=False,
            cwd=str(Path.cwd()),
            timeout_func=clock,
            output_bytes=limits.output_bytes,
            allow_errors=True,
            shutdown_kernel="immediate",
            kernel_manager_class=manager,
        )
    except PapermillExecutionError:
        return ""  # an error in a cell: it stands in the notebook, and the other cells ran
    except CellTimeoutError:
        return f"stopped in cell {clock.cell}: {clock.passed()}"
    except DeadKernelError:
        return f"the kernel died in cell {clock.cell}"
    except Exception as error:  # whatever papermill meets, the batch goes on
        return f"the run broke off: {type(error).__name__}: {str(error)[:300]}"
    return ""


def _without_traces(notebook: Any) -> dict[str, Any]:
    """The notebook without papermill's own paths and times, so that the same run gives the same file."""
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
    result: dict[str, Any] = notebook
    return result


def _cells_not_run(notebook: Any) -> tuple[str, ...]:
    """The code cells without an execution count: an exit can end a run without any error."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    return tuple(cell.get("id", "?") for cell in code if not cell.get("execution_count"))
