"""Runs every notebook of the course without a browser: `dpcourse course`, or `make course`.

Each notebook runs through papermill in a fresh kernel, limited as a whole and cell by cell. build/course/
gets the executed notebooks, a page for each, and an index; one that failed makes the exit code 1.
"""

import argparse
import ast
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dpcourse.json_output import add_json, show, words_aside
from dpcourse.workspace import WorkspaceError, course_root

EXAMPLES = """\
examples:
  dpcourse course                      every notebook
  dpcourse course 01 -p ranks 2        chapter 01 alone, on 2 ranks
  dpcourse course 00 --out FOLDER      its pages into a folder of yours

What is shown: a line for each notebook with its time and its checks, and a bar over all cells meanwhile.

exit codes: 0 all ran and every check passed; 1 a notebook failed; 2 wrong arguments; 130 interrupted
"""
CHECK_TAG = "check"  # a cell with this tag is a check: it passes when it runs without an error


@dataclass(frozen=True)
class Limits:
    """Seconds that a notebook may take: as a whole, and for one cell."""

    notebook_seconds: float = 900
    cell_seconds: float = 180


@dataclass(frozen=True)
class Outcome:
    """How one notebook went. `problem` is empty where it ran through."""

    name: str
    title: str
    seconds: float
    num_checks: int
    num_passed: int
    problem: str = ""
    page: str = ""

    @property
    def is_good(self) -> bool:
        return not self.problem and self.num_passed == self.num_checks


@dataclass
class Course:
    """What is run, where to, and with which parameters."""

    notebooks: list[Path]
    out: Path
    parameters: dict[str, Any] = field(default_factory=dict)
    limits: Limits = Limits()


# ---- reading a notebook: plain JSON, no kernel ----


def code_cells(notebook: Any) -> list[Any]:
    """The code cells that hold anything."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def title_of(notebook: Any, default: str) -> str:
    """The first heading."""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for line in cell.source.splitlines():
                if line.startswith("# "):
                    return line[2:].strip()
    return default


def has_tag(cell: Any, tag: str) -> bool:
    """Whether a cell bears a tag, as JupyterLab keeps them in its metadata."""
    return tag in cell.metadata.get("tags", [])


def parameter_names(notebook: Any) -> set[str]:
    """Names that the notebook's parameters cell assigns."""
    sources = [cell.source for cell in code_cells(notebook) if has_tag(cell, "parameters")]
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def has_error(cell: Any) -> bool:
    """Whether a cell stopped with an error when it ran."""
    return any(output.output_type == "error" for output in cell.get("outputs", []))


def not_run(notebook: Any) -> int:
    """Code cells without an execution count: an exit in a cell skips the rest without any error."""
    return sum(cell.get("execution_count") is None for cell in code_cells(notebook))


def checks(notebook: Any) -> tuple[int, int]:
    """(number of cells tagged as checks, how many of them ran without an error)."""
    tagged = [cell for cell in code_cells(notebook) if has_tag(cell, CHECK_TAG)]
    passed = [cell for cell in tagged if cell.get("execution_count") is not None and not has_error(cell)]
    return len(tagged), len(passed)


# ---- running ----


def run_notebook(path: Path, course: Course, on_cell: Callable[[], None] = lambda: None) -> Outcome:
    """Run one notebook into `course.out`, whatever becomes of it; nothing that it started is left."""
    import nbformat

    source = nbformat.read(path, as_version=4)
    executed = course.out / path.name
    executed.unlink(missing_ok=True)
    started = time.monotonic()
    with _no_process_left():
        problem = _execute(path, executed, course, started, on_cell)
    done = nbformat.read(executed, as_version=4) if executed.exists() else source
    skipped = not_run(done) if executed.exists() else len(code_cells(source))
    if skipped and not problem:
        problem = f"cells not run: {skipped}, although none failed: does one call exit()?"
    return Outcome(
        path.stem,
        title_of(source, path.stem),
        time.monotonic() - started,
        checks(source)[0],
        checks(done)[1] if executed.exists() else 0,
        problem,
        _page(executed, path.parent) if executed.exists() else "",
    )


def _execute(path: Path, executed: Path, course: Course, started: float, on_cell: Callable[[], None]) -> str:
    """papermill's run; the one line that says what went wrong, or nothing."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    limits = course.limits
    deadline = started + limits.notebook_seconds
    try:
        papermill.execute_notebook(
            str(path),
            str(executed),
            _parameters_for(path, course.parameters),
            kernel_name="python3",
            language="python",
            progress_bar=False,
            cwd=str(course.out),
            # The time that is left of the whole limits each cell, so that one clock bounds them all.
            timeout_func=lambda _: max(0.1, min(limits.cell_seconds, deadline - time.monotonic())),
            on_cell_executed=lambda **_: on_cell(),
            shutdown_kernel="immediate",
            store_widget_state=False,  # a page without a kernel has no use for it
            extra_arguments=["--log-level=40"],  # the kernel's own warnings would break the progress bar
        )
    except PapermillExecutionError as error:
        return f"In [{error.exec_count}]: {error.ename}: {error.evalue}".strip()[:500]
    except CellTimeoutError:
        if time.monotonic() >= deadline:
            return f"stopped: the notebook as a whole took more than {limits.notebook_seconds:g} s"
        return f"stopped: a cell took more than {limits.cell_seconds:g} s"
    except DeadKernelError:
        return "the kernel died"
    return ""


def _parameters_for(path: Path, parameters: dict[str, Any]) -> dict[str, Any]:
    import nbformat

    known = parameter_names(nbformat.read(path, as_version=4))
    return {name: value for name, value in parameters.items() if name in known}


@contextlib.contextmanager
def _no_process_left() -> Iterator[None]:
    """Kill what was started inside, orphans included, and nothing that ran before."""
    import psutil

    from dpcourse.ranks.processes import adopt_orphans, kill_descendants

    adopt_orphans()
    before = frozenset(child.pid for child in psutil.Process().children())
    try:
        yield
    finally:
        started = [child for child in psutil.Process().children() if child.pid not in before]
        kill_descendants(keep=before)
        psutil.wait_procs(started, timeout=10)


def _page(executed: Path, folder: Path) -> str:
    """Write the notebook as an HTML page beside it, and return the page's name."""
    import nbformat

    from dpcourse.pages import page_of

    page = executed.with_suffix(".html")
    notebook = nbformat.read(executed, as_version=4)
    page.write_text(page_of(notebook, executed.stem, folder), encoding="utf-8")
    return page.name


