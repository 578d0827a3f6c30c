"""`dc.plan`: the selection guide. Every strategy of the course for a model on some cards, ranked."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from dpcourse.checks import check_choice, check_count
from dpcourse.planning.activations import ATTENTIONS, CHECKPOINTINGS
from dpcourse.planning.candidates import missing
from dpcourse.planning.clock import UTILISATION
from dpcourse.planning.decision import TREE, Facts, Path, walk
from dpcourse.planning.hardware import read_hardware
from dpcourse.planning.judging import Asked, largest_layer_bytes, rows_of
from dpcourse.planning.notes import notes_of
from dpcourse.planning.peak import PARTS
from dpcourse.planning.ranking import Row, facts_of, number_and_reason, ranked
from dpcourse.planning.recipes import read_choice
from dpcourse.planning.subject import read_sequence, read_subject
from dpcourse.show import Shown
from dpcourse.strategies import check_name
from dpcourse.tables import Table, bytes_text, seconds_text
from dpcourse.theory.states import OPTIMIZER_STATES


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """A ranking: `.best`, `.rows`, `.table()`, `.moments()`, `.memory()`, `.plot()`, `.words()`, `confirm()`.

    rows: all candidates, the best first. path: the way through the table of decisions (planning/decision.py).
    notes: what was assumed, and what is worth knowing. What is planned is allocated memory, not what PyTorch
    reserves, nor what nvidia-smi shows.
    """

    asked: Asked
    rows: tuple[Row, ...]
    path: Path
    notes: tuple[str, ...]

    @property
    def best(self) -> Row | None:
        """The row to take; None where nothing fits."""
        return self.rows[0] if self.rows[0].fits and not self.rows[0].is_alone else None

    @property
    def facts(self) -> Facts:
        """The numbers that the table of decisions was settled by."""
        return _facts(self.asked, self.rows)

    @property
    def title(self) -> str:
        subject, asked = self.asked.subject, self.asked
        length = "" if subject.own else f" x {asked.sequence_length:,} tokens"
        return (
            f"plan for {subject.name}: {subject.layout.num_params:,} parameters on {asked.hardware}, "
            f"recipe {asked.choice.name} ({asked.choice.says}), micro-batch {asked.micro_batch}{length}"
        )

    def table(self, everything: bool = False, with_reasons: bool = True) -> Table:
        """Lay out the ranking; of each strategy the better kind of checkpointing, or everything.

        with_reasons: also what there is to set up, and the number that decides.
        """
        across = self.asked.hardware.num_hosts > 1
        columns = ["strategy", "peak", "fits", "sends", *(["host sends"] if across else []), "step"]
        cells = []
        for row in self.rows if everything else self.shown:
            moved = [row.time.sent_bytes, *([row.time.card_bytes] if across else [])]
            texts = [bytes_text(row.peak_bytes), row.fits, *map(bytes_text, moved)]
            reasons = [row.effort, row.reason] if with_reasons else []
            cells.append([row.label, *texts, seconds_text(row.time.seconds), *reasons])
        return Table([*columns, *(["to set up", "why"] if with_reasons else [])], cells, self.title)

    @property
    def shown(self) -> list[Row]:
        """Of each strategy with its options the row that ranks first."""
        first: dict[Any, Row] = {}
        for row in self.rows:
            options = tuple(row.candidate.options.items())
            first.setdefault((row.candidate.strategy, options), row)
        return list(first.values())

    def memory(self, row: Row | None = None) -> Table:
        """Lay out a row's moments (the best's, unless told), part by part, the margin as its own."""
        row = row or self.rows[0]
        moments = row.memory.moments
        parts = [part for part in PARTS if any(part in held.num_bytes for held in moments)]
        cells: list[list[Any]] = [
            [part, *(bytes_text(held.num_bytes.get(part, 0)) for held in moments)] for part in parts
        ]
        cells.append(["in all", *(bytes_text(held.total_bytes) for held in moments)])
        return Table(["one rank", *(held.moment for held in moments)], cells, row.label)

    def moments(self) -> Table:
        """Lay out what each strategy takes at its start, in a step, and for a checkpoint.

        At the start a rank builds the whole model on its card, or on the meta device. A full state dict is
        gathered on rank 0's card; else each rank writes its own shards.
        """
        columns = ["strategy", "start", "on meta", "step", "full state dict", "sharded", "host memory"]
        cells = []
        for row in self.shown:
            memory = row.memory
            sizes = [memory.start_bytes, memory.start_on_meta_bytes, row.peak_bytes]
            sizes += [memory.saving_bytes, memory.sharded_saving_bytes, memory.host_bytes]
            cells.append([row.label, *(bytes_text(size) if size else None for size in sizes)])
        return Table(columns, cells, self.title)

    def words(self) -> str:
        """Say what to take, how the table of decisions leads there, and what was assumed."""
        lines = [_headline(self), ""]
        for step in self.path.steps:
            lines.append(f"- {step.question.text} {'Yes' if step.is_yes else 'No'}: {step.because}.")
        lines += [f"- {self.path.answer.text}.", "", *(f"* {note}" for note in self.notes)]
        return "\n".join(lines)

    def plot(self) -> Any:
        """Draw each strategy's peak against the card, and bytes held against bytes moved."""
        from dpcourse.figures.tradeoff import plan_figure

        return plan_figure(self)

    def confirm(self, num_strategies: int = 3, ranks: int = 2) -> Any:
        """Run the best few on small models, really, and set what was predicted beside what was measured."""
        from dpcourse.planning.confirmation import confirm

        return confirm(self, num_strategies, ranks)

    def to_dict(self) -> dict[str, Any]:
        """Give plain data: what was asked, the ranking, the path, the notes."""
        asked = self.asked
        return {
            "model": asked.subject.name,
            "num_params": asked.subject.layout.num_params,
            "gpus": asked.hardware.num_gpus,
            "hosts": asked.hardware.num_hosts,
            "gpu": asked.hardware.card.name,
            "gpu_memory_bytes": asked.hardware.capacity_bytes,
            "recipe": asked.choice.name,
            "optimizer": asked.optimizer,
            "sequence_length": asked.sequence_length,
            "micro_batch": asked.micro_batch,
            "attention": asked.attention,
            "answer": {"key": self.path.answer.key, "text": self.path.answer.text},
            "path": [
                {"question": step.question.text, "is_yes": step.is_yes, "because": step.because}
                for step in self.path.steps
            ],
            "best": self.best.to_dict() if self.best else None,
            "rows": [row.to_dict() for row in self.rows],
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """Give `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        """The reasons stand below the table, which a terminal of 100 columns has room for."""
        reasons = "\n".join(f"{row.label}: {row.reason}. To set up: {row.effort}." for row in self.shown)
        return f"{self.table(with_reasons=False)}\n\n{reasons}\n\n{self.words()}"

    def to_html(self) -> str:
        words = escape(self.words()).replace("\n", "<br>")
        return f"{self.table().to_html()}<p>{words}</p>{self.plot().to_html()}"


def _headline(plan: Plan) -> str:
    if plan.best is None:
        return f"{plan.path.answer.text}."
    best = plan.best
    return f"Take {best.label}: {best.number}, {best.reason}."


def plan(
    model: Any,
    gpus: int = 8,
    gpu_memory: str | None = None,
    gpu: str | None = None,
    hosts: int | None = None,
    ranks_per_host: int | None = None,
    intra: str | None = None,
    inter: str | None = None,
    recipe: str | None = None,
    optimizer: str = "adamw",
    sequence_length: int | None = None,
    micro_batch: int = 1,
    checkpointing: str | None = None,
    attention: str = "fused",
    trainable: Any = None,
    utilisation: float = UTILISATION,
) -> Plan:
    """Choose a strategy: rank all of the course for a model on some cards, each with the number that decides.

    ```
    dc.plan("llama-2-7b", gpus=8, gpu_memory="80GB")
    ```

    What comes back shows the ranking; `.moments()`, `.memory()` and `.plot()` show why, `.words()` says it,
    and `.confirm()` holds it against a real run of a small model.

    Args:
        model: a name ("gpt2", "llama-3-8b", "gpt-small", ...), a configuration as a dict (Hugging Face's
            keys), a module, one of the course's models, or a parameter count (7e9, "7B"): then states alone.
        gpus: how many cards; gpu_memory: of each, with its unit ("80GB", "80GiB"); gpu: a card by name, with
            its memory and speeds ("a100-80gb", "h100-80gb", ...).
        hosts, ranks_per_host: how the cards lie; None takes hosts of eight.
        intra, inter: rates from card to card inside a host, and out of a host, such as "200 Gbit/s"; None
            takes the card's usual ones, and says so.
        recipe: number formats: "pure-bf16", "mixed-adam", "fsdp-mixed", "deepspeed-fp32-gradients",
            "autocast", "fp32"; None takes "mixed-adam", and says so. A word that means several ("bf16") gets
            the question back.
        sequence_length, micro_batch: of one rank. checkpointing: "none", "selective" or "full"; None tries
            none and full. attention: "fused" or "plain".
        trainable: how many of a parameter count are trained; the rest is frozen.
        utilisation: the share of its operations that a card reaches.

    Raises ValueError or TypeError for what cannot be planned, with what was asked and what to do.
    """
    subject = read_subject(model, trainable)
    hardware = read_hardware(gpus, gpu_memory, gpu, hosts, ranks_per_host, intra, inter)
    check_name("optimizer", optimizer, OPTIMIZER_STATES)
    check_count("micro_batch", micro_batch)
    check_choice("checkpointing", checkpointing, (*CHECKPOINTINGS, None))
    check_choice("attention", attention, ATTENTIONS)
    _check_share(utilisation)
    sequence, is_assumed = read_sequence(subject, sequence_length)
    asked = Asked(
        subject,
        hardware,
        read_choice(recipe, subject.layout.num_params, optimizer),
        recipe is None,
        optimizer,
        sequence,
        is_assumed,
        micro_batch,
        checkpointing,
        attention,
        float(utilisation),
    )
    return _plan(asked)


def _check_share(utilisation: Any) -> None:
    is_number = isinstance(utilisation, int | float) and not isinstance(utilisation, bool)
    if not is_number or not 0 < utilisation <= 1:
        raise ValueError(f"utilisation={utilisation!r}: give a share above 0 and up to 1, such as 0.4")


def _plan(asked: Asked) -> Plan:
    rows = rows_of(asked)
    facts = _facts(asked, rows)
    order = ranked(rows, facts)
    best = order[0] if order[0].fits else None
    judged = []
    for row in order:
        number, reason = number_and_reason(row, best, facts)
        judged.append(replace(row, number=number, reason=reason))
    path = walk(TREE, facts)
    notes = notes_of(asked, judged, missing(asked.hardware, asked.choice))
    return Plan(asked, tuple(judged), path, tuple(notes))


def _facts(asked: Asked, rows: Sequence[Row]) -> Facts:
    hardware, layer = asked.hardware, largest_layer_bytes(asked)
    return facts_of(rows, hardware.num_gpus, hardware.num_hosts, hardware.capacity_bytes, layer)
