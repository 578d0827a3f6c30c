"""A row of tensors cut into one equal slice a rank, however the tensors lie in it.

Source: Rajbhandari et al., ZeRO, 2020, section 5: optimizer states in equal partitions.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cut:
    """The part of one tensor that lies in a slice: from start to stop, counted in the slice."""

    tensor: int  # its place in the row
    start: int
    stop: int


def padded_size(num_elements: int, num_slices: int) -> int:
    """Round a size up to a multiple of the number of slices: slices are equal, so that ranks are alike."""
    return -(-num_elements // num_slices) * num_slices


def cuts_of(sizes: Sequence[int], num_slices: int, place: int) -> list[Cut]:
    """Cut a slice where one tensor ends and the next begins; the padding at the row's end is no tensor's.

    sizes: the tensors' numbers of elements, in the order of the row. place: which slice.
    """
    slice_size = padded_size(sum(sizes), num_slices) // num_slices
    cuts, begin = [], -place * slice_size
    for tensor, size in enumerate(sizes):
        start, stop = max(begin, 0), min(begin + size, slice_size)
        if start < stop:
            cuts.append(Cut(tensor, start, stop))
        begin += size
    return cuts
