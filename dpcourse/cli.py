"""The command line: `dpcourse lab`, `reset`, and the commands that live in modules of their own."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from dpcourse.json_output import add_json, show

EXAMPLES = """\
examples:
  dpcourse lab                           open JupyterLab on your own copy of the course, in my/
  dpcourse reset 03                      chapter 03 as the course has it; your version stays beside it
  dpcourse reset labs/03                 the same for lab 03
  dpcourse course                        run every notebook into build/course/ (HTML, with an index)
  dpcourse course 01 -p ranks 2          run chapter 01 alone, on 2 ranks
  dpcourse doctor                        what this machine has, and what each chapter will use of it
  dpcourse grade 01_equivalence SUBMISSIONS --out graded
  dpcourse release participants.zip      what a participant gets: no solutions, no outputs
  dpcourse plan llama-2-7b --gpus 8 --gpu-memory 80GB    which strategy, and why
  dpcourse run fsdp2 --ranks 4           one experiment, as dc.train runs it
  dpcourse run ddp --json                the same, as one JSON document on stdout
  dpcourse torchrun --help               the same experiments on several machines
  dpcourse hosts 2 -- COMMAND            COMMAND on each of two emulated machines

exit codes:
  0  done, and everything passed
  1  it ran, and something failed: a notebook, a check of the machine
  2  it could not run: wrong arguments, something missing; one line says what
  130  it was interrupted; nothing that it started is left

`dpcourse COMMAND --help` says more about one command.
"""

RESET_EXAMPLES = """\
examples:
  dpcourse reset 03          chapter 03: a bare number or name means the notebook
  dpcourse reset labs/03     lab 03
  dpcourse reset 03 04       two at once; where one name is wrong, none is brought back

exit codes: 0 brought back; 2 no such notebook; 130 interrupted
"""

# These read their own arguments: their modules load only when they are asked for.
_ELSEWHERE = {
    "course": ("dpcourse.course", "run all notebooks without a browser"),
    "doctor": ("dpcourse.doctor", "say what this machine has, and try it"),
    "grade": ("dpcourse.grade", "grade a folder of submissions"),
    "plan": ("dpcourse.plan_command", "choose a strategy for a model on some cards"),
    "release": ("dpcourse.handout", "write what a participant gets: no solutions, no outputs"),
    "run": ("dpcourse.run_command", "train with one strategy and show what was measured"),
    "torchrun": ("dpcourse.ranks.agent", "be one of several machines that run something together"),
    "hosts": ("dpcourse.network.on_hosts", "run a command on each of several emulated machines"),
}
FIRST_NOTEBOOK = "notebooks/00_start_here.ipynb"  # what JupyterLab opens with


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpcourse",
        description="An interactive course on data parallelism: real processes, every byte counted.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_lab(commands)
    _add_reset(commands)
    for name, (_, help_text) in _ELSEWHERE.items():
        commands.add_parser(name, help=help_text, add_help=False)
    return parser


def _add_lab(commands: Any) -> None:
    lab = commands.add_parser(
        "lab",
        help="open JupyterLab on your own copy of the course",
        description="Put new notebooks and labs into my/ (edited copies stay), then open JupyterLab.",
        epilog="What follows goes to JupyterLab, as in: dpcourse lab --no-browser --port 8890",
    )
    lab.set_defaults(run=_lab)
    lab.add_argument("--copies-only", action="store_true", help="make the copies, start nothing")


def _add_reset(commands: Any) -> None:
    reset = commands.add_parser(
        "reset",
        help="bring one notebook or lab back to the course's version",
        description="Bring one copy in my/ back. An edited one is kept beside it, as 03_ddp.mine.ipynb.",
        epilog=RESET_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    reset.add_argument("name", nargs="+", help="03, 03_ddp, labs/03 or a path in my/")
    add_json(reset, "what became of each copy")
    reset.set_defaults(run=_reset)


def _lab(options: argparse.Namespace, rest: Sequence[str]) -> int:
    from dpcourse.workspace import Workspace

    space = Workspace()
    for change in space.update():
        print(change)
    if options.copies_only:
        return 0
    sys.stdout.flush()
    where = [f"--ServerApp.root_dir={space.my}", f"--LabApp.default_url=/lab/tree/{FIRST_NOTEBOOK}"]
    command = [sys.executable, "-m", "jupyterlab", *where, *_as_root(), *rest]
    os.execve(sys.executable, command, _lab_environment(dict(os.environ)))


def _as_root() -> list[str]:
    """JupyterLab refuses root unless told; in a container root is the only user there is."""
    return ["--allow-root"] if os.geteuid() == 0 else []


def _lab_environment(environ: dict[str, str]) -> dict[str, str]:
    """Kernels and terminals of this environment come first, whatever is installed in the learner's home."""
    here = os.path.dirname(sys.executable)
    return {**environ, "JUPYTER_PREFER_ENV_PATH": "1", "PATH": f"{here}{os.pathsep}{environ.get('PATH', '')}"}


def _reset(options: argparse.Namespace, rest: Sequence[str]) -> int:
    from dpcourse.workspace import Workspace

    space = Workspace()
    names = [space.find(wanted) for wanted in options.name]  # all or none: a wrong name resets nothing
    changes = [space.reset(name) for name in names]
    if options.json:
        show([asdict(change) for change in changes])
    else:
        print(*changes, sep="\n")
    return 0


def _run_elsewhere(command: str, arguments: list[str]) -> int:
    return importlib.import_module(_ELSEWHERE[command][0]).main(arguments) or 0


def _run_here(arguments: list[str]) -> int:
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown and options.command == "reset":
        parser.error(f"reset takes names of notebooks, not {' '.join(unknown)}")
    # In the order they were typed: argparse may return an option apart from its value.
    rest = [argument for argument in arguments[1:] if argument not in ("--copies-only", "--")]
    return options.run(options, rest)


def _known_errors() -> tuple[type[Exception], ...]:
    from dpcourse.workspace import WorkspaceError

    return (WorkspaceError, OSError)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Errors that a person can mend are one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments else ""
    try:
        if command in _ELSEWHERE:
            return _run_elsewhere(command, arguments[1:])
        return _run_here(arguments)
    except _known_errors() as error:
        print(f"dpcourse {command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"dpcourse {command}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
