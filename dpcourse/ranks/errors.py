"""The one exception of a run: which rank failed first, how, and at which line."""

from dataclasses import dataclass
from typing import Any

from dpcourse.ranks.places import Place, text_of

# What a rank says when a peer has gone: a consequence, never the first cause.
_CONSEQUENCES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket Timeout",
    "NCCL communicator was aborted",
    "remote process exited",
)


class RankError(RuntimeError):
    """A run failed. `rank` is the rank that failed first, `kind` is how.

    Attributes:
        rank: the rank at fault; None where the ranks failed only together.
        world_size: how many ranks the run had.
        kind: "raised", "exited", "died" (by a signal), "hang", "mismatch" or "deadline".
        exception_name: the type of what was raised, for "raised".
        summary: one line.
        traceback_text: the whole traceback of the rank, lines of cells included.
    """

    def __init__(
        self,
        summary: str,
        *,
        kind: str,
        world_size: int,
        rank: int | None = None,
        exception_name: str = "",
        traceback_text: str = "",
        detail: str = "",
    ) -> None:
        super().__init__(summary)
        self.summary, self.kind, self.detail = summary, kind, detail
        self.rank, self.world_size = rank, world_size
        self.exception_name, self.traceback_text = exception_name, traceback_text

    def __str__(self) -> str:
        return "\n".join(part for part in (self.summary, self.detail) if part)

    def _render_traceback_(self) -> list[str]:
        # IPython shows this in place of the launcher's own frames, which say nothing of the cause.
        return [f"{type(self).__name__}: {self}"]

    def __reduce__(self):
        return _rebuild, (self.summary, {key: value for key, value in vars(self).items() if key != "summary"})


def _rebuild(summary: str, fields: dict[str, Any]) -> RankError:
    return RankError(summary, **fields)


class Interrupted(KeyboardInterrupt):
    """A run was interrupted by hand; its ranks have been ended, and nothing of it is left."""

    def __init__(self, num_ranks: int) -> None:
        ranks = "its rank was" if num_ranks == 1 else f"its {num_ranks} ranks were"
        super().__init__(f"interrupted: {ranks} ended; run the cell again when you like")

    def _render_traceback_(self) -> list[str]:
        # IPython shows this in place of a traceback: nothing has gone wrong.
        return [str(self)]


class LeftQueue(Interrupted):
    """A run was interrupted while it waited for its GPUs; it has left the queue."""

    def __init__(self) -> None:
        KeyboardInterrupt.__init__(
            self, "interrupted: the run has left the queue for GPUs; run the cell again when you like"
        )


@dataclass(frozen=True)
class Failure:
    """How one rank failed, and when; failures compare by how likely they are the first cause."""

    rank: int
    kind: str
    when: float
    text: str
    exception_name: str = ""
    chain: tuple[tuple[str, tuple[Place, ...]], ...] = ()
    last_words: str = ""

    @property
    def is_consequence(self) -> bool:
        """Whether it only tells of a peer that has gone."""
        return self.kind == "raised" and any(words in self.text for words in _CONSEQUENCES)

    @classmethod
    def from_raised(cls, rank: int, when: float, error: list[dict[str, Any]]) -> "Failure":
        chain = tuple((one["text"], tuple(Place(*frame) for frame in one["frames"])) for one in error)
        name, text = error[-1]["type"], error[-1]["text"]
        if name == "SystemExit":
            return cls(rank, "exited", when, f"called sys.exit({text.partition(': ')[2]})", name, chain)
        return cls(rank, "raised", when, f"raised {text}", name, chain)

    @classmethod
    def from_ended(cls, rank: int, when: float, exit_code: int, last_words: str) -> "Failure":
        if exit_code >= 0:
            text = f"ended by itself with exit code {exit_code} before its function returned"
            return cls(rank, "exited", when, text, last_words=last_words)
        return cls(rank, "died", when, _signal_text(-exit_code), last_words=last_words)

    def error(self, world_size: int, num_alike: int = 0) -> RankError:
        """The exception to raise for it."""
        others = f" ({num_alike} other ranks raised the same)" if num_alike > 1 else ""
        others = " (another rank raised the same)" if num_alike == 1 else others
        return RankError(
            f"rank {self.rank} of {world_size} {self.text}{others}",
            kind=self.kind,
            world_size=world_size,
            rank=self.rank,
            exception_name=self.exception_name,
            traceback_text=self._chain_text(only_learners=False) or self.last_words,
            detail=self._chain_text(only_learners=True) or self.last_words,
        )

    def _chain_text(self, only_learners: bool) -> str:
        parts = []
        for text, places in self.chain:
            shown = [place for place in places if place.is_learners] or list(places)
            parts.append(text_of(shown if only_learners else places))
            if len(self.chain) > 1:
                parts.append(text)
        return "\n".join(part for part in parts if part)


def _signal_text(number: int) -> str:
    import signal

    name = signal.Signals(number).name if number in {s.value for s in signal.Signals} else f"signal {number}"
    hint = "; the machine may have run out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def first_cause(failures: list[Failure]) -> tuple[Failure, int]:
    """The failure that came first and is no consequence of another, and how many others failed alike."""
    own = [failure for failure in failures if not failure.is_consequence] or failures
    first = min(own, key=lambda failure: failure.when)
    alike = [failure for failure in own if (failure.kind, failure.text) == (first.kind, first.text)]
    return min(alike, key=lambda failure: failure.rank), len(alike) - 1
