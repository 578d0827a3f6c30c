"""`dc.train`: where a strategy, a model, ranks and meters meet. Torch is needed in the ranks alone."""

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from dpcourse import strategies
from dpcourse.ledger import Holding, Transfer, sums_by
from dpcourse.ranks import backends, torchrun
from dpcourse.ranks.cluster import Cluster, attached
from dpcourse.request import Request, make_request
from dpcourse.run import TRAINED, RankRecord, Run
from dpcourse.tables import bytes_text

# Room for every collective of a phase, even with a bucket for each parameter.
_RECORDED_CALLS = "2000"


def train(
    strategy: str,
    model: Any = "mlp",
    ranks: int | None = None,
    cluster: Cluster | None = None,
    steps: int = 3,
    batch_size: int | None = None,
    recipe: str = "fp32",
    optimizer: str = "adamw",
    seed: int = 0,
    checkpointing: bool = False,
    device: str | None = None,
    backend: str | None = None,
    deadline_seconds: float = 120.0,
    batch: Callable | None = None,
    pace_compute: float | str | None = None,
    **options: Any,
) -> Run:
    """Train a model with a strategy on fresh ranks, measure what it holds and moves, and give the Run.

    Args:
        strategy: its name, such as "ddp" or "fsdp2"; a wrong name is answered with all there are.
        model: its name ("mlp", "convnet", "gpt-small"), a configuration (`Mlp(width=1024)` from
            dpcourse.models), or a function that returns an nn.Module, which goes with `batch`.
        ranks: how many processes; None takes one for "single" and two for the others. In a process that
            torchrun has started the ranks are there: None takes them, and each of them gets the Run.
        cluster: emulated hosts, such as dc.Cluster(hosts=2, ranks_per_host=2, inter="500mbit"), in place of
            this machine as it is.
        steps: bare steps, for losses and time. Each meter watches a step of its own after them.
        batch_size: samples of the global batch, of which each rank takes an equal share; None for 16, or the
            next number that divides over the ranks.
        recipe: the number formats: "fp32", "autocast", "mixed-adam", "bf16" or "fsdp-mixed".
        optimizer: "adamw", "adam", "sgd" or "momentum".
        seed: decides the initial weights and the batches.
        checkpointing: keep each repeated block's input alone, and compute the block again in backward.
        device: "cpu", "cuda", or None: GPUs where there are at least as many as ranks.
        backend: what carries collectives: "ring" for the course's own, "staged" for ranks that share GPUs
            (through host memory), None for gloo (CPU), NCCL (GPUs) or the ring (paced links).
        deadline_seconds: when a run that hangs is ended.
        batch: for a model of your own: batch(batch_size, seed) gives inputs and targets.
        pace_compute: a time such as "5ms" that each layer takes in forward, and twice in backward, so that
            order and overlap can be seen; None for the time that it needs. See dpcourse/pacing.py.
        options: the strategy's own, such as bucket_cap_mb=1 for "ddp", or comms="ring" for "fsdp2", which
            plugs the course's ring into it. What each does: `from dpcourse import strategies`, then
            `help(strategies.find("fsdp2").Options)`.

    Raises:
        ValueError, TypeError: the request cannot be carried out; no process was started.
        RankError: a rank failed; it says which and where.
    """
    _check_is_no_cluster(options)
    backends.check_cluster(cluster)
    if ranks is None:
        ranks = cluster.num_ranks if cluster else torchrun.num_ranks()
    asked = make_request(
        strategy,
        options,
        model,
        batch,
        ranks,
        batch_size,
        steps,
        recipe,
        optimizer,
        seed,
        checkpointing,
        pace_compute,
    )
    cluster, carrier = backends.place(cluster, asked.world_size, device, backend)
    request = asked.placed_on(cluster.chosen_device, carrier.name, cluster.network)
    holdings, transfers = request.expected_memory(), request.expected_traffic()
    if request.device == "cpu":
        _check_memory(request, cluster, holdings)
    rank_bytes = max(sums_by(holdings, "rank", "phase").values(), default=0)
    records = _launch(request, cluster, bool(transfers), rank_bytes, deadline_seconds)
    return run_of(request, records, holdings, transfers)


def run_of(
    request: Request,
    records: list[RankRecord],
    holdings: list[Holding],
    transfers: list[Transfer],
    source: str = TRAINED,
) -> Run:
    """Join what was asked, what was measured and what was expected."""
    layout = request.setting.layout
    return Run(
        strategy=request.strategy,
        options=json.loads(json.dumps(asdict(request.options))),  # as a saved run has them
        model=request.model.name,
        world_size=request.world_size,
        batch_size=request.batch_size,
        recipe=request.recipe,
        optimizer=request.optimizer,
        seed=request.seed,
        is_checkpointed=request.is_checkpointed,
        device=request.device,
        backend=request.backend,
        links=request.links,
        pace_compute=request.pace_compute,
        num_params=layout.num_params,
        parameter_bytes=layout.parameter_bytes,
        records=tuple(records),
        expected_holdings=tuple(holdings),
        expected_transfers=tuple(transfers),
        source=source,
    )


def _launch(
    request: Request, cluster: Cluster, has_traffic: bool, rank_bytes: int, deadline_seconds: float
) -> list[RankRecord]:
    from dpcourse.ranks.launch import launch

    takes_all = strategies.find(request.strategy).takes_all_gpus(request.options)
    results = launch(
        _train_rank,
        request,
        has_traffic,
        cluster=cluster,
        gpus=len(attached().gpus) if takes_all else None,
        rank_bytes=rank_bytes,
        deadline_seconds=deadline_seconds,
        backend=request.backend,
        plain=True,
        everything=True,
        env={"TORCH_FR_BUFFER_SIZE": _RECORDED_CALLS},
    )
    return [RankRecord.from_plain(result) for result in results]


def _train_rank(request: Request, has_traffic: bool) -> dict[str, Any]:
    from dpcourse.trainer import train_rank  # imports torch: in the rank, not here

    return train_rank(request, has_traffic)


def _check_is_no_cluster(options: dict[str, Any]) -> None:
    """Refuse what describes a cluster, which is made before a strategy is chosen."""
    for name in options.keys() & {field.name for field in fields(Cluster) if field.init}:
        asked = f"{name}={options[name]!r}"
        raise ValueError(f"{asked} belongs to a cluster; give cluster=dc.Cluster({asked}, ...)")


def _check_memory(request: Request, cluster: Cluster, holdings: list[Holding]) -> None:
    """Refuse a model whose states do not fit this machine's memory, all its ranks together."""
    here = [holding for holding in holdings if holding.rank in cluster.ranks_here]
    needed = max(sums_by(here, "phase").values(), default=0)
    num_here, there = len(cluster.ranks_here), attached().memory_bytes
    if needed > there:
        raise ValueError(
            f"{request.strategy} on {num_here} ranks with {request.setting.layout.num_params:,} "
            f"parameters holds at least {bytes_text(needed)}, and this machine has {bytes_text(there)}; "
            "ask for fewer ranks, or for a smaller model"
        )
