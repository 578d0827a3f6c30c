"""dpcourse: data parallelism, run for real and measured in front of the learner."""

import importlib
import os
import sys
from typing import Any

__version__ = "0.1.0"

# Each public name and the module that holds it; a module is imported when its name is first used,
# so that `import dpcourse` costs neither torch nor matplotlib. No module may bear the name of a value: its
# import would put the module in the value's place.
_HOMES = {
    "launch": "dpcourse.ranks.launch",
    "RankError": "dpcourse.ranks.errors",
    "Cluster": "dpcourse.ranks.cluster",
    "train": "dpcourse.training",
    "Run": "dpcourse.run",
    "compare": "dpcourse.comparison",
    "expect": "dpcourse.expectation",
    "lab": "dpcourse.labs",
    "predict": "dpcourse.prediction",
    "progress": "dpcourse.course_progress",
    "dry_run": "dpcourse.dryrun",
    "plan": "dpcourse.planning.selection",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"dpcourse has no {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # the next use costs nothing
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def _start_fork_server_in_a_notebook() -> None:
    # In the background, while the learner reads: the first run then finds torch already imported.
    ipython = sys.modules.get("IPython")
    if ipython and hasattr(ipython.get_ipython(), "kernel"):
        from dpcourse.ranks import service

        service.current()


def _show_the_place_of_who_asked_for_it() -> None:
    if os.environ.get("DPCOURSE_PLACE") and "IPython" in sys.modules:
        from dpcourse import room_places

        room_places.show_where_chosen()


_start_fork_server_in_a_notebook()
_show_the_place_of_who_asked_for_it()
