"""Whether a GPU has room for the ranks that are to run on it, or another program has filled it.

Asked when the cards of a run are its own and no rank has started: before its turn the run ahead fills them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dpcourse.ranks.cluster import nvidia_smi_rows
from dpcourse.tables import bytes_text

# What CUDA takes for each process before the first tensor: its context, kernels of torch, cuBLAS, and NCCL's
# buffers. It was never measured here; others report 300 to 600 MB on cards from V100 to H100.
CONTEXT_BYTES = 600 * 10**6


@dataclass(frozen=True)
class Card:
    """A GPU as it is now: its memory, and who else has some of it."""

    uuid: str
    name: str
    total_bytes: int
    free_bytes: int
    processes: tuple[str, ...] = ()

    def __str__(self) -> str:
        held = f"{bytes_text(self.free_bytes)} of its {bytes_text(self.total_bytes)}"
        others = ", ".join(self.processes) or "processes that nvidia-smi does not show here hold the rest"
        return f"{self.name} ({self.uuid}) has {held} free: {others}"


def check_room(environment: Mapping[str, str], num_ranks: int, rank_bytes: int) -> None:
    """Refuse, with ValueError, cards without room for the ranks that share them out.

    environment: names the cards in CUDA_VISIBLE_DEVICES, by their UUIDs; without it ranks are on the CPU.
    rank_bytes: what each rank is known to hold, without CUDA's own. Nothing is said where nobody knows what
    is free (a slice of a card).
    """
    uuids = [uuid for uuid in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if uuid]
    ranks_per_card = -(-num_ranks // max(1, len(uuids)))
    needed = ranks_per_card * (CONTEXT_BYTES + rank_bytes)
    for card in cards(uuids):
        if card.free_bytes < needed:
            ranks = "a rank" if ranks_per_card == 1 else f"{ranks_per_card} ranks"
            raise ValueError(
                f"{card}; {ranks} there would need {bytes_text(needed)}, CUDA's own included. End what holds "
                "it, name other cards in CUDA_VISIBLE_DEVICES, ask for fewer ranks or a smaller model, or "
                'for device="cpu"'
            )


def cards(uuids: Sequence[str]) -> list[Card]:
    """Ask nvidia-smi what these cards have free now; those it does not tell of are left out."""
    if not uuids:
        return []
    rows = nvidia_smi_rows("--query-gpu=uuid,name,memory.total,memory.free")
    found = {uuid: (name, total, free) for uuid, name, total, free in rows}
    used_by = _processes()
    return [
        Card(uuid, name, _mebibytes(total), _mebibytes(free), tuple(used_by.get(uuid, ())))
        for uuid, (name, total, free) in found.items()
        if uuid in uuids and total.isdecimal() and free.isdecimal()
    ]


def _processes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    rows = nvidia_smi_rows("--query-compute-apps=gpu_uuid,pid,process_name,used_memory")
    for uuid, pid, name, used in rows:
        size = bytes_text(_mebibytes(used)) if used.isdecimal() else "memory"
        found.setdefault(uuid, []).append(f"{name} (process {pid}) holds {size}")
    return found


def _mebibytes(text: str) -> int:
    return int(text) << 20
