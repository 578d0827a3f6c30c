"""Figures: drawings of ledgers. They draw what they are given and compute nothing that is not drawn."""

from dpcourse.figures.all_reduce import few_or_many_bars, wire_count_curves
from dpcourse.figures.cable import cable_picture
from dpcourse.figures.comparison import compare_bars
from dpcourse.figures.difference import difference_lines
from dpcourse.figures.links import (
    all_reduce_curve,
    bucket_curve,
    hybrid_bars,
    overlap_bars,
    prefetch_bars,
    star_or_ring_curves,
)
from dpcourse.figures.losses import loss_lines, range_lines
from dpcourse.figures.main_rank import main_rank_curves, memory_by_rank, workers_bars
from dpcourse.figures.memory import memory_bars
from dpcourse.figures.memory_over_time import memory_over_time
from dpcourse.figures.prediction import prediction_bars
from dpcourse.figures.scaling import scaling_lines
from dpcourse.figures.split import split_bars
from dpcourse.figures.timeline import timeline_lanes
from dpcourse.figures.tradeoff import plan_figure, tradeoff_plane
from dpcourse.figures.traffic import traffic_bars

__all__ = [
    "all_reduce_curve",
    "bucket_curve",
    "cable_picture",
    "compare_bars",
    "difference_lines",
    "few_or_many_bars",
    "hybrid_bars",
    "loss_lines",
    "main_rank_curves",
    "memory_bars",
    "memory_by_rank",
    "memory_over_time",
    "overlap_bars",
    "plan_figure",
    "prediction_bars",
    "prefetch_bars",
    "range_lines",
    "scaling_lines",
    "split_bars",
    "star_or_ring_curves",
    "timeline_lanes",
    "tradeoff_plane",
    "traffic_bars",
    "wire_count_curves",
    "workers_bars",
]
