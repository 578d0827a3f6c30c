"""Python and the packages: what stands here beside what the course asks for."""

import importlib.util
import platform
import re
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from dpcourse.doctor.finding import Finding
from dpcourse.ranks import cluster

_REMAKE = "Bring the environment up to date: make env, in the course's folder."
_SHOWN = 4


def python() -> list[Finding]:
    """Python's version, against the range that the course declares."""
    wanted = metadata.metadata("dpcourse")["Requires-Python"]
    version = platform.python_version()
    is_fit = Requirement(f"python{wanted}").specifier.contains(version, prereleases=True)
    text = version if is_fit else f"{version}, where the course needs {wanted}"
    advice = "" if is_fit else "Make the environment with another Python: make env PYTHON=python3.12"
    return [Finding("Python", text, is_fit, advice, {"version": version}, is_needed=True)]


def packages() -> list[Finding]:
    """What the course needs must be there; what differs from the lock file is told."""
    missing = sorted(item.name for item in _declared() if _installed(item.name) is None)
    if missing:
        text = f"missing: {', '.join(missing)}"
        return [Finding("packages", text, False, _REMAKE, {"missing": missing}, is_needed=True)]
    lock = Path(__file__).resolve().parents[2] / "requirements.lock"
    against = parse_lock(lock.read_text()) if lock.is_file() else _declared()
    found = {item: version for item in against if (version := _installed(item.name))}
    different = {
        item.name: version
        for item, version in found.items()
        if not item.specifier.contains(version, prereleases=True)
    }
    figures = {"different": different, "torch": _installed("torch"), "num_compared": len(found)}
    return [
        _compared(different, len(found), "requirements.lock" if lock.is_file() else "the course", figures)
    ]


def _compared(different: dict[str, str], num_found: int, wanted_by: str, figures: dict) -> Finding:
    if not different:
        return Finding(
            "packages", f"all {num_found} as {wanted_by} has them", figures=figures, is_needed=True
        )
    names = [f"{name} {version}" for name, version in sorted(different.items())]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    text = f"{len(names)} of {num_found} not as {wanted_by} has them: {', '.join(names[:_SHOWN])}{more}"
    return Finding("packages", text, advice=_REMAKE, figures=figures, is_needed=True)


def _declared() -> list[Requirement]:
    """What the course itself depends on, without its extras."""
    items = (Requirement(line) for line in metadata.requires("dpcourse") or [])
    return [item for item in items if not item.marker or item.marker.evaluate({"extra": ""})]


def parse_lock(text: str) -> list[Requirement]:
    """The lines of a lock file that count on this machine."""
    lines = (line.split("#")[0].strip() for line in text.splitlines())
    items = [Requirement(line) for line in lines if line and not line.startswith("-")]
    return [item for item in items if not item.marker or item.marker.evaluate({"extra": ""})]


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def torch() -> list[Finding]:
    """torch's version, and whether it was built for GPUs: read from its files, not imported."""
    version = _installed("torch")
    if version is None:
        return [Finding("torch", "not installed", False, _REMAKE, {"has_cuda": False}, is_needed=True)]
    cuda = torch_cuda()
    text = f"{version}, built for {f'CUDA {cuda}' if cuda else 'CPUs alone'}"
    figures = {"version": version, "has_cuda": bool(cuda), "cuda": cuda}
    return [Finding("torch", text, advice=_CPU_BUILD if cluster.gpus() and not cuda else "", figures=figures)]


_CPU_BUILD = (
    "There are GPUs, and this build of torch cannot use them. To use them, make the environment again "
    "without TORCH_INDEX (make clean, then make env); to run on the CPU, set CUDA_VISIBLE_DEVICES to nothing."
)


def torch_cuda() -> str | None:
    """The CUDA version that torch was built for; None for a CPU build."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        return None
    match = re.search(
        r"^cuda.*= *'([^']+)'", Path(spec.origin).with_name("version.py").read_text(), re.MULTILINE
    )
    return match[1] if match else None


def deepspeed() -> list[Finding]:
    """DeepSpeed, which chapter 05 runs where it is installed."""
    version = _installed("deepspeed")
    if version:
        return [Finding("DeepSpeed", version)]
    advice = "Not needed: pip install deepspeed, in this environment, adds it to chapter 05."
    return [Finding("DeepSpeed", "not installed: chapter 05 leaves it out", False, advice)]
