"""What is attached: system, cores, memory, disk, GPUs and their links, byte counters, a compiler."""

import os
import platform
import re
import shutil
import socket
import sys
import tempfile
from collections import Counter
from pathlib import Path

import psutil

from dpcourse.doctor.finding import Finding, ask, last_line
from dpcourse.measure import wire
from dpcourse.ranks import cluster
from dpcourse.tables import bytes_text

_LITTLE_DISK_BYTES = 10**9
_PROBE_BYTES = 100_000
_NVIDIA_SMI_SECONDS = 8.0
_LINK_WORDS = {"NV": "NVLink", "PIX": "one PCIe switch", "PXB": "several PCIe switches", "PHB": "PCIe, CPU"}
_LINK_WORDS |= {"NODE": "PCIe, one socket", "SYS": "PCIe, across sockets"}
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def system() -> list[Finding]:
    """The operating system: Linux has everything, macOS runs the course without kernel counters and links."""
    text = f"{platform.system()} {platform.release()}, {platform.machine()}"
    figures = {"platform": sys.platform, "release": platform.release(), "machine": platform.machine()}
    is_fit = sys.platform in ("linux", "darwin")
    advice = "" if is_fit else "The course runs on Linux and macOS. On Windows, use it inside WSL2."
    return [Finding("system", text, is_fit, advice, figures, is_needed=True)]


def cores() -> list[Finding]:
    """Cores that this process may use, and what holds it to fewer than there are."""
    total, allowed = os.cpu_count() or 1, cluster.num_cores()
    in_set = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    held_by = "the container's quota" if allowed < in_set else "this process's CPU set"
    text = f"{allowed}" if allowed == total else f"{allowed} of {total}, held by {held_by}"
    advice = "" if allowed > 1 else "With one core ranks take turns: times teach little, bytes stay true."
    figures = {"allowed": allowed, "in_cpu_set": in_set, "total": total}
    return [Finding("cores", text, allowed > 1, advice, figures)]


def memory() -> list[Finding]:
    """Memory that this process may use, and how much of it is free now."""
    total, free, machine = cluster.memory_bytes(), free_memory_bytes(), psutil.virtual_memory().total
    held = ", as much as the container may have" if total < machine else ""
    figures = {"total_bytes": total, "free_bytes": free, "machine_bytes": machine}
    return [
        Finding("memory", f"{bytes_text(total)}{held}, {bytes_text(free)} of it free now", figures=figures)
    ]


def free_memory_bytes() -> int:
    """Memory that could be had now, within the container's limit where there is one."""
    total, machine = cluster.memory_bytes(), psutil.virtual_memory()
    limited = total - _container_used_bytes() if total < machine.total else machine.available
    return max(0, min(machine.available, limited))


def _container_used_bytes() -> int:
    """What the container holds, without the files that the kernel would drop."""
    try:
        current = int(Path("/sys/fs/cgroup/memory.current").read_text())
        stat = Path("/sys/fs/cgroup/memory.stat").read_text().split()
        return current - int(stat[stat.index("inactive_file") + 1])
    except (OSError, ValueError):
        return 0


def disk() -> list[Finding]:
    """Room in the current folder and for temporary files, and whether files can be made there."""
    folders = {"here": os.getcwd(), "for temporary files": tempfile.gettempdir()}
    free = {name: shutil.disk_usage(folder).free for name, folder in folders.items()}
    refused = [name for name, folder in folders.items() if not os.access(folder, os.W_OK)]
    text = " free, ".join(f"{bytes_text(size)} {name}" for name, size in free.items()) + " free"
    if len({os.stat(folder).st_dev for folder in folders.values()}) == 1:
        text = f"{bytes_text(free['here'])} free, here and for temporary files"
    figures = {"here_bytes": free["here"], "temporary_bytes": free["for temporary files"]}
    if refused:
        advice = "Work in a folder where you may make files: notebooks and runs are kept there."
        return [Finding("disk", f"{text}; no file can be made {refused[0]}", False, advice, figures)]
    is_enough = min(free.values()) >= _LITTLE_DISK_BYTES
    advice = (
        "" if is_enough else f"Make room: keep {bytes_text(_LITTLE_DISK_BYTES)} free for runs and reports."
    )
    return [Finding("disk", text, is_enough, advice, figures)]


