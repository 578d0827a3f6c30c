"""Is training on N ranks the same as training on one? The experiments of notebook 01, each on real ranks."""

from dpcourse.equivalence.layers import layers_that_break_it, replicas_drift
from dpcourse.equivalence.optimizers import sum_or_mean
from dpcourse.equivalence.speedup import SpeedRun, speed
from dpcourse.equivalence.training import train
from dpcourse.equivalence.values import Difference, Trajectory, difference, move_difference
from dpcourse.equivalence.weighting import SplitError, split_error, token_weighted, uneven_batches

__all__ = [
    "Difference",
    "SpeedRun",
    "SplitError",
    "Trajectory",
    "difference",
    "layers_that_break_it",
    "move_difference",
    "replicas_drift",
    "speed",
    "split_error",
    "sum_or_mean",
    "token_weighted",
    "train",
    "uneven_batches",
]
