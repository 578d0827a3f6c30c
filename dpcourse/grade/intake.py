"""Finds the submissions in what arrived, and matches each with a notebook of the lab by content.

The rule: a folder or zip file is one submission, as is a notebook that lies loose; of several notebooks the
one with most answer cells of the lab counts, and when two different ones have equally many, neither does.
A zip file of a whole class, as Moodle and Canvas hand it out, is one submission for each sender in it.
"""

import contextlib
import hashlib
import unicodedata
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path, PurePosixPath

from dpcourse.grade.answers import find_answer
from dpcourse.grade.reading import Cell, Notebook, Unreadable, read_notebook
from dpcourse.grade.roster import Roster, Student
from dpcourse.grade.senders import NOBODY, Sender, sender_of
from dpcourse.labs.question import LabSpec

_MAX_BYTES = 50_000_000  # of one notebook, and of all in one zip file; what is larger is refused unread
_MAX_MEMBERS = 2000  # of one zip file
_LIKE_A_NOTEBOOK = (".ipynb", ".json", ".txt")


@dataclass(frozen=True)
class Submission:
    """What one student handed in: the notebook that counts, or the problem that leaves none."""

    student: str
    path: str
    digest: str
    cells: tuple[Cell, ...] = ()
    notes: tuple[str, ...] = ()
    problem: str = ""
    arrived: str = ""  # the name of the file or folder that came
    modified_seconds: float = 0.0
    sender: Sender = NOBODY
    person: Student | None = None  # who it is by the roster


@dataclass(frozen=True)
class Candidate:
    """One file of a submission: its bytes, or why they were not read."""

    path: str
    data: bytes = b""
    problem: str = ""
    modified_seconds: float = 0.0


# The name of what was handed in, and what reads the files in it.
_Arrival = tuple[str, Callable[[], list[Candidate]]]


def find_submissions(paths: Sequence[Path], lab: LabSpec, roster: Roster | None = None) -> list[Submission]:
    """All submissions under `paths`, in order of name; two of one name are numbered.

    roster: the class list. Everyone on it has a row, who handed nothing in with that as the problem; of two
    submissions of one of them the newer counts.

    Raises:
        ValueError: a path that is not there, or nothing that could be a submission under any of them.
    """
    arrivals: list[_Arrival] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"there is no {path}; give notebooks, zip files, or a folder of these")
        arrivals += _gather(path)
    if not arrivals:
        raise ValueError(
            f"no submissions in {', '.join(map(str, paths))}: no notebook, zip file or folder there"
        )
    found = [_read_one(sender, parts, lab) for sender, parts in _by_sender(arrivals)]
    return _numbered(by_roster(found, roster) if roster else found)


def _by_sender(arrivals: Sequence[_Arrival]) -> list[tuple[Sender, list[_Arrival]]]:
    """What a learning management system gave the same sender's name is one submission."""
    found: list[tuple[Sender, list[_Arrival]]] = []
    of_systems: dict[Sender, list[_Arrival]] = {}
    for arrival in arrivals:
        sender = sender_of(arrival[0])
        known = of_systems.get(sender)
        if known is not None:
            known.append(arrival)
            continue
        found.append((sender, [arrival]))
        if sender.system:
            of_systems[sender] = found[-1][1]
    return found


def _read_one(sender: Sender, arrivals: list[_Arrival], lab: LabSpec) -> Submission:
    name = arrivals[0][0]
    try:
        candidates = [candidate for _, read in arrivals for candidate in read()]
        found = _choose(sender.name, candidates, lab)
    except Exception as error:  # whatever it is: it came from this submission, and the others are read
        found = Submission(sender.name, name, digest="", problem=f"unreadable: {_why(error)}")
    late = ("handed in late, by its name",) if sender.is_late else ()
    return replace(found, arrived=name, notes=(*found.notes, *late), sender=sender)


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {_shown(str(error)[:200])}"


