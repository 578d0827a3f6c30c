"""Widgets: what a learner moves with the hand. Each draws its first state as a plain picture too."""

from dpcourse.widgets.buckets import bucket_slider
from dpcourse.widgets.comparison import ledger_comparison
from dpcourse.widgets.decision import decision_tree
from dpcourse.widgets.memory import memory_calculator
from dpcourse.widgets.ring import ring_stepper
from dpcourse.widgets.scaling import scaling_sliders
from dpcourse.widgets.split import split_explorer

__all__ = [
    "bucket_slider",
    "decision_tree",
    "ledger_comparison",
    "memory_calculator",
    "ring_stepper",
    "scaling_sliders",
    "split_explorer",
]
