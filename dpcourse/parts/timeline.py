"""When each rank of a run computed and communicated."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpcourse.ledger import COMMUNICATION, COMPUTATION, Overlap, Span, group_by, overlap, select
from dpcourse.measure.trace import chrome_trace
from dpcourse.parts.base import Part
from dpcourse.show import is_reference
from dpcourse.tables import Table, seconds_text
from dpcourse.theory.hierarchy import Machine
from dpcourse.theory.links import Link
from dpcourse.theory.schedule import schedule


class TimelinePart(Part):
    """When each rank computed and when its collectives were under way, in one step of their own.

    Printed, it is a table of all ranks. `save_trace(path)` writes a chrome trace, `predicted()` says
    when all should happen on the emulated hosts of the run, `predicted(link)` on a link that you name.
    """

    @property
    def measured(self) -> list[Span]:
        """All ranks' spans; zero is where the first rank began."""
        spans = [span for record in self.run.records for span in record.spans]
        start = min((span.start_seconds for span in spans), default=0.0)
        return [
            Span(span.lane, span.name, span.start_seconds - start, span.end_seconds - start, span.rank)
            for span in spans
        ]

    @property
    def expected(self) -> list[Span]:
        """No time is expected of a machine that nobody knows: see `predicted`."""
        return []

    def predicted(self, link: Link | Machine | None = None, rank: int | None = None) -> list[Span]:
        """Predict a rank's step on a link: its expected list as a schedule, its computation as measured here.

        Without a link, on the emulated hosts that the run was on.

        ```
        from dpcourse.theory.links import Link
        from dpcourse.theory.schedule import step_seconds

        slow = Link(latency_seconds=1e-3, bytes_per_second=12.5e6)  # 100 Mbit/s
        step_seconds(run.timeline.predicted(slow))
        ```

        link: what every rank has to itself, or hosts whose ranks share a card (theory/hierarchy.py).
        Raises ValueError where there is neither a link nor an emulated host.
        """
        rank = self.chosen(rank)
        link = self._own_machine() if link is None else link
        transfers = [item for item in select(self.run.expected_transfers, rank=rank) if item.phase != "init"]
        computed = [
            replace(span, name=span.name.partition(":")[0])  # of a paced layer's span its phase
            for span in select(self.measured, rank=rank, lane=COMPUTATION)
        ]
        seconds = {
            phase: overlap(spans).computation_seconds for phase, spans in group_by(computed, "name").items()
        }
        return schedule(transfers, seconds, link, self.run.is_blocking, self.run.backend)

    def _own_machine(self) -> Machine:
        links = self.run.links
        if links is None:
            raise ValueError(
                "this run was on no emulated hosts, and nobody knows the speed of what joined its ranks; "
                "name a link: predicted(Link(latency_seconds=1e-3, bytes_per_second=12.5e6))"
            )
        return Machine(links.inter, links.intra, links.ranks_per_host, shares_intra=True)

    def overlap(self, rank: int | None = None) -> Overlap:
        """Tell how a rank's computation and communication share its step, and how much is hidden."""
        rank = self.chosen(rank)
        return overlap(select(self.measured, rank=rank))

    def table(self) -> Table:
        """Lay out how each rank's step divides; the reference configuration shows counts and no times."""
        rows = [self._row(record.rank) for record in self.run.records if record.spans]
        columns = ["rank", "collectives", "computing", "communicating", "at once", "hidden"]
        is_short = is_reference()
        return Table(
            columns[:2] if is_short else columns,
            [row[:2] if is_short else row for row in rows],
            f"one step: {self.run.title}",
        )

    def _row(self, rank: int) -> list[Any]:
        found = self.overlap(rank)
        seconds = (found.computation_seconds, found.communication_seconds, found.overlap_seconds)
        hidden = f"{100 * found.hidden_share:.0f} %" if found.communication_seconds else None
        num_collectives = len(select(self.measured, rank=rank, lane=COMMUNICATION))
        return [rank, num_collectives, *map(seconds_text, seconds), hidden]

    def plot(self) -> Any:
        """Draw lanes of computation and communication for each rank, and the share that is hidden."""
        from dpcourse.figures import timeline_lanes

        return timeline_lanes(self)

    def save_trace(self, path: str | Path) -> None:
        """Write the spans to a JSON file that https://ui.perfetto.dev and chrome://tracing open."""
        Path(path).write_text(json.dumps(chrome_trace(self.measured)) + "\n")
