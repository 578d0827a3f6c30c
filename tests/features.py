"""What the installed torch can do, where its versions differ."""

from collections.abc import Mapping
from typing import Any

from torch.distributed.fsdp import FSDPModule

_REDUCES_UNUSED = hasattr(FSDPModule, "set_reduce_scatter_unused_params")


def possible(cases: Mapping[str, tuple]) -> dict[str, Any]:
    """Cases (options last) without those for a newer torch; that an older one refuses them: test_fsdp2.py."""
    return {
        name: case
        for name, case in cases.items()
        if _REDUCES_UNUSED or "reduce_scatter_unused_params" not in case[-1]
    }
