"""The first page of build/course/: one row a notebook, readable in light and dark, without a script."""

import platform
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpcourse.course import Outcome

STYLE = """
:root { color-scheme: light dark; --ink: #1c2024; --soft: #60646c; --line: #d9d9e0; --paper: #fcfcfd;
  --good: #18794e; --bad: #b3261e; --link: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --ink: #edeef0; --soft: #b0b4ba; --line: #363a3f;
  --paper: #111113; --good: #5bb98b; --bad: #ff9592; --link: #70b8ff; } }
body { margin: 0 auto; max-width: 52rem; padding: 3rem 1.5rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.6 system-ui, sans-serif; }
h1 { font-size: 1.6rem; font-weight: 650; margin: 0; letter-spacing: -0.01em; }
p { color: var(--soft); margin: 0.3rem 0 2rem; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { text-align: left; font-size: 0.85rem; font-weight: 500; color: var(--soft); }
th, td { padding: 0.7rem 0.6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td:first-child { padding-left: 0; }
.number { text-align: right; white-space: nowrap; }
.name, .problem { display: block; font-size: 0.875rem; color: var(--soft); overflow-wrap: anywhere; }
.problem, .bad { color: var(--bad); }
.good { color: var(--good); }
a { color: var(--link); text-decoration-thickness: 1px; text-underline-offset: 0.2em; }
"""


def row(outcome: "Outcome") -> str:
    """One notebook: its page, how it went, its seconds and its checks."""
    title = escape(outcome.title)
    if outcome.page:
        title = f'<a href="{escape(outcome.page, quote=True)}">{title}</a>'
    problem = f'<span class="problem">{escape(outcome.problem)}</span>' if outcome.problem else ""
    checks = f"{outcome.num_passed} of {outcome.num_checks}" if outcome.num_checks else "none"
    verdict = '<span class="good">passed</span>' if outcome.is_good else '<span class="bad">failed</span>'
    return (
        f'<tr><td>{title}<span class="name">{escape(outcome.name)}</span>{problem}</td><td>{verdict}</td>'
        f'<td class="number">{outcome.seconds:.1f}</td>'
        f'<td class="number">{checks}</td></tr>'
    )


def page(outcomes: Sequence["Outcome"]) -> str:
    """The index as HTML: a row for each notebook, and in which environment they ran."""
    num_good = sum(outcome.is_good for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    where = f"Python {platform.python_version()}, torch {version('torch')}, {platform.system()}"
    rows = "\n".join(row(outcome) for outcome in outcomes)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>dpcourse: the course as it ran</title><style>{STYLE}</style></head><body>
<h1>The course as it ran</h1>
<p>{num_good} of {len(outcomes)} notebooks passed in {seconds:.0f} s. {escape(where)}.</p>
<table><thead><tr><th scope="col">Notebook</th><th scope="col">Result</th>
<th scope="col" class="number">Seconds</th><th scope="col" class="number">Checks passed</th></tr></thead>
<tbody>
{rows}
</tbody></table>
</body></html>
"""


def write_index(outcomes: Sequence["Outcome"], path: Path) -> None:
    """Write the index of the notebooks that have run to a file."""
    path.write_text(page(outcomes), encoding="utf-8")
