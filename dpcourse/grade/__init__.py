"""`dpcourse grade`: a folder of submissions becomes grades, records and reports."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpcourse.grade.isolation import Isolation, find
from dpcourse.grade.limits import Limits
from dpcourse.json_output import add_json, show

_DEFAULTS = Limits()
EXAMPLES = """\
examples:
  dpcourse grade 01 SUBMISSIONS --out graded
  dpcourse grade 01 SUBMISSIONS --out graded --only ada --regrade
  dpcourse grade 01 moodle.zip --out graded --roster class.csv --jobs 2
  dpcourse grade 01 SUBMISSIONS --out graded --isolation none --verdicts-only
  dpcourse grade 01 --out graded --give ada shard_batch 15 "the task was unclear there"

A batch that was cut short goes on where it stopped; a second run changes nothing.

exit codes: 0 the batch came to its end, whatever the grades; 1 it could not; 2 wrong arguments;
130 interrupted: the same command goes on from there
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="dpcourse grade",
        description="Grade submissions of a lab: grades.csv, a JSON record and an HTML report for each.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("lab", metavar="LAB", help="the lab's number, name or file: 01 or 01_equivalence")
    parser.add_argument(
        "submissions",
        metavar="SUBMISSIONS",
        nargs="*",
        type=Path,
        help="notebooks, zip files, folders of these, or the zip file of a class from Moodle or Canvas",
    )
    parser.add_argument("--out", metavar="DIR", type=Path, required=True, help="where all results go")
    parser.add_argument(
        "--isolation",
        metavar="KIND",
        default="bwrap",
        help=(
            "what keeps students' code apart: bwrap (namespaces; the default), user (another user: for "
            "containers that forbid namespaces; needs root) or none. It is tried first; where it does "
            "not work nothing is graded: a weaker one must be asked for by name"
        ),
    )
    parser.add_argument(
        "--jobs", metavar="N", type=int, default=1, help="submissions graded side by side (default 1)"
    )
    parser.add_argument(
        "--roster",
        metavar="FILE",
        type=Path,
        help="the class list, a CSV file with a heading: everyone on it has a row, under their own id",
    )
    parser.add_argument(
        "--give",
        metavar=("NAME", "QUESTION", "POINTS", "REASON"),
        nargs=4,
        help="give points by hand, with the reason; they stand until they are given anew",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="grade on the workers of a Dask scheduler, as in tcp://10.0.0.1:8786, in place of --jobs here",
    )
    _add_limits(parser)
    _add_choices(parser)
    add_json(parser, "the summary")
    parser.add_argument(
        "--seed",
        type=int,
        help="chooses the numbers of the cases (default: the batch's own, kept in DIR/seed)",
    )
    parser.add_argument("--labs", metavar="DIR", type=Path, default=_labs_folder(), help=argparse.SUPPRESS)
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    for name, default, what in (
        ("limit", _DEFAULTS.run_seconds, "the whole run of a notebook"),
        ("cell", _DEFAULTS.cell_seconds, "one cell of it"),
        ("case", _DEFAULTS.case_seconds, "one run of an answer on its ranks"),
    ):
        text = f"seconds for {what} (default {default:g})"
        parser.add_argument(f"--{name}-seconds", metavar="S", type=float, default=default, help=text)


def _add_choices(parser: argparse.ArgumentParser) -> None:
    """What is graded, and what is left out."""
    parser.add_argument("--only", metavar="NAME", help="grade the submission of this student only")
    parser.add_argument(
        "--question",
        metavar="Q",
        action="append",
        default=[],
        help="judge this question again, and keep the other verdicts",
    )
    parser.add_argument(
        "--verdicts-only", action="store_true", help="judge the answers, without running the notebooks"
    )
    parser.add_argument(
        "--regrade", action="store_true", help="grade again, and list the grades that changed"
    )


def _labs_folder() -> Path:
    return Path(__file__).parents[2] / "labs"


