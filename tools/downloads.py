"""What pip would download, and how much that is, found out before anything is downloaded."""

import json
import os
import ssl
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

# What a byte of wheel unpacks to, bytecode included (measured: 4.1 with torch for CPUs; GPU libraries 1.7).
UNPACKED_PER_BYTE, UNPACKED_PER_GPU_BYTE = 4.2, 1.8
HEAD_DEADLINE_SECONDS = 20


@dataclass(frozen=True)
class Wheel:
    """One file that pip has chosen. `num_bytes` is None where nobody would tell."""

    name: str
    version: str
    url: str
    num_bytes: int | None = None
    checksum: str = ""

    @property
    def requirement(self) -> str:
        """The file by its address: pip then need not read 140 index pages a second time (40 s on 2 cores)."""
        return f"{self.name} @ {self.url}" + (f"#{self.checksum}" if self.checksum else "")

    @property
    def is_local(self) -> bool:
        return self.url.startswith("file:")


def wheels_of_report(report: dict) -> list[Wheel]:
    """The files named in the report of `pip install --dry-run --report`."""
    return [
        Wheel(
            item["metadata"]["name"],
            item["metadata"]["version"],
            item["download_info"]["url"],
            checksum=item["download_info"].get("archive_info", {}).get("hash", ""),
        )
        for item in report["install"]
    ]


def read_report(path: Path) -> tuple[list[Wheel], dict[str, list[str]]]:
    """(files, requirements that each package declares), from a report file."""
    report = json.loads(path.read_text(encoding="utf-8"))
    needs = {i["metadata"]["name"]: i["metadata"].get("requires_dist", []) for i in report["install"]}
    return wheels_of_report(report), needs


def _context() -> ssl.SSLContext:
    """Certificates as pip was told to use them, else the system's."""
    bundle = os.environ.get("PIP_CERT") or os.environ.get("REQUESTS_CA_BUNDLE")
    return ssl.create_default_context(cafile=bundle if bundle and os.path.isfile(bundle) else None)


def size_of(url: str, context: ssl.SSLContext | None = None) -> int | None:
    """Bytes of one file, by looking at it (file:) or by asking for its head; None when there is no answer."""
    parts = urllib.parse.urlsplit(url)
    try:
        if parts.scheme == "file":
            return os.stat(urllib.request.url2pathname(parts.path)).st_size
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=HEAD_DEADLINE_SECONDS, context=context) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


def with_sizes(wheels: list[Wheel]) -> list[Wheel]:
    """The same files with their sizes, asked for sixteen at a time."""
    context = _context()
    with ThreadPoolExecutor(max_workers=16) as pool:
        sizes = list(pool.map(lambda wheel: size_of(wheel.url, context), wheels))
    return [replace(wheel, num_bytes=size) for wheel, size in zip(wheels, sizes, strict=True)]


def download_bytes(wheels: list[Wheel]) -> int:
    """Bytes that come over the network, as far as they are known."""
    return sum(w.num_bytes or 0 for w in wheels if not w.is_local)


def gpu_wheels(wheels: list[Wheel]) -> list[Wheel]:
    """torch and its libraries for NVIDIA GPUs; nothing where torch is a build for CPUs."""
    libraries = [w for w in wheels if w.name.lower().startswith(("nvidia-", "cuda-"))]
    return libraries and [w for w in wheels if w in libraries or w.name in ("torch", "triton")]


def unpacked_bytes(wheels: list[Wheel]) -> int:
    """About how many bytes these files take on disk once they are installed."""
    gpu = sum(w.num_bytes or 0 for w in gpu_wheels(wheels))
    rest = sum(w.num_bytes or 0 for w in wheels) - gpu
    return round(gpu * UNPACKED_PER_GPU_BYTE + rest * UNPACKED_PER_BYTE)


def disk_bytes(wheels: list[Wheel]) -> int:
    """Room that the installation needs at its fullest: what is downloaded plus what it unpacks to."""
    return unpacked_bytes(wheels) + download_bytes(wheels)


def bytes_text(num_bytes: float) -> str:
    """12 MB, 2.7 GB: decimal units, as disks and providers count."""
    if num_bytes >= 1e9:
        return f"{num_bytes / 1e9:.1f} GB"
    return f"{num_bytes / 1e6:.0f} MB" if num_bytes >= 1e6 else f"{num_bytes / 1e3:.0f} kB"


def announcement(wheels: list[Wheel]) -> str:
    """What will be downloaded, said before it is."""
    remote = [w for w in wheels if not w.is_local]
    unknown = sum(w.num_bytes is None for w in remote)
    lines = [f"To download: {bytes_text(download_bytes(remote))} in {len(remote)} of {len(wheels)} packages"]
    if len(remote) < len(wheels):
        lines[0] += " (the others are on this machine)"
    if unknown:
        lines[0] += f", and {unknown} of unknown size"
    lines[0] += f"; on disk: about {bytes_text(unpacked_bytes(wheels))}."
    if gpu := gpu_wheels(wheels):
        lines.append(
            f"Of these, {bytes_text(download_bytes(gpu))} are torch for NVIDIA GPUs. Without such a "
            "GPU, stop now (Ctrl-C) and name an index of small CPU builds: make lab TORCH_INDEX=<address>"
        )
    return "\n".join(lines)
