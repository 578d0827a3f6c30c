"""What is asked for and what is there: cores, memory, GPUs, and ranks that fit them."""

import csv
import functools
import importlib.util
import io
import math
import operator
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from dpcourse.ranks import torchrun
from dpcourse.ranks.links import Links, make_links, read_shape

_NVIDIA_SMI_SECONDS = 20
_FILES_PER_RANK = 5
_MAX_RANKS = 256
_NICE_STEP = 1.25


@dataclass(frozen=True)
class Gpu:
    """One visible GPU, or one slice of it (MIG), by the name that nvidia-smi has for no other."""

    name: str
    memory_bytes: int
    uuid: str = field(default="", compare=False)  # two of one kind are alike


@dataclass(frozen=True)
class Hardware:
    """What this machine has, as far as this process may use it."""

    cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]


def attached() -> Hardware:
    """Cores, memory and GPUs that this process may use; torch is not needed, CUDA is not touched."""
    return Hardware(num_cores(), memory_bytes(), gpus())


def cpu_set() -> list[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def num_cores() -> int:
    """Cores that this process may use: its CPU set, and the container's quota where there is one."""
    cores = len(cpu_set())
    quota = _cgroup("cpu.max")
    if quota and quota[0] != "max":
        cores = min(cores, max(1, round(int(quota[0]) / int(quota[1]))))
    return cores


def cores_per_rank(num_ranks: int) -> int:
    """Threads each rank computes with: more than its share of the cores would starve the others."""
    return max(1, num_cores() // num_ranks)


def niceness(num_ranks: int) -> int:
    """Steps by which each rank gives way, so that all runs weigh alike where processes share the cores out.

    Linux gives a process 1.25 times less for each step: 4 times more ranks than cores give way by 6.
    """
    return round(math.log(max(1.0, num_ranks / num_cores()), _NICE_STEP))


def memory_bytes() -> int:
    """Memory of the machine, or of the container where it has less."""
    limit = _cgroup("memory.max")
    total = psutil.virtual_memory().total
    return min(total, int(limit[0])) if limit and limit[0] != "max" else total


def _cgroup(name: str) -> list[str] | None:
    try:
        return Path("/sys/fs/cgroup", name).read_text().split()
    except OSError:
        return None


def torch_has_cuda() -> bool:
    """Whether the installed torch is a build for NVIDIA GPUs; it is looked at, not imported."""
    found = importlib.util.find_spec("torch")
    folder = Path(found.origin).parent / "lib" if found and found.origin else Path()
    return any(folder.glob("*torch_cuda*"))


def gpus() -> tuple[Gpu, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves visible, as nvidia-smi lists them."""
    rows = _nvidia_smi()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return _as_cuda_counts([gpu for index, _, gpu in rows if index])
    chosen: dict[str, Gpu] = {}
    prefix = visible[:4] if visible.startswith(("GPU-", "MIG-")) else ""  # the first says what all are
    for wanted in visible.split(","):
        found = [gpu for index, uuid, gpu in rows if _is_named(wanted, index, uuid, prefix)]
        if len(found) != 1:
            break  # CUDA ignores all that follow one it does not know, or that could be several
        if found[0].uuid in chosen:
            return ()  # and a list that names one twice
        chosen[found[0].uuid] = found[0]
    return _as_cuda_counts(list(chosen.values()))


def _is_named(wanted: str, index: str, uuid: str, prefix: str) -> bool:
    """Tell whether a part of CUDA_VISIBLE_DEVICES means this GPU: by a UUID's beginning, or by a number.

    What follows a number is not read: "1st" is 1. Source: CUDA's strtoul, as torch.cuda reads it too.
    """
    if prefix:
        return wanted.startswith(prefix) and uuid.startswith(wanted)
    number = re.match(r"\s*\+?(\d+)", wanted)
    return number is not None and index == str(int(number[1]))


def _as_cuda_counts(chosen: list[Gpu]) -> tuple[Gpu, ...]:
    """CUDA gives one process no more than one slice."""
    cut = [gpu for gpu in chosen if gpu.uuid.startswith("MIG-")]
    return tuple(cut[:1] or chosen)


@functools.lru_cache(maxsize=1)
def _nvidia_smi() -> list[tuple[str, str, Gpu]]:
    """Give index and UUID to name each GPU by, and what CUDA gives for that name."""
    rows = nvidia_smi_rows("--query-gpu=index,uuid,name,memory.total")
    found = [(index, uuid, Gpu(name, _card_bytes(mib), uuid)) for index, uuid, name, mib in rows]
    slices = _slices(ask_nvidia_smi("-L")) if found else {}
    # CUDA takes a GPU that is cut into slices for the first of them.
    whole = [(index, uuid, slices[index][0] if index in slices else gpu) for index, uuid, gpu in found]
    return whole + [("", gpu.uuid, gpu) for own in slices.values() for gpu in own]


def _card_bytes(mib: str) -> int:
    """Bytes of a card; one that shares the machine's memory, as in a Jetson or GB10, has "[N/A]" there."""
    return int(float(mib)) << 20 if re.fullmatch(r"[\d.]+", mib) else memory_bytes()


def _slices(listed: str) -> dict[str, list[Gpu]]:
    """Read from `nvidia-smi -L` the slices (MIG) of each GPU, by its index."""
    slices: dict[str, list[Gpu]] = {}
    index = name = ""
    for line in listed.splitlines():
        if gpu := re.match(r"GPU (\d+): (.*) \(UUID", line):
            index, name = gpu.groups()
        elif cut := re.match(r"\s+MIG (\S*?(\d+)gb\S*)\s.*\(UUID: (MIG-[^)]+)\)", line):
            profile, gib, uuid = cut.groups()
            slices.setdefault(index, []).append(Gpu(f"{name} MIG {profile}", int(gib) << 30, uuid))
    return slices


def nvidia_smi_rows(query: str) -> list[list[str]]:
    """Give what nvidia-smi says to a query, a row for each line that has as many cells as were asked for."""
    text = ask_nvidia_smi(query, "--format=csv,noheader,nounits")
    rows = csv.reader(io.StringIO(text))
    return [[cell.strip() for cell in row] for row in rows if len(row) == query.count(",") + 1]


def ask_nvidia_smi(*arguments: str) -> str:
    """Give what nvidia-smi says; nothing where there is none, or where it fails."""
    try:
        return subprocess.run(
            ["nvidia-smi", *arguments],
            capture_output=True,
            text=True,
            timeout=_NVIDIA_SMI_SECONDS,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


@dataclass(frozen=True, repr=False)
class Cluster:
    """The ranks of a run, the device they compute on, and the links between them.

    ```
    dc.Cluster(ranks=4)                                                       # this machine as it is
    dc.Cluster(hosts=2, ranks_per_host=2, inter="500mbit", intra="10gbit")    # two emulated hosts
    ```

    Hosts are emulated on this machine: each has a card that its ranks share. Kernel links (namespaces.py) are
    taken where they work, else paced ones (paced.py); `network` says which, and so does every record.

    In a process that torchrun has started the ranks are there already, on one machine or several, and the
    cluster is what torchrun has started: `dc.Cluster()` has its ranks, hosts and ranks_per_host.

    Args:
        ranks: how many; None for as many as there are GPUs, and 2 where there are fewer than two.
        device: "cpu", "cuda", or None for GPUs where there are at least as many as ranks, else CPU.
        hosts, ranks_per_host: emulated hosts and the ranks on each; any two of the three numbers will do.
        inter: the rate of each host's card, such as "500mbit"; None is 1gbit where there are several hosts.
        intra: the rate at which the ranks of one host talk, such as "10gbit"; None is as fast as it goes.
        latency: until a message between two hosts begins to arrive, such as "50us"; None is none.
        links: "kernel" or "paced"; None takes what works here.
        share: several ranks on each GPU, with messages through host memory (network/staged.py); without a GPU
            the same on the CPU.

    Raises:
        ValueError: what is asked for is not there; says both and the way out.
    """

    ranks: int | None = None
    device: str | None = None
    hosts: int | None = None
    ranks_per_host: int | None = None
    inter: str | None = None
    intra: str | None = None
    latency: str | float | None = None
    links: str | None = None
    share: bool = False
    network: Links | None = field(init=False, default=None)
    member: torchrun.Member | None = field(init=False, default=None)  # this process's place, where it has one

    def __post_init__(self) -> None:
        self._read_numbers()
        if self.ranks is not None and type(self.ranks) is not int:
            raise ValueError(f"ranks={self.ranks!r}: give a whole number of processes")
        if self.device not in (None, "cpu", "cuda"):
            raise ValueError(f'device={self.device!r}: give "cpu", "cuda", or None to take what fits')
        if member := torchrun.found():
            self._take(member)
        shape = self._shape()
        if not 1 <= self.num_ranks <= _MAX_RANKS:
            raise ValueError(f"ranks={self.num_ranks}: give a number from 1 to {_MAX_RANKS}")
        if shape:
            object.__setattr__(self, "network", self._network(shape))
        self._check_share()
        self._check_gpus()
        self._check_files()

    def _read_numbers(self) -> None:
        """Take whole numbers of other kinds, such as numpy's, as what they are."""
        for what in ("ranks", "hosts", "ranks_per_host"):
            asked = getattr(self, what)
            if hasattr(asked, "__index__") and not isinstance(asked, bool):
                object.__setattr__(self, what, operator.index(asked))

    def __repr__(self) -> str:
        """Say what was found for what was asked, as a cell's last line shows it."""
        ranks = self.network or ("1 rank" if self.num_ranks == 1 else f"{self.num_ranks} ranks")
        return f"Cluster: {ranks} on {self.chosen_device}"

    @property
    def num_ranks(self) -> int:
        if shape := self._shape():
            return shape[0] * shape[1]
        return max(2, len(gpus())) if self.ranks is None else self.ranks

    @property
    def ranks_here(self) -> range:
        """The ranks that share this machine's memory and GPUs."""
        return self.member.ranks_here if self.member else range(self.num_ranks)

    @property
    def chosen_device(self) -> str:
        """ "cuda" or "cpu": what the ranks will compute on."""
        if self.network:
            return "cpu"
        num_needed = 1 if self.share else len(self.ranks_here)
        return self.device or ("cuda" if len(gpus()) >= num_needed and torch_has_cuda() else "cpu")

    @property
    def num_gpus(self) -> int:
        """How many GPUs the ranks here take: one each, or as many as there are where they share."""
        if self.chosen_device != "cuda":
            return 0
        return min(len(self.ranks_here), len(gpus()))

    def _shape(self) -> tuple[int, int] | None:
        """Give hosts and ranks on each where hosts are to be emulated; None where none are asked for."""
        asked = (self.hosts, self.ranks_per_host, self.inter, self.intra, self.latency, self.links)
        if self.member or all(value is None for value in asked):
            return None
        return read_shape(self.ranks, self.hosts, self.ranks_per_host)

    def _take(self, member: torchrun.Member) -> None:
        """Be what torchrun has started, and refuse what it has not."""
        started = {"ranks": member.world_size, "hosts": member.hosts, "ranks_per_host": member.ranks_per_host}
        for what, there in started.items():
            if getattr(self, what) not in (None, there):
                raise ValueError(
                    f"{what}={getattr(self, what)} was asked for, and torchrun has started {there}; leave it "
                    "out, or change --nnodes and --nproc-per-node"
                )
            object.__setattr__(self, what, there)
        if any(value is not None for value in (self.inter, self.intra, self.latency, self.links)):
            raise ValueError(
                "emulated links were asked for in a process that torchrun has started, where links are what "
                "they are; leave inter, intra, latency and links out, or start with python alone"
            )
        object.__setattr__(self, "member", member)

    def _network(self, shape: tuple[int, int]) -> Links:
        if self.device == "cuda":
            raise ValueError(
                'hosts were asked for with device="cuda", and emulated hosts join ranks on the CPU (GPUs of '
                "one machine talk past every card); leave device out, or hosts and rates"
            )
        return make_links(shape, self.inter, self.intra, self.latency, self.links)

    def _check_gpus(self) -> None:
        num_gpus, num_here = len(gpus()), len(self.ranks_here)
        if self.device == "cuda" and num_gpus < (1 if self.share else num_here):
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
            raise ValueError(
                f"{num_here} ranks on GPUs were asked for, and {num_gpus} GPUs are visible"
                f"{f' (CUDA_VISIBLE_DEVICES is {hidden!r})' if hidden is not None else ''}; "
                f"each rank needs one{', unless they share' if num_gpus else ''}. "
                f'Ask for {_fewer(num_gpus) if num_gpus else ""}device="cpu"'
            )

        if self.device == "cuda" and not torch_has_cuda():
            raise ValueError(
                "ranks on GPUs were asked for, and the installed torch is a build for the CPU alone. "
                'Ask for device="cpu", or make the environment anew without TORCH_INDEX'
            )

    def _check_share(self) -> None:
        if not isinstance(self.share, bool):
            raise ValueError(f"share={self.share!r}: give True or False")
        if self.share and self.network:
            raise ValueError(
                "share=True puts several ranks on a GPU, and emulated hosts join ranks on the CPU; leave "
                "share out, or hosts and rates"
            )

    def _check_files(self) -> None:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        wanted = self.num_ranks * _FILES_PER_RANK + 64
        if limit != resource.RLIM_INFINITY and wanted > limit:
            raise ValueError(
                f"{self.num_ranks} ranks need {wanted} open files, and this process may have {limit}. "
                f"Ask for at most {(limit - 64) // _FILES_PER_RANK} ranks, or raise the limit (ulimit -n)"
            )


def _fewer(num_gpus: int) -> str:
    return f'{num_gpus} {"rank" if num_gpus == 1 else "ranks"}, for backend="staged" (ranks share), or for '
