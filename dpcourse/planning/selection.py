"""`dc.plan`: the selection guide. Every strategy of the course for a model on some cards, ranked."""

import json
from dataclasses import dataclass, replace
from typing import Any

from dpcourse.checks import check_choice, check_count
from dpcourse.planning.activations import ATTENTIONS, CHECKPOINTINGS
from dpcourse.planning.candidates import Candidate, candidates, missing
from dpcourse.planning.clock import UTILISATION, StepTime, time_of, transfers_of
from dpcourse.planning.decision import TREE, Path, walk
from dpcourse.planning.hardware import Hardware, read_hardware
from dpcourse.planning.notes import notes_of
from dpcourse.planning.peak import PARTS, Memory, holdings_of, layer_bytes, memory_of
from dpcourse.planning.ranking import Row, facts_of, number_and_reason, ranked
from dpcourse.planning.recipes import Choice, read_choice
from dpcourse.planning.subject import Subject, microbatch, read_sequence, read_subject
from dpcourse.show import Shown
from dpcourse.strategies import Setting, check_name, options_for
from dpcourse.tables import Table, bytes_text, seconds_text
from dpcourse.theory.recipes import Recipe
from dpcourse.theory.states import OPTIMIZER_STATES

_TOKEN_BYTES = 2 * 8  # a token and the one that follows it


@dataclass(frozen=True)
class Asked:
    """What a plan is for, read and checked."""

    subject: Subject
    hardware: Hardware
    choice: Choice
    is_recipe_assumed: bool
    optimizer: str
    sequence_length: int
    is_sequence_assumed: bool
    micro_batch: int
    checkpointing: str | None
    attention: str
    utilisation: float


@dataclass(frozen=True, repr=False)
class Plan(Shown):
    """A ranking: `.best`, `.rows`, `.table()`, `.memory()`, `.plot()`, `.path`, `.words()`, `.confirm()`.

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
    def title(self) -> str:
        subject, asked = self.asked.subject, self.asked
        length = "" if subject.own else f" x {asked.sequence_length:,} tokens"
        return (
            f"plan for {subject.name}: {subject.layout.num_params:,} parameters on {asked.hardware}, "
            f"recipe {asked.choice.name} ({asked.choice.says}), micro-batch {asked.micro_batch}{length}"
        )

    def table(self, everything: bool = False) -> Table:
        """Lay out the ranking; of each strategy the better kind of checkpointing, or everything."""
        across = self.asked.hardware.num_hosts > 1
        columns = ["strategy", "peak", "fits", "sends", *(["host sends"] if across else []), "step"]
        cells = []
        for row in self.rows if everything else self.shown:
            moved = [row.time.sent_bytes, *([row.time.card_bytes] if across else [])]
            texts = [bytes_text(row.peak_bytes), row.fits, *map(bytes_text, moved)]
            cells.append([row.label, *texts, seconds_text(row.time.seconds), row.effort, row.reason])
        return Table([*columns, "to set up", "why"], cells, self.title)

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
        return f"{self.table()}\n\n{self.words()}"

    def to_html(self) -> str:
        words = self.words().replace("\n", "<br>")
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
    rows = _rows(asked)
    hardware = asked.hardware
    layer = _layer_bytes(asked)
    facts = facts_of(rows, hardware.num_gpus, hardware.num_hosts, hardware.capacity_bytes, layer)
    order = ranked(rows, facts)
    best = order[0] if order[0].fits else None
    judged = []
    for row in order:
        number, reason = number_and_reason(row, best, facts)
        judged.append(replace(row, number=number, reason=reason))
    path = walk(TREE, facts)
    notes = notes_of(asked, judged, missing(hardware, asked.choice))
    return Plan(asked, tuple(judged), path, tuple(notes))


def _rows(asked: Asked) -> list[Row]:
    """Judge every candidate; the lists of a strategy serve each kind of checkpointing."""
    width = asked.subject.architecture.width if asked.subject.architecture else None
    mode = asked.checkpointing if _has_activations(asked) else "none"
    known: dict[Any, tuple[Setting, list, list]] = {}
    rows = []
    for candidate in candidates(asked.hardware, asked.choice, mode, width):
        key = (candidate.strategy, tuple(candidate.options.items()))
        if key not in known:
            setting = setting_of(asked, candidate)
            held = holdings_of(candidate.strategy, setting)
            known[key] = setting, held, transfers_of(candidate.strategy, setting)
        rows.append(_row(asked, candidate, *known[key]))
    return rows


def _has_activations(asked: Asked) -> bool:
    return asked.subject.architecture is not None or asked.subject.own is not None


def _row(asked: Asked, candidate: Candidate, setting: Setting, held: list, moved: list) -> Row:
    micro = _micro(asked, setting.recipe, candidate.checkpointing)
    memory: Memory = memory_of(candidate, setting, held, asked.subject.activations(micro, setting.recipe))
    time: StepTime = time_of(
        candidate,
        setting,
        moved,
        asked.subject,
        micro,
        asked.hardware,
        asked.utilisation,
        memory.host_bytes,
    )
    is_alone = candidate.strategy == "single" and asked.hardware.num_gpus > 1
    return Row(candidate, setting.recipe.name, memory, time, asked.hardware.capacity_bytes, is_alone)


def _micro(asked: Asked, recipe: Recipe, checkpointing: str) -> Any:
    return microbatch(
        asked.subject, recipe, asked.micro_batch, asked.sequence_length, asked.attention, checkpointing
    )


def setting_of(asked: Asked, candidate: Candidate) -> Setting:
    """Say a candidate as the strategies' lists take it: on GPUs, without the activations."""
    recipe = asked.choice.recipe_for(candidate.strategy)
    layout = asked.subject.layout.cast(recipe.parameter_dtype)
    if recipe.autocast_dtype:
        layout = layout.under_autocast()
    world_size = 1 if candidate.strategy == "single" else asked.hardware.num_gpus
    return Setting(
        layout=layout,
        world_size=world_size,
        batch_size=world_size * asked.micro_batch,
        optimizer=asked.optimizer,
        options=options_for(candidate.strategy, dict(candidate.options)),
        batch_bytes=asked.micro_batch * asked.sequence_length * _TOKEN_BYTES,
        recipe=recipe,
        backend="nccl",
        device="cuda",
    )


def _layer_bytes(asked: Asked) -> int:
    candidate = Candidate("fsdp2")
    setting = setting_of(asked, candidate)
    mode = "full" if asked.checkpointing is None else asked.checkpointing
    micro = _micro(asked, setting.recipe, mode)
    return layer_bytes(setting, asked.subject.activations(micro, setting.recipe))
