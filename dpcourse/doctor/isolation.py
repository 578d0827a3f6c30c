"""What this system lets a process shut in: namespaces for emulated hosts, isolation for grading."""

import sys
from concurrent.futures import ThreadPoolExecutor

from dpcourse.doctor.finding import Finding
from dpcourse.grade import isolation as grading
from dpcourse.network.probe import kernel_links

_SECONDS = 8.0
_KINDS = ("bwrap", "user")


def links() -> list[Finding]:
    """Have a child really make two hosts whose links the kernel limits."""
    found = kernel_links()
    if found.problem:
        advice = f"{_PACED} {_ALLOW}" if sys.platform == "linux" else _PACED
        return [Finding("kernel links", f"refused: {found.problem}", False, advice)]
    latency = "with a latency" if found.has_latency else "without latency (this kernel has no netem)"
    return [Finding("kernel links", f"work: two hosts were made, {latency}")]


_PACED = "Links between emulated hosts are paced in user space instead of limited by the kernel."
_ALLOW = (
    "To have the kernel's: on Ubuntu, sysctl kernel.apparmor_restrict_unprivileged_userns=0; in a container, "
    "start it with --security-opt seccomp=unconfined."
)


def isolation() -> list[Finding]:
    """The ways in which a grader can shut a submission in, each tried as `dpcourse grade` tries it."""
    with ThreadPoolExecutor(len(_KINDS)) as pool:
        said = dict(zip(_KINDS, pool.map(_try, _KINDS), strict=True))
    works = {kind: not problem for kind, problem in said.items()}
    text = "; ".join(problem or f"{kind} works" for kind, problem in said.items())
    return [Finding("isolation", text, any(works.values()), _advice(works), works)]


def _try(kind: str) -> str:
    """What the grader would say of this isolation here, or nothing where it works."""
    try:
        grading.find(kind, trial_seconds=_SECONDS)
    except ValueError as error:
        return str(error).removeprefix("isolation ").replace(repr(kind), kind, 1)
    return ""


def _advice(works: dict[str, bool]) -> str:
    if works["bwrap"]:
        return ""
    if works["user"]:
        return "`dpcourse grade` takes bwrap unless told otherwise: ask for --isolation user."
    return "Until one of them works, grade only submissions that you trust, with --isolation none."
