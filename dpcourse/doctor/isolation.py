"""What this system lets a process shut in: namespaces for emulated hosts, isolation for grading."""

import os
import shutil
import sys

from dpcourse.doctor.finding import Finding, ask, last_line
from dpcourse.network.probe import kernel_links

_SECONDS = 8.0
_NOBODY = 65534
# As the grader will start it: nothing of the network, the other processes or the other users is seen inside.
_BWRAP = "bwrap --unshare-all --die-with-parent --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp"


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
    """The ways in which a grader can shut a submission in, each really tried."""
    bwrap_works, bwrap_text = _try_bwrap()
    user_works, user_text = _try_other_user()
    figures = {"bwrap": bwrap_works, "user": user_works}
    text = f"bubblewrap {bwrap_text}; another user {user_text}"
    return [Finding("isolation", text, bwrap_works or user_works, _advice(bwrap_works, user_works), figures)]


def _advice(bwrap_works: bool, user_works: bool) -> str:
    if bwrap_works:
        return ""
    install = "For grading, install bubblewrap (Debian: apt-get install bubblewrap), the strongest isolation."
    return install if user_works else f"{install} Until then grade only submissions that you trust."


def _try_bwrap() -> tuple[bool, str]:
    if not shutil.which("bwrap"):
        return False, "not found"
    answer = ask(*_BWRAP.split(), sys.executable, "-I", "-S", "-c", "pass", seconds=_SECONDS)
    works = answer.returncode == 0
    return works, "works" if works else f"refused ({last_line(answer.stderr)})"


def _try_other_user() -> tuple[bool, str]:
    if os.geteuid() != 0:
        return False, "not possible (only root can change to one)"
    if problem := _problem_as_nobody("/bin/sh", "-c", ":"):
        return False, f"not possible ({problem})"
    if problem := _problem_as_nobody(sys.executable, "-I", "-S", "-c", "pass"):
        return False, f"possible, and may not use this Python, which stands in a private folder ({problem})"
    return True, f"possible (uid {_NOBODY})"


def _problem_as_nobody(*command: str) -> str:
    """Run a program as a user with no rights; why it failed, or nothing."""
    try:
        answer = ask(*command, seconds=_SECONDS, user=_NOBODY, group=_NOBODY, extra_groups=[], cwd="/")
    except OSError as error:
        return error.strerror or str(error)
    return last_line(answer.stderr) if answer.returncode else ""
