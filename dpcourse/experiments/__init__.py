"""Experiments on links: each one function to call from a cell, whose result shows itself.

Numbers that a clock has no part in (bytes, counts) are held to their formulas; times stand beside a model's.
"""

from dpcourse.experiments.all_reduce import all_reduce_sweep, fit_link
from dpcourse.experiments.buckets import bucket_sweep
from dpcourse.experiments.hybrid import hybrid
from dpcourse.experiments.overlap import overlap
from dpcourse.experiments.prefetch import prefetch
from dpcourse.experiments.star_or_ring import star_or_ring

__all__ = ["all_reduce_sweep", "bucket_sweep", "fit_link", "hybrid", "overlap", "prefetch", "star_or_ring"]
