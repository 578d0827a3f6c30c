"""Experiments, most of them on links: each one function to call from a cell, whose result shows itself.

Numbers that a clock has no part in (bytes, counts) are held to their formulas; times stand beside a model's.
"""

from dpcourse.experiments.all_reduce import all_reduce_sweep, fit_link
from dpcourse.experiments.buckets import bucket_sweep
from dpcourse.experiments.crossing import crossings
from dpcourse.experiments.few_or_many import few_or_many
from dpcourse.experiments.hybrid import hybrid
from dpcourse.experiments.loss_curves import loss_curves
from dpcourse.experiments.main_rank import main_rank
from dpcourse.experiments.overlap import overlap
from dpcourse.experiments.prefetch import prefetch
from dpcourse.experiments.range_test import range_test
from dpcourse.experiments.star_or_ring import star_or_ring
from dpcourse.experiments.threads import threads_or_processes
from dpcourse.experiments.wire_counts import wire_counts

__all__ = [
    "all_reduce_sweep",
    "bucket_sweep",
    "crossings",
    "few_or_many",
    "fit_link",
    "hybrid",
    "loss_curves",
    "main_rank",
    "overlap",
    "prefetch",
    "range_test",
    "star_or_ring",
    "threads_or_processes",
    "wire_counts",
]