def gpus() -> list[Finding]:
    """The GPUs, and the links between them."""
    if not shutil.which("nvidia-smi"):
        return [
            Finding("GPUs", "none (no nvidia-smi): every rank runs on the CPU", False, figures=_gpu_figures())
        ]
    listing = ask("nvidia-smi", "-L", seconds=_NVIDIA_SMI_SECONDS)
    if listing.returncode != 0:
        advice = "nvidia-smi itself fails: mend the NVIDIA driver, or go on without GPUs."
        text = f"nvidia-smi is there and says: {last_line(listing.stdout, listing.stderr)}"
        return [Finding("GPUs", text, False, advice, _gpu_figures())]
    found = cluster.gpus()
    if not found:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES") is not None
        text = "none visible: CUDA_VISIBLE_DEVICES hides them" if hidden else "none, says nvidia-smi"
        return [Finding("GPUs", text, False, figures=_gpu_figures())]
    return [_gpus_finding(found), *(_links() if len(found) > 1 else [])]


def _gpu_figures(found: tuple[cluster.Gpu, ...] = ()) -> dict:
    return {"gpus": [{"name": gpu.name, "memory_bytes": gpu.memory_bytes} for gpu in found]}


_ONE_GPU = (
    'Two ranks need two GPUs (NCCL refuses to share one): ranks run on the CPU, unless backend="staged" lets '
    "them share this one."
)


def _gpus_finding(found: tuple[cluster.Gpu, ...]) -> Finding:
    text = "; ".join(
        f"{count} x {gpu.name}, {bytes_text(gpu.memory_bytes)}" for gpu, count in Counter(found).items()
    )
    is_enough = len(found) > 1
    advice = "" if is_enough else _ONE_GPU
    return Finding("GPUs", text, True, advice, _gpu_figures(found))


def _links() -> list[Finding]:
    """How each pair of the machine's GPUs is joined, from nvidia-smi's own matrix."""
    answer = ask("nvidia-smi", "topo", "-m", seconds=_NVIDIA_SMI_SECONDS)
    pairs = parse_links(answer.stdout)
    if not pairs:
        text = f"could not be found out: nvidia-smi topo -m says {last_line(answer.stdout, answer.stderr)}"
        return [Finding("GPU links", text, None)]
    kinds = Counter(pairs.values())
    text = "; ".join(f"{count} pair{'s' * (count > 1)} by {link_text(kind)}" for kind, count in kinds.items())
    return [Finding("GPU links", text, figures={"pairs": pairs})]


def parse_links(matrix: str) -> dict[str, str]:
    """Read `nvidia-smi topo -m`: {"GPU0-GPU1": "NV12"} for every pair of GPUs."""
    rows = [line.split() for line in _ESCAPES.sub("", matrix).splitlines()]
    header = next((row for row in rows if row[:1] == ["GPU0"] and "X" not in row), [])
    columns = [name for name in header if re.fullmatch(r"GPU\d+", name)]
    return {
        f"{row[0]}-{column}": kind
        for row in rows
        if row and row is not header and row[0] in columns
        for column, kind in zip(columns, row[1:], strict=False)
        if columns.index(row[0]) < columns.index(column)
    }


def link_text(kind: str) -> str:
    """Say nvidia-smi's short name in words: NV12 is "NVLink (NV12)"."""
    words = _LINK_WORDS.get(re.sub(r"\d", "", kind))
    return f"{words} ({kind})" if words else kind


def byte_counters() -> list[Finding]:
    """Send bytes over a loopback connection and read the kernel's count of them."""
    if not wire.is_available():
        advice = "Bytes are counted by PyTorch's recorder alone; Linux (or WSL2) counts each socket's too."
        return [
            Finding("byte counts", f"no: {platform.system()} has no counter for each socket", False, advice)
        ]
    counted = _count_on_loopback()
    is_right = counted == _PROBE_BYTES
    text = f"{_PROBE_BYTES:,} bytes sent over loopback, the kernel counted {counted:,}"
    advice = "" if is_right else "This kernel's counts cannot be used (Linux 4.19 or newer has them)."
    return [Finding("byte counts", text, is_right, advice, {"sent": _PROBE_BYTES, "counted": counted})]


def _count_on_loopback() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        with socket.create_connection(server.getsockname(), 5) as sender, server.accept()[0] as receiver:
            receiver.settimeout(5)
            sender.sendall(bytes(_PROBE_BYTES))
            received = 0
            while received < _PROBE_BYTES:
                received += len(receiver.recv(_PROBE_BYTES))
            found = wire.read_sockets().get(os.fstat(sender.fileno()).st_ino)
            return found.sent_bytes if found else 0


def compiler() -> list[Finding]:
    """A C++ compiler, which torch.compile needs."""
    name = next(
        (name for name in (os.environ.get("CXX", ""), "g++", "clang++") if name and shutil.which(name)), ""
    )
    if name:
        return [Finding("compiler", os.path.basename(name))]
    advice = "To see torch.compile in chapters 06 and 10, install g++ (Debian: apt-get install g++)."
    return [Finding("compiler", "none found (g++, clang++)", False, advice)]
