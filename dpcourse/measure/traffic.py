"""Collectives as torch's flight recorder keeps them: every call with its sizes, at no cost to the step.

The recorder shows what the backend did, not what was asked of it: on gloo a reduce-scatter appears as the
all-reduce that carries it out.
"""

from math import prod
from typing import Any

from dpcourse.layout import DTYPE_BYTES
from dpcourse.ledger import Transfer
from dpcourse.ranks.witness import recorded_entries

_DTYPES = {
    "Double": "float64", "Float": "float32", "BFloat16": "bfloat16", "Half": "float16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
_COLLECTIVES = {
    "_all_gather_base": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
}


class TrafficMeter:
    """Lists this rank's collectives, phase by phase.

    Each Transfer has its dtype as its unit, until the strategy names it, and no sent_bytes: what goes over
    the wire for a collective is the backend's affair, and the kernel's counters tell.
    """

    def __init__(self) -> None:
        self.transfers: list[Transfer] = []
        self._next_id = _next_record_id(recorded_entries())

    def mark(self, phase: str) -> None:
        """Close a phase: what was recorded since the last mark belongs to it."""
        entries = recorded_entries()
        new = [entry for entry in entries if entry["record_id"] >= self._next_id]
        if len(new) != _next_record_id(entries) - self._next_id:
            raise RuntimeError(
                f"the {phase} phase made {_next_record_id(entries) - self._next_id} collectives and torch's "
                f"flight recorder kept the last {len(new)}; raise TORCH_FR_BUFFER_SIZE, or make fewer"
            )
        self._next_id += len(new)
        transfers = [_transfer(entry, phase) for entry in new]
        self.transfers += [transfer for transfer in transfers if len(transfer.group) > 1]


def _next_record_id(entries: list[dict[str, Any]]) -> int:
    return 1 + max((entry["record_id"] for entry in entries), default=-1)


def _transfer(entry: dict[str, Any], phase: str) -> Transfer:
    import torch.distributed as dist

    operation = entry["profiling_name"].split(":")[-1].split(" ")[0]
    collective = _COLLECTIVES.get(operation, operation)
    side = "output" if collective == "all_gather" else "input"
    dtypes = [_DTYPES.get(name, name) for name in entry[f"{side}_dtypes"]]
    payload = sum(
        prod(sizes) * DTYPE_BYTES[dtype] for sizes, dtype in zip(entry[f"{side}_sizes"], dtypes, strict=False)
    )
    return Transfer(
        collective, dtypes[0] if dtypes else "", _group(entry, dist), payload, None, phase, dist.get_rank()
    )


def _group(entry: dict[str, Any], dist: Any) -> tuple[int, ...]:
    names = dist.distributed_c10d._world.pg_names
    group = next((group for group, name in names.items() if name == entry["process_group"][0]), None)
    return tuple(dist.get_process_group_ranks(group))
