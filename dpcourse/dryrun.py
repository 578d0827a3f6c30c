"""`dc.dry_run`: one rank of up to thousands, by the real code on tensors without contents. No torch here."""

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from dpcourse.ranks import backends
from dpcourse.request import Request, make_request
from dpcourse.run import DRY_RUN, EXPECTED_LIST, RankRecord, Run
from dpcourse.strategies import STEADY_STEP, STRATEGIES, check_name, find
from dpcourse.training import run_of

MOST_RANKS = 4096  # what was tried; each rank more makes the lists of a group's ranks longer
RUN_DRY = ("fsdp1", "fsdp2")
LISTED = ("single", "ddp")  # DDP's reducer asserts on the fake group


def dry_run(
    strategy: str,
    model: Any = "mlp",
    ranks: int | None = None,
    rank: int = 0,
    batch_size: int | None = None,
    recipe: str = "fp32",
    optimizer: str = "adamw",
    checkpointing: bool = False,
    backend: str = "nccl",
    deadline_seconds: float = 300.0,
    batch: Callable | None = None,
    **options: Any,
) -> Run:
    """Train as one rank of many that are not there, for a model of any size, and give the Run.

    ```
    dc.dry_run("fsdp2", model="gpt-70b", ranks=1024, checkpointing=True)
    ```

    FSDP1 and FSDP2 run their real code on tensors that have sizes and no contents, in a process group whose
    other ranks are not there: what is held and called is measured, nothing is computed, and there are no
    times and no losses. Single and DDP (which refuses such a group) are answered from their expected list.

    Args:
        strategy: "fsdp1", "fsdp2", "ddp" or "single", with its options as for `dc.train`.
        model: as for `dc.train`, or one that no laptop holds: "gpt-7b", "gpt-70b", or your own sizes, such
            as `GptSmall(width=5120, heads=40, depth=40, vocabulary=32000)` from dpcourse.models.
        ranks: how many there would be, up to 4096; None takes one for "single" and two for the others.
        rank: which of them is looked at.
        batch_size: samples of the global batch; None for 16, or the next number that divides over the ranks.
        recipe, optimizer, checkpointing, batch: as for `dc.train`.
        backend: whose way of carrying out a collective says what is sent: "nccl", "gloo" or "ring".
        deadline_seconds: when it is ended.

    Raises:
        ValueError, TypeError: what was asked cannot be dry-run; no process was started.
        RankError: the code of the strategy failed; it says where.
    """
    _check_strategy(strategy)
    asked = make_request(
        strategy,
        options,
        model,
        batch,
        ranks,
        batch_size,
        recipe=recipe,
        optimizer=optimizer,
        checkpointing=checkpointing,
    )
    _check_ranks(asked, rank)
    check_name("backend", backend, backends.BACKENDS)
    request = asked.placed_on("cpu", backend)
    if strategy not in RUN_DRY:
        return expected_run(request, rank)
    return _run(request, _launch(request, rank, deadline_seconds), DRY_RUN)


def expected_run(request: Request, rank: int = 0) -> Run:
    """Give one rank's expected lists as a Run of which nothing was measured."""
    return _run(request, _nothing_measured(rank), EXPECTED_LIST)


def _check_strategy(strategy: Any) -> None:
    check_name("strategy", strategy, STRATEGIES)
    if strategy not in RUN_DRY + LISTED:
        raise ValueError(
            f"{strategy} cannot be dry-run: its messages need ranks that are there; "
            f"{' and '.join(RUN_DRY)} run on fake tensors, {' and '.join(LISTED)} are answered from their "
            "expected list, and dc.expect says what any strategy should hold and move"
        )


def _check_ranks(request: Request, rank: Any) -> None:
    if request.world_size > MOST_RANKS:
        raise ValueError(
            f"a dry run of {request.world_size:,} ranks was asked for, and {MOST_RANKS} is the most that was "
            "tried; ask for fewer, or for dc.expect"
        )
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < request.world_size:
        raise ValueError(
            f"rank={rank!r}: give a whole number from 0 to {request.world_size - 1}, one of the "
            f"{request.world_size} ranks"
        )


def _launch(request: Request, rank: int, deadline_seconds: float) -> RankRecord:
    from dpcourse.ranks.launch import launch

    (record,) = launch(
        _dry_rank,
        request,
        rank,
        ranks=1,
        device="cpu",
        deadline_seconds=deadline_seconds,
        everything=True,
    )
    return record


def _dry_rank(request: Request, rank: int) -> RankRecord:
    from dpcourse.dry_trainer import dry_rank  # imports torch: there, not here

    return dry_rank(request, rank)


def _nothing_measured(rank: int) -> RankRecord:
    environment = {"torch": version("torch"), "backend": "none", "device": "none"}
    return RankRecord(rank, (), (), {}, (), (), (), environment, (), {})


def _run(request: Request, record: RankRecord, source: str) -> Run:
    strategy, setting = find(request.strategy), request.setting
    alone = request.world_size == 1
    transfers = () if alone else strategy.rank_traffic(setting, record.rank, STEADY_STEP)
    return run_of(
        request, [record], list(strategy.rank_memory(setting, record.rank)), list(transfers), source
    )
