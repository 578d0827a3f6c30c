"""`dpcourse doctor`: look at everything, say it, and write a report where one is asked for."""

import argparse
import os
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

import dpcourse
from dpcourse.doctor import chapters, isolation, packages, probes, real_run
from dpcourse.doctor.finding import Finding, Probe, Progress, look, progress_line
from dpcourse.doctor.report import HOLDS, Report
from dpcourse.json_output import add_json, words_aside

PROBES = {
    "What is attached": (
        Probe("system", probes.system, is_needed=True),
        Probe("cores", probes.cores),
        Probe("memory", probes.memory),
        Probe("disk", probes.disk),
        Probe("GPUs", probes.gpus, deadline_seconds=30),
    ),
    "What this system allows": (
        Probe("kernel links", isolation.links, deadline_seconds=40),
        Probe("isolation", isolation.isolation, deadline_seconds=30),
        Probe("byte counts", probes.byte_counters, deadline_seconds=15),
    ),
    "Python and packages": (
        Probe("Python", packages.python, is_needed=True),
        Probe("packages", packages.packages, is_needed=True),
        Probe("torch", packages.torch),
        Probe("DeepSpeed", packages.deepspeed),
        Probe("compiler", probes.compiler),
    ),
}
REAL_RUN = Probe("2 ranks", real_run.real_run, real_run.DEADLINE_SECONDS + 10, is_needed=True)

EPILOG = f"""\
examples:
  dpcourse doctor                        look, and run 2 ranks
  dpcourse doctor --quick                look only
  dpcourse doctor --report doctor.json   the report to send before a workshop
  dpcourse doctor --json                 the same on stdout

{textwrap.fill(f"The report holds {HOLDS}. Look it through before you send it.", 80)}

exit codes:
  0  the course can run here
  1  it cannot; the text says what to do
  2  wrong arguments
  130  interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Look at this machine; 0 when the course can run here, 1 when it cannot, 2 for wrong arguments."""
    try:
        options = _options(argv)
    except SystemExit as leaving:  # argparse has said what is wrong, or shown the help
        return int(leaving.code or 0)
    with words_aside(options.json):
        report = examine(options.quick)
        print(report, end="\n\n")
        if options.report:
            with open(options.report, "w", encoding="utf-8") as file:
                file.write(report.to_json())
        print(report.closing(options.report))
    if options.json:
        print(report.to_json(), end="")
    return 0 if report.can_run else 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dpcourse doctor",
        description="Say what this machine has, what each chapter will use of it, and try a real run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="leave out the real run and its measurements")
    parser.add_argument("--report", metavar="FILE", help="write what was found to FILE too, as JSON")
    add_json(parser, "the report")
    options = parser.parse_args(argv)
    if options.report is not None and (problem := _why_not(options.report)):
        parser.error(f"--report {options.report}: {problem}")
    return options


def _why_not(path: str) -> str:
    """Said before the looking starts: why no report can be written there, or nothing."""
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path) or not path:
        return "name a file, as in --report doctor.json"
    if not os.path.isdir(folder):
        return f"there is no folder {folder}; make it first"
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        return "you may not write there; name a file in a folder of yours"
    return ""


def examine(is_quick: bool = False) -> Report:
    """Run every probe, one after the other."""
    started = time.monotonic()
    with progress_line(sys.stderr) as progress:
        sections = {title: _look_at(found, progress) for title, found in PROBES.items()}
        sections["A real run"] = [] if is_quick else look(REAL_RUN, progress)
    return Report(sections, _coming(), is_quick, time.monotonic() - started)


def _look_at(wanted: Sequence[Probe], progress: Progress) -> list[Finding]:
    return [finding for probe in wanted for finding in look(probe, progress)]


def _coming() -> tuple[str, ...]:
    """The chapters whose notebook is not written yet."""
    folder = Path(dpcourse.__file__).resolve().parents[1] / "notebooks"
    names = [chapter.name for chapter in chapters.CHAPTERS]
    return tuple(name for name in names if not (folder / f"{name}.ipynb").is_file())