def _shown(name: str) -> str:
    """A file's name as text that can be printed and written: other bytes than UTF-8 as `\\xff`."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(_escaped(char) if unicodedata.category(char) == "Cc" else char for char in text)


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def by_roster(found: Sequence[Submission], roster: Roster) -> list[Submission]:
    """The submissions under the students' own ids, one each, and a row for whoever has none."""
    newest: dict[str, Submission] = {}
    strangers = []
    for item in sorted(found, key=lambda item: item.modified_seconds):
        student = roster.find(item.sender)
        if student is None:
            strangers.append(replace(item, notes=(*item.notes, "fits nobody on the roster")))
            continue
        older = newest.get(student.key)
        left_out = (f"an older submission, {older.arrived}, was left out",) if older else ()
        newest[student.key] = replace(
            item, student=student.key, person=student, notes=(*item.notes, *left_out)
        )
    return [*(newest.get(student.key) or _none_of(student) for student in roster.students), *strangers]


def _none_of(student: Student) -> Submission:
    return Submission(student.key, "", "", problem="no submission", person=student)


def _numbered(submissions: list[Submission]) -> list[Submission]:
    """The same submissions, every name once."""
    numbered: dict[str, Submission] = {}
    for item in submissions:
        name, count = item.student, 1
        while name in numbered:
            count += 1
            name = f"{item.student} ({count})"
        numbered[name] = replace(item, student=name)
    return list(numbered.values())


def _gather(path: Path) -> Iterator[_Arrival]:
    """The submissions in what was named."""
    if not path.is_dir():
        yield from _of_class(path) or [(_shown(_stem(path.name)), partial(_candidates, path))]
        return
    for child in sorted(path.iterdir()):
        if _is_hidden(child.name):
            continue
        if child.is_symlink() or child.is_dir() or _may_be_submission(child):
            yield _shown(child.name if child.is_dir() else _stem(child.name)), partial(_candidates, child)


def _of_class(path: Path) -> list[_Arrival]:
    """The submissions in a zip file of a whole class; none where its members bear no sender's name."""
    if path.is_symlink() or not path.is_file() or not zipfile.is_zipfile(path):
        return []
    with contextlib.suppress(Exception), zipfile.ZipFile(path) as archive:  # damaged: read, and named, below
        names = [info.filename for info in archive.infolist()[:_MAX_MEMBERS] if not info.is_dir()]
        tops = dict.fromkeys(name.partition("/")[0] for name in names if not _is_hidden(name))
        if tops and all(sender_of(top).system for top in tops):
            return [(_shown(_stem(top)), partial(_zip_candidates, path, top)) for top in tops]
    return []


def _stem(name: str) -> str:
    for ending in (".txt", ".json", ".ipynb", ".zip"):
        name = name.removesuffix(ending)
    return name or "unnamed"


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__MACOSX")) and name != ".."


def _may_be_submission(path: Path) -> bool:
    """Whether a loose file counts: notebooks and zip files by name, renamed ones by their first bytes."""
    if path.suffix in (".ipynb", ".zip") or ".ipynb" in path.name:
        return True
    if path.suffix not in _LIKE_A_NOTEBOOK or not path.is_file():  # opening a pipe would wait for ever
        return False
    with contextlib.suppress(OSError), path.open("rb") as file:
        return b'"cells"' in file.read(100_000)
    return False


def _candidates(path: Path) -> list[Candidate]:
    if path.is_symlink():
        return [Candidate(_shown(path.name), problem="a link, which is not followed")]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if not (file.is_symlink() or file.is_dir()))
        inside = [file for file in files if not any(map(_is_hidden, file.relative_to(path).parts))]
        return [found for file in inside if _may_be_submission(file) for found in _candidates(file)]
    if not path.is_file():
        return [Candidate(_shown(path.name), problem="not a file, but a pipe, a socket or a device")]
    if zipfile.is_zipfile(path):
        return _zip_candidates(path)
    if path.stat().st_size > _MAX_BYTES:
        return [_too_large(path.name)]
    return [Candidate(_shown(path.name), path.read_bytes(), modified_seconds=path.stat().st_mtime)]


