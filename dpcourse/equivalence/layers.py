"""What makes N ranks differ from one for real: layers that look beyond a sample, ranks that do not talk."""

from dataclasses import replace

from dpcourse.equivalence.training import Setting, run, train
from dpcourse.equivalence.values import (
    Difference,
    Trajectory,
    difference,
    move_difference,
    replica_difference,
    share_text,
)
from dpcourse.show import is_reference
from dpcourse.tables import Table

RANKS, SAMPLES_PER_RANK, STEPS = 4, 8, 10
REASONS = {
    "mlp": "each sample's loss depends on that sample alone",
    "batchnorm": f"each rank normalises by its own {SAMPLES_PER_RANK} samples",
    "dropout": "each rank draws a mask of its own",
}


def layers_that_break_it() -> Table:
    """Train three models on 1 rank and on 4, on the same global batches, and say which agree.

    The mean of the ranks' gradients is the batch's if the loss is a mean over samples, each by itself. Batch
    norm brings in the mean of the samples at hand, dropout a random mask (torch: BatchNorm1d, Dropout).
    """
    settings = [Setting((SAMPLES_PER_RANK,) * RANKS, STEPS, model=model) for model in REASONS]
    many = run(settings)
    one = run([replace(setting, split=(RANKS * SAMPLES_PER_RANK,)) for setting in settings])
    rows = [
        (model, *_compared(*runs), reason)
        for (model, reason), *runs in zip(REASONS.items(), one, many, strict=True)
    ]
    sizes = () if is_reference() else ("a parameter differs by", "share of the way moved")
    caption = f"{STEPS} steps on {RANKS} ranks against 1, the same global batches"
    return Table(("model", *sizes, "verdict", "because"), rows, caption)


def _compared(one: Trajectory, many: Trajectory) -> list[str]:
    """The difference in numbers, save in the reference configuration (masks are chance), and in a word."""
    found = difference(one, many)
    sizes = [f"{found.largest:.1e}", share_text(move_difference(many, one))]
    return [found.verdict] if is_reference() else [*sizes, found.verdict]


def replicas_drift(combine: str = "none", ranks: int = 4, steps: int = 20) -> Difference:
    """Start all ranks alike, combine gradients or not, and say how far the replicas are apart, step by step.

    Replicas stay equal only while all apply the same gradient (the chapter on data parallelism, section 1).
    """
    if ranks < 2:
        raise ValueError(f"ranks={ranks}: replicas_drift compares replicas; give it at least 2 ranks")
    return replica_difference(train(ranks=ranks, combine=combine, steps=steps, global_batch=8 * ranks))
