"""The findings as a page of plain text, and as a JSON report that names nobody."""

import contextlib
import datetime
import getpass
import json
import os
import re
import socket
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import dpcourse
from dpcourse.doctor import chapters
from dpcourse.doctor.finding import Finding

WIDTH = 80
_INDENT = 2
FORMAT, FORMAT_VERSION = "dpcourse doctor report", 1
HOLDS = (
    "what this machine has, what a real run measured on it, and what the course will use; "
    "no user name, home folder or host name"
)


@dataclass(frozen=True)
class Report:
    """All that was found, in sections. `is_quick`: the real run was left out."""

    sections: dict[str, list[Finding]]
    coming: tuple[str, ...]
    is_quick: bool
    seconds: float

    @property
    def findings(self) -> list[Finding]:
        return [finding for section in self.sections.values() for finding in section]

    @property
    def obstacles(self) -> list[Finding]:
        """What the course needs and does not have, or what could not be found out."""
        return [finding for finding in self.findings if finding.is_needed and finding.is_there is not True]

    @property
    def can_run(self) -> bool:
        return not self.obstacles

    def __str__(self) -> str:
        parts = [self._head()]
        parts += [_section(title, findings) for title, findings in self.sections.items() if findings]
        parts += [self._chapters(), *self._advice(), self._verdict()]
        return "\n\n".join(parts)

    def _head(self) -> str:
        return f"dpcourse {dpcourse.__version__}: what is here, and what the course will use of it"

    def _chapters(self) -> str:
        table = chapters.table(chapters.here(self.findings))
        used = {cell for row in table.rows for cell in row}
        legend = [f"{word}: {text}" for word, text in chapters.LEGEND.items() if word in used]
        if self.coming:
            legend.append(f"Still to come: {', '.join(name[:2] for name in self.coming)}.")
        lines = [textwrap.indent(str(table), " " * _INDENT), "", *(_wrapped(line) for line in legend)]
        return "What each chapter will use here\n" + "\n".join(lines)

    def _advice(self) -> list[str]:
        """One paragraph of advice, what the course needs first; none where nothing is missing."""
        told = sorted((item for item in self.findings if item.advice), key=lambda item: not item.is_needed)
        lines = [_line(finding.topic, finding.advice, _topic_width(told)) for finding in told]
        return ["What you can do\n" + "\n".join(lines)] if lines else []

    def _verdict(self) -> str:
        if self.obstacles:
            names = ", ".join(finding.topic for finding in self.obstacles)
            return _fill(f"The course cannot run here yet. See above: {names}.")
        if self.is_quick:
            return "Nothing that the course needs is missing (the real run was left out)."
        return f"The course can run here. All this took {self.seconds:.0f} s."

    def closing(self, path: str | None) -> str:
        """How to have the report written, or where it was."""
        if path is None:
            return "To send this before a workshop, have it written:\n  dpcourse doctor --report doctor.json"
        return _fill(f"Written to {path}, to be sent. It holds {HOLDS}.")

    def to_json(self) -> str:
        """The report to send; names of people, folders and hosts are taken out of every text."""
        record = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "holds": HOLDS,
            "made_by": f"dpcourse {dpcourse.__version__}",
            "made_on": datetime.date.today().isoformat(),
            "can_run": self.can_run,
            "is_quick": self.is_quick,
            "seconds": round(self.seconds, 1),
            "sections": {
                title: [asdict(finding) for finding in findings] for title, findings in self.sections.items()
            },
            "chapters": chapters.rows_by_name(chapters.here(self.findings)),
        }
        return json.dumps(anonymous(record, _private_words()), indent=1) + "\n"


def _section(title: str, findings: Sequence[Finding]) -> str:
    width = _topic_width(findings)
    return "\n".join([title, *(_line(finding.topic, finding.text, width) for finding in findings)])


def _topic_width(findings: Sequence[Finding]) -> int:
    return max(len(finding.topic) for finding in findings) + 2


def _line(topic: str, text: str, width: int) -> str:
    lead = " " * _INDENT + topic.ljust(width)
    return _fill(text, lead, " " * len(lead))


def _wrapped(text: str) -> str:
    return _fill(text, " " * _INDENT, " " * 2 * _INDENT)


def _fill(text: str, first: str = "", rest: str = "") -> str:
    wrapper = textwrap.TextWrapper(WIDTH, first, rest, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(text)  # a path or a command stays in one piece


def _private_words() -> dict[str, str]:
    """What must not stand in a report, longest first, and what stands there instead."""
    words = {os.getcwd(): "FOLDER", str(Path.home()): "HOME", tempfile.gettempdir(): "TEMPORARY"}
    words[str(Path(dpcourse.__file__).resolve().parents[1])] = "COURSE"
    words[socket.gethostname()] = words[socket.gethostname().split(".")[0]] = "HOST"
    with contextlib.suppress(OSError, KeyError):  # a uid without a name, as containers have
        words[getpass.getuser()] = "USER"
    return {
        word: words[word] for word in sorted(words, key=len, reverse=True) if word not in ("", "/", "root")
    }


def anonymous(value: Any, words: dict[str, str]) -> Any:
    """Copy a JSON value with every private word in its texts replaced; keys are ours and stay."""
    if isinstance(value, dict):
        return {key: anonymous(item, words) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [anonymous(item, words) for item in value]
    if isinstance(value, str):
        for word, replacement in words.items():
            value = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", replacement, value)
    return value