def main(argv: Sequence[str] | None = None) -> int:
    """Grade; returns 0 when the batch came to its end, 1 when it could not, 2 when asked wrongly."""
    options = parser().parse_args(argv)
    try:
        return _grade(options)
    except ValueError as error:
        print(f"dpcourse grade: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        print(
            f"dpcourse grade: stopped: {error.strerror or error}{where}; finished grades are kept",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("dpcourse grade: interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _grade(options: argparse.Namespace) -> int:
    from tqdm import tqdm

    from dpcourse.grade.batch import Done, Here, grade_all
    from dpcourse.grade.cluster import Cluster
    from dpcourse.grade.intake import find_submissions
    from dpcourse.grade.outputs import Grades, write_outputs
    from dpcourse.grade.record import Book
    from dpcourse.grade.roster import read_roster
    from dpcourse.labs import load
    from dpcourse.ranks.processes import adopt_orphans

    lab = load(Path(options.lab).name.removesuffix(".ipynb"))
    book = Book(options.out, lab)
    if options.give:
        return _give(book, *options.give)
    _refuse(options)
    roster = read_roster(options.roster) if options.roster else None
    for name in options.question:
        lab.question(name)
    isolation = _isolation(options)
    submissions = _only(find_submissions(options.submissions, lab, roster), options.only)
    plan = _plan(book, options, isolation)
    finished: list[Done] = []
    grades = Grades(book)
    adopt_orphans()
    graders = (
        Cluster(options.scheduler) if options.scheduler is not None else Here(plan.isolation, options.jobs)
    )
    with tqdm(total=len(submissions), unit="submission", disable=None, delay=2) as bar:

        def on_done(done: Done) -> None:
            finished.append(done)
            grades.refresh()
            bar.set_postfix_str(done.record["student"][:30])
            bar.update()

        try:
            grade_all(submissions, plan, book, graders, on_done)
        finally:
            write_outputs(book)
    if options.json:
        show(_document(finished, options, plan.isolation))
    else:
        print(_summary(finished, options, plan.isolation))
    return 0


def _give(book: Any, student: str, question: str, points: str, reason: str) -> int:
    """Points given by hand: into the record, the report and all that is made of them."""
    from dpcourse.grade.by_hand import check_given, give
    from dpcourse.grade.outputs import write_outputs
    from dpcourse.grade.report import write_report

    try:
        number = float(points)
    except ValueError:
        raise ValueError(f"--give: {points!r} is no number of points") from None
    check_given(book.lab, question, number, reason)
    record = book.read(student)
    if record is None:
        known = ", ".join(record["student"] for record in book.all_records()) or "nobody"
        raise ValueError(f"--give: no grade of {student!r} in {book.folder}; there is: {known}")
    record = give(record, question, number, reason)
    write_report(book, record, book.read_notebook(student))
    book.write(record)
    write_outputs(book)
    print(
        f"{student}: {record['points']:g} of {record['max_points']:g} points, {question} {number:g} by hand"
    )
    return 0


def _isolation(options: argparse.Namespace) -> Isolation:
    """The isolation asked for, tried; with another user, results are the grader's own from the start."""
    private = [*options.submissions, options.out, options.labs / "source", options.labs.parent / ".git"]
    found = find(options.isolation, [*private, *([options.roster] if options.roster else [])])
    if found.kind == "user":
        options.out.mkdir(mode=0o700, parents=True, exist_ok=True)
    return found


def _plan(book: Any, options: argparse.Namespace, isolation: Isolation) -> Any:
    from dpcourse.grade.grading import Plan
    from dpcourse.grade.merge import Release

    return Plan(
        Release.read(book.lab, options.labs),
        Limits(options.limit_seconds, options.cell_seconds, options.case_seconds),
        isolation=isolation,
        seed=book.seed() if options.seed is None else options.seed,
        questions=tuple(options.question),
        is_regrade=options.regrade,
        is_run=not options.verdicts_only,
    )


def _refuse(options: argparse.Namespace) -> None:
    if not options.submissions:
        raise ValueError("name what was handed in: notebooks, zip files, or a folder of these")
    if options.jobs < 1:
        raise ValueError(f"--jobs {options.jobs}: give a number from 1 on")
    for path in options.submissions:
        if options.out.resolve().is_relative_to(path.resolve()):
            raise ValueError(f"--out {options.out} is inside {path}: results would be graded as submissions")
    for name in ("limit_seconds", "cell_seconds", "case_seconds"):
        if not getattr(options, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')}: give a number of seconds above 0")


def _only(submissions: list[Any], student: str | None) -> list[Any]:
    if student is None:
        return submissions
    chosen = [submission for submission in submissions if submission.student == student]
    if not chosen:
        names = ", ".join(submission.student for submission in submissions)
        raise ValueError(f"no submission of {student!r}; there are: {names}")
    return chosen


def _summary(finished: list[Any], options: argparse.Namespace, isolation: Isolation) -> str:
    new = [done for done in finished if done.is_new]
    problems = [done.record for done in finished if done.record["problem"]]
    lines = [
        f"{len(new)} graded, {len(finished) - len(new)} up to date; "
        f"grades are in {options.out / 'grades.csv'}, the class at a glance in summary.html beside it"
    ]
    lines += [f"  {record['student']}: {record['problem']}" for record in problems]
    lines += [f"  changed: {text}" for done in new if (text := _change(done))]
    lines.append(f"isolation {isolation.kind}: {isolation.meaning}")
    return "\n".join(lines)


def _document(finished: list[Any], options: argparse.Namespace, isolation: Isolation) -> dict[str, Any]:
    """The summary as plain values."""
    known = ("student", "points", "max_points", "problem")
    return {
        "lab": finished[0].record["lab"] if finished else options.lab,
        "grades": str(options.out / "grades.csv"),
        "isolation": isolation.as_dict(),
        "submissions": [
            {**{name: done.record[name] for name in known}, "is_new": done.is_new, "changed": _change(done)}
            for done in finished
        ],
    }


def _change(done: Any) -> str:
    """What a new grading changed in points, or nothing."""
    if done.before is None or done.before["points"] == done.record["points"]:
        return ""
    old = {item["question"]: item["points"] for item in done.before["questions"]}
    what = [item for item in done.record["questions"] if item["points"] != old.get(item["question"])]
    moves = ", ".join(
        f"{item['question']} {old.get(item['question'], 0):g} to {item['points']:g}" for item in what
    )
    return f"{done.record['student']}: {done.before['points']:g} to {done.record['points']:g} ({moves})"
