"""Where a check runs: on which device, on how many ranks, over which backend, and where its files go."""

from dataclasses import dataclass
from pathlib import Path

from dpcourse.ranks import cluster

_SEVERAL_RANKS = 4
_SLOWER_WITH_SEVERAL, _SLOWER_ON_CPU = 1.25, 2.0


@dataclass(frozen=True)
class Place:
    """ranks, backend: of a step that asks for no others; None is the device's own."""

    device: str
    ranks: int
    backend: str | None
    num_gpus: int
    out: Path
    is_quick: bool = False

    @property
    def report(self) -> Path:
        return self.out / "gpu-report.json"

    @property
    def runs(self) -> Path:
        return self.out / "gpu-runs"

    @property
    def figures(self) -> Path:
        return self.out / "gpu-figures"

    def notes(self, step: str) -> Path:
        return self.out / "gpu-notes" / f"{step}.jsonl"

    def make_folders(self) -> None:
        try:
            for folder in (self.runs, self.figures, self.notes("").parent):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(
                f"--out {self.out}: {error.filename} could not be made ({error.strerror}); name a folder "
                "that can be written to"
            ) from None

    def scaled(self, seconds: float) -> float:
        """Give a step's limit here: with several GPUs it runs more ranks, and on the CPU nothing is quick."""
        if self.device == "cpu":
            return seconds * _SLOWER_ON_CPU
        return seconds * (_SLOWER_WITH_SEVERAL if self.num_gpus > 1 else 1.0)

    def as_arguments(self) -> list[str]:
        quick = ["--quick"] if self.is_quick else []
        return ["--device", self.device, "--out", str(self.out), *quick]


def place_for(device: str, out: Path, is_quick: bool) -> Place:
    """Choose ranks and backend: NCCL with a GPU for each rank, or two ranks that share the only one.

    Raises ValueError where the device is not there.
    """
    num_gpus = len(cluster.gpus())
    if device == "cpu":
        return Place("cpu", 2, None, 0, out, is_quick)
    cluster.Cluster(ranks=1, device=device)  # refuses what is not there
    if num_gpus == 1:
        return Place(device, 2, "staged", 1, out, is_quick)
    return Place(device, min(num_gpus, _SEVERAL_RANKS), None, num_gpus, out, is_quick)