def _too_large(name: str) -> Candidate:
    return Candidate(_shown(name), problem=f"larger than {_MAX_BYTES // 10**6} MB")


def _zip_candidates(path: Path, top: str = "") -> list[Candidate]:
    """The notebooks in a zip file; top: only what is this file or lies in this folder of it."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()[:_MAX_MEMBERS]
            inside = [member for member in members if not top or member.filename.partition("/")[0] == top]
            return list(_members(archive, [member for member in inside if _is_notebook(member.filename)]))
    except Exception as error:  # the directory is damaged; what can be raised is not documented
        return [Candidate(_shown(path.name), problem=f"a zip file that cannot be opened ({_why(error)})")]


def _is_notebook(name: str) -> bool:
    return name.endswith(".ipynb") and not any(map(_is_hidden, PurePosixPath(name).parts))


def _members(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> Iterator[Candidate]:
    num_left = _MAX_BYTES
    for member in members:
        name, data = member.filename, b""
        try:
            with archive.open(member) as file:
                data = file.read(num_left + 1)  # the size in the header may lie
        except Exception as error:  # damaged, encrypted, or packed in a way that is not known here
            yield Candidate(_shown(name), problem=f"cannot be unpacked ({_why(error)})")
            continue
        changed = _changed_seconds(member)
        yield _too_large(name) if len(data) > num_left else Candidate(_shown(name), data, "", changed)
        num_left = max(0, num_left - len(data))


def _changed_seconds(member: zipfile.ZipInfo) -> float:
    try:
        return datetime(*member.date_time).timestamp()
    except ValueError:  # a month 0, as some programs write
        return 0.0


def _choose(student: str, candidates: list[Candidate], lab: LabSpec) -> Submission:
    """The submission with the notebook that counts, by the rule above."""
    digest = hashlib.sha256(b"\0".join(candidate.data for candidate in candidates)).hexdigest()
    paths = ", ".join(candidate.path for candidate in candidates)
    read, problems = _read_all(candidates)
    ranked = sorted(read, key=lambda pair: -_num_answers(pair[1], lab))
    best = [pair for pair in ranked if _num_answers(pair[1], lab) == _num_answers(ranked[0][1], lab)]
    if not ranked or _num_answers(ranked[0][1], lab) == 0:
        problem = _why_none(problems, read, lab)
        return Submission(student, paths, digest, problem=problem)
    if any(pair[1].cells != best[0][1].cells for pair in best):
        names = " and ".join(candidate.path for candidate, _ in best)
        return Submission(student, paths, digest, problem=f"not matched: {names} have equally many answers")
    (candidate, notebook), notes = best[0], list(best[0][1].notes)
    if len(candidates) > 1:
        notes.append(f"of {len(candidates)} files {candidate.path} has most answers of this lab")
    found = Submission(student, candidate.path, digest, notebook.cells, tuple(notes), notebook.problem)
    return replace(found, modified_seconds=candidate.modified_seconds)


def _read_all(candidates: list[Candidate]) -> tuple[list[tuple[Candidate, Notebook]], list[str]]:
    read, problems = [], []
    for candidate in candidates:
        try:
            if candidate.problem:
                raise Unreadable(candidate.problem)
            read.append((candidate, read_notebook(candidate.data)))
        except Unreadable as error:
            problems.append(f"{candidate.path}: {error}")
        except Exception as error:  # whatever it is, the other files of the submission are read
            problems.append(f"{candidate.path}: {_why(error)}")
    return read, problems


def _why_none(problems: list[str], read: list[tuple[Candidate, Notebook]], lab: LabSpec) -> str:
    if problems:
        return "unreadable: " + "; ".join(problems)
    foreign = [notebook.problem for _, notebook in read if notebook.problem]
    if foreign:
        return foreign[0]
    if not read:
        return "not matched: no notebook in it"
    return (
        f"not matched: no answer cell of {lab.name} in {', '.join(candidate.path for candidate, _ in read)}"
    )


def _num_answers(notebook: Notebook, lab: LabSpec) -> int:
    return sum(not find_answer(question, notebook.cells).problem for question in lab.questions)
