"""Whether kernel links work on this system: tried for real, once, in a process that ends with it."""

import functools
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, replace

from dpcourse.network.namespaces import NoHostsError, make_hosts
from dpcourse.ranks.links import Links

_SECONDS = 30.0
_RATE = 1e8


@dataclass(frozen=True)
class KernelLinks:
    """What was found: problem is empty where hosts can be made; has_latency where they can have a latency."""

    problem: str
    has_latency: bool


@functools.cache
def kernel_links() -> KernelLinks:
    """Try to make two hosts, then two with a latency."""
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.path[:] = {sys.path!r}; import {__name__} as p; p.main()",
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL
        )
        return KernelLinks(**json.loads(done.stdout))
    except subprocess.TimeoutExpired:
        return KernelLinks(f"two hosts were not made within {_SECONDS:.0f} s", False)
    except (OSError, ValueError, TypeError) as error:
        return KernelLinks(f"the process that tries them failed ({error})", False)


def main() -> None:
    """Print what was found, as JSON."""
    links = Links("kernel", 2, 1, _RATE, _RATE)
    problem = _problem(links)
    has_latency = not problem and not _problem(replace(links, latency_seconds=1e-3))
    print(json.dumps(asdict(KernelLinks(problem, has_latency))))


def _problem(links: Links) -> str:
    try:
        make_hosts(links)
    except NoHostsError as error:
        return str(error)
    return ""
