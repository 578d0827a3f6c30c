"""What the busiest rank sends and holds as ranks are added: the star of nn.DataParallel beside DDP."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpcourse.experiments.base import Experiment, stable_table
from dpcourse.parts.traffic import wire_verdict
from dpcourse.ranks.progress import with_progress
from dpcourse.run import Run
from dpcourse.tables import Table
from dpcourse.training import train

RANKS = (2, 4, 8)
STRATEGIES = ("dp", "ddp")
_MAIN, _OTHER = 0, 1


@dataclass(frozen=True, repr=False)
class MainRank(Experiment):
    """One run of each strategy on each number of ranks. The main rank is rank 0; DDP has none."""

    runs: tuple[Run, ...]

    def of(self, strategy: str) -> list[Run]:
        return [run for run in self.runs if run.strategy == strategy]

    def sent(self, strategy: str, rank: int = _MAIN) -> list[float | None]:
        """For each number of ranks, what a rank sent in a step for each byte of parameters."""
        return [run.traffic.sent_per_parameter_byte(rank) for run in self.of(strategy)]

    def expected(self, strategy: str, rank: int = _MAIN) -> list[float]:
        return [run.traffic.expected_sent_bytes(rank) / run.parameter_bytes for run in self.of(strategy)]

    @property
    def title(self) -> str:
        return f"Sent in one step for each byte of parameters: {self.runs[0].model}"

    def table(self) -> Table:
        columns = ["strategy", "ranks", "rank 0, expected", "rank 1, expected", "verdict", "rank 0", "rank 1"]
        return stable_table(columns, map(_row, self.runs), 5, self.title)

    def words(self) -> str:
        last = max(run.world_size for run in self.runs)
        star, ddp = (self.expected(name)[-1] for name in STRATEGIES)
        return (
            f"On {last} ranks the star's main rank sends {star:.2f} times the model in a step, and a rank of "
            f"DDP {ddp:.2f} times."
        )

    def plot(self) -> Any:
        """Draw what rank 0 sent against the number of ranks: counts solid, what is expected dashed."""
        from dpcourse.figures import main_rank_curves

        return main_rank_curves(self)


def _row(run: Run) -> list[Any]:
    traffic = run.traffic
    expected = [traffic.expected_sent_bytes(rank) for rank in (_MAIN, _OTHER)]
    sent = [traffic.sent_bytes(rank) for rank in (_MAIN, _OTHER)]
    verdict = wire_verdict(sent[0], expected[0])
    each = [None if size is None else f"{size / run.parameter_bytes:.2f}" for size in (*expected, *sent)]
    return [run.strategy, run.world_size, *each[:2], verdict, *each[2:]]


def main_rank(ranks: Sequence[int] = RANKS, model: Any = "mlp", device: str | None = None) -> MainRank:
    """Train a step by star and by DDP on ever more ranks, and count what each rank sends.

    Args:
        ranks: how many, each time; two at least.
        model, device: as for `dc.train`; with as many GPUs as ranks the kernel has nothing to count.
    """
    if not ranks or min(ranks) < 2:
        raise ValueError(f"ranks={tuple(ranks)}: a rank alone sends nothing; give numbers of 2 or more")
    asked = [(strategy, count) for strategy in STRATEGIES for count in sorted(ranks)]
    return MainRank(
        tuple(
            train(strategy, model=model, ranks=count, steps=1, device=device)
            for strategy, count in with_progress(asked)
        )
    )