def run_course(course: Course) -> list[Outcome]:
    """Run all notebooks one after another, with a progress bar over their cells, and write the index."""
    import nbformat
    from tqdm import tqdm

    from dpcourse.course_index import write_index

    course.out.mkdir(parents=True, exist_ok=True)
    os.environ |= {"DPCOURSE_PROGRESS": "off", "DPCOURSE_ROOM": ""}  # a batch run predicts nothing
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, whatever the home folder holds
    cells = {path: len(code_cells(nbformat.read(path, as_version=4))) for path in course.notebooks}
    outcomes: list[Outcome] = []
    with tqdm(total=sum(cells.values()), unit="cell", delay=2) as bar:
        for path in course.notebooks:
            bar.set_description(path.stem)
            outcomes.append(run_notebook(path, course, on_cell=lambda: bar.update(bar.n < bar.total)))
            bar.write(line_of(outcomes[-1]), file=sys.stdout)
            bar.n = sum(
                cells[ran] for ran in course.notebooks[: len(outcomes)]
            )  # also where cells were skipped
            bar.refresh()
            write_index(outcomes, course.out / "index.html")
    return outcomes


def line_of(outcome: Outcome) -> str:
    """What the terminal says of one notebook: seconds, checks passed and, where it failed, why."""
    text = (
        f"{outcome.name}: {outcome.seconds:.0f} s, {outcome.num_passed} of {outcome.num_checks} checks passed"
    )
    return f"{text}; FAILED: {outcome.problem}" if outcome.problem else text


# ---- the command ----


def chosen(root: Path, names: Sequence[str]) -> list[Path]:
    """The notebooks that are meant: all, or those whose names begin as asked."""
    there = sorted((root / "notebooks").glob("*.ipynb"))
    wrong = [name for name in names if not any(path.stem.startswith(name) for path in there)]
    if wrong or not there:
        stems = ", ".join(path.stem for path in there) or "none"
        raise WorkspaceError(f"no notebook {' or '.join(wrong) or 'to run'} is in {root}/notebooks: {stems}")
    return [path for path in there if not names or any(path.stem.startswith(name) for name in names)]


def parsed_value(text: str) -> Any:
    """2 as a number, True as a truth value, everything else as it stands."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def check_parameters(notebooks: list[Path], parameters: dict[str, Any]) -> None:
    """Refuse a parameter that no notebook has: papermill would only warn."""
    import nbformat

    known = {name for path in notebooks for name in parameter_names(nbformat.read(path, as_version=4))}
    unknown = sorted(set(parameters) - known)
    if unknown:
        raise WorkspaceError(f"no notebook has a parameter {', '.join(unknown)}: {', '.join(sorted(known))}")


def parser() -> argparse.ArgumentParser:
    """The options of `dpcourse course`."""
    command = argparse.ArgumentParser(
        prog="dpcourse course",
        description="Run the notebooks without a browser into build/course/: HTML, with an index.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("names", nargs="*", help="which notebooks, as in: 00 01 (default: all)")
    command.add_argument(
        "-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="a value for the notebooks' parameters cell, as in: -p ranks 2",
    )  # fmt: skip
    command.add_argument("--out", type=Path, help="folder for the results (default: build/course)")
    command.add_argument("--limit", type=float, default=900, help="seconds for a whole notebook (900)")
    command.add_argument("--cell-limit", type=float, default=180, help="seconds for one cell (180)")
    add_json(command, "what became of each notebook")
    return command


def main(argv: Sequence[str]) -> int:
    """`dpcourse course`: 0 when everything ran and passed, else 1."""
    options = parser().parse_args(argv)
    root = course_root()
    notebooks = chosen(root, options.names)
    parameters = {name: parsed_value(value) for name, value in options.parameter}
    check_parameters(notebooks, parameters)
    out = (options.out or root / "build" / "course").resolve()
    with words_aside(options.json):
        outcomes = run_course(Course(notebooks, out, parameters, Limits(options.limit, options.cell_limit)))
        num_good = sum(outcome.is_good for outcome in outcomes)
        print(f"{num_good} of {len(outcomes)} notebooks passed; see {out / 'index.html'}")
    if options.json:
        show([{**asdict(outcome), "is_good": outcome.is_good} for outcome in outcomes])
    return 0 if num_good == len(outcomes) else 1
