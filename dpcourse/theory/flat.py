"""FSDP1's flat parameter: a unit's parameters in one row, cut into equal shards wherever the cuts fall.

Source: _init_flat_param_and_metadata and shard in torch/distributed/fsdp/_flat_param.py (torch 2.13).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dpcourse.theory.slices import padded_size

ALIGNMENT_BYTES = 16


@dataclass(frozen=True)
class FlatRow:
    """Where each tensor begins and how long it is, counted in elements; what lies between is padding."""

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    num_elements: int

    def in_shard(self, num_shards: int, place: int) -> list[int]:
        """Count the elements of each tensor that lie in one of the equal shards: none, all, or a part."""
        length = self.num_elements // num_shards
        begin, end = place * length, (place + 1) * length
        return [
            max(0, min(start + size, end) - max(start, begin))
            for start, size in zip(self.starts, self.sizes, strict=True)
        ]


def flat_row(sizes: Sequence[int], element_bytes: int, num_shards: int) -> FlatRow:
    """Lay tensors one after the other, each at a multiple of 16 bytes; pad the end so that shards are equal.

    sizes: numbers of elements. element_bytes: in the format that the row is computed with, even where its
    shards are kept in another.
    """
    alignment = ALIGNMENT_BYTES // element_bytes
    starts, end = [], 0
    for size in sizes:
        starts.append(padded_size(end, alignment))
        end = starts[-1] + size
    return FlatRow(tuple(starts), tuple(sizes), padded_size(end, num_shards))
