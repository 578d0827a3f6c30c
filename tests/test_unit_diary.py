"""The diary of a unit: gather, compute, release, twice, and the reduction in the end."""

import pytest
import torch

import dpcourse as dc
from dpcourse.scratch import fsdp
from dpcourse.scratch.diary import diary_of_one_unit

torch.set_num_threads(1)  # other tests run beside these

WHOLE = 64 * 64 * 4
FULL_SHARDING = [
    ("all_gather", WHOLE),
    ("forward", WHOLE),
    ("release", 0),
    ("all_gather", WHOLE),
    ("backward", WHOLE),
    ("release", 0),
    ("reduce_scatter", 0),
]


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_unit_is_whole_while_it_computes_and_at_no_other_time(ranks):
    for lines in dc.launch(diary_of_one_unit, ranks=ranks, device="cpu"):
        assert lines == FULL_SHARDING


def kept_after_forward():
    shard = fsdp.shard
    fsdp.shard = lambda module, **options: shard(module, reshard_after_forward=False, **options)
    return diary_of_one_unit()


def test_a_unit_that_is_kept_after_forward_has_another_diary():
    for lines in dc.launch(kept_after_forward, ranks=2, device="cpu"):
        assert lines == [*FULL_SHARDING[:2], *FULL_SHARDING[4:]]
