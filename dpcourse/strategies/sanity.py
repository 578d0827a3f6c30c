"""Checks for mistakes that torch lets pass, or refuses without the way out: call them where a model is made.

Each returns nothing where all is well, and raises with what was asked, what was found and what to do.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dpcourse.checks import check_choice
from dpcourse.tables import bytes_text

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    Unit = nn.Module | Sequence[nn.Module]

_SAME = 1e-5  # of the larger: ranks that add in different orders differ in the last bits of fp32


def check_gradients_equal(module: "nn.Module") -> None:
    """Refuse gradients that differ between ranks. Every rank calls it, after backward, before the step.

    Costs two all-reduces of the gradients' size. Found on every rank alike, so that all raise.
    Raises RuntimeError with the parameter that differs most, and its values; ValueError for shards of
    gradients, which differ by right.
    """
    worst, where = 0.0, None
    for name, gradient in _gradients(module):
        apart = _relative_difference(gradient)
        if float(apart.max()) > worst:
            worst, where = float(apart.max()), (name, gradient, int(apart.argmax()))
    if where is not None and worst > _SAME:
        raise RuntimeError(_unequal(*where))


def _gradients(module: "nn.Module") -> Iterator[tuple[str, "Tensor"]]:
    """Every trained parameter's gradient; zeros where a rank has none, so that collectives stay in step."""
    import torch

    for name, parameter in module.named_parameters():
        if not parameter.requires_grad or parameter.numel() == 0:
            continue
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        if hasattr(gradient, "to_local"):
            raise ValueError(
                f"{name} has a shard of a gradient on each rank, and shards differ by right; compare "
                "losses or full parameters (full_tensor()) with those of one rank instead"
            )
        yield name, gradient.detach()


def _relative_difference(gradient: "Tensor") -> "Tensor":
    """How far apart the ranks' values are, element by element; what is not finite on one rank counts as 2."""
    import torch
    import torch.distributed as dist

    high, low = gradient.flatten().double(), gradient.flatten().double()
    high, low = high.nan_to_num(float("inf")), low.nan_to_num(float("inf"))
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    larger = torch.maximum(high.abs(), low.abs())
    apart = ((high - low) / larger).nan_to_num(2.0)
    return torch.where(high == low, torch.zeros_like(apart), apart)


def _unequal(name: str, gradient: "Tensor", place: int) -> str:
    import torch
    import torch.distributed as dist

    mine = gradient.flatten()[place].clone()
    values = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(values, mine)
    index = [int(axis) for axis in torch.unravel_index(torch.tensor(place), gradient.shape)]
    found = ", ".join(f"{float(value):.6g} on rank {rank}" for rank, value in enumerate(values))
    return (
        f"gradients are not equal on all ranks after backward: {name}{index if index else ''} is {found}; "
        "synchronise on the last micro-batch of a step, with forward and backward of the others alone inside "
        "no_sync(), or average the gradients before the optimizer's step"
    )


def check_optimizer(optimizer: "Optimizer", module: "nn.Module") -> None:
    """Refuse an optimizer that was built before the module was sharded: it would train nothing.

    It holds the parameters that sharding has replaced: they stay in memory, and never get a gradient. FSDP1
    with use_orig_params=True keeps the parameters themselves, and passes.
    Raises ValueError with how many of the module's parameters it trains, and the bytes it keeps alive.
    """
    names = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    held = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    strangers = [parameter for key, parameter in held.items() if key not in names]
    missed = [name for key, name in names.items() if key not in held]
    num_trained, kind = len(names) - len(missed), type(optimizer).__name__
    begin = f"{kind} trains {num_trained} of the module's {len(names)} parameters"
    if strangers:
        num_bytes = sum(parameter.untyped_storage().nbytes() for parameter in strangers)
        raise ValueError(
            f"{begin} and keeps {len(strangers)} others alive ({bytes_text(num_bytes)}): sharding puts new "
            "parameters in the place of those that it was built with; build the optimizer after "
            "fully_shard(...) or FSDP(...)"
        )
    if missed:
        raise ValueError(
            f"{begin} and was not given {', '.join(missed[:3])}; give it all parameters, or freeze "
            "the others with requires_grad_(False)"
        )


def check_hybrid_mesh(shape: Sequence[int], system: str = "fsdp2") -> None:
    """Refuse a mesh on which hybrid sharding would not be what was asked for: (replicas, ranks of a shard).

    system: "fsdp1" or "fsdp2". Shards over one rank are no shards: FSDP2 then averages gradients like DDP,
    and FSDP1 (of torch 2.13) sends nothing at all, so that the replicas drift apart: only there is it
    refused.
    Raises ValueError for such a mesh, and for one without two axes.
    """
    check_choice("system", system, ("fsdp1", "fsdp2"))
    if len(shape) != 2:
        raise ValueError(
            f"hybrid sharding was asked for on a mesh of {tuple(shape)}, which has {len(shape)} "
            f"{'axis' if len(shape) == 1 else 'axes'} and needs two: replicas, and the ranks that share one; "
            f"for 4 ranks, take mesh=(2, 2), or shard fully on a mesh of one axis"
        )
    if system == "fsdp1" and shape[1] == 1 and shape[0] > 1:
        raise ValueError(
            f"fsdp1 on a mesh of {tuple(shape)} has shard groups of one rank, where it averages no gradients "
            f'and the {shape[0]} replicas drift apart; take "ddp", or "fsdp2" with the same mesh'
        )


def check_tied(module: "nn.Module", units: "Iterable[Unit]") -> None:
    """Refuse a parameter that two units would shard: FSDP2 refuses it later (torch 2.13)
    or silently unties it (2.11), as FSDP1 does.

    units: the modules that become units of their own, each a module or a list that makes one unit; what
    they leave is a unit too. Call it before sharding.
    """
    owners: dict[int, list[tuple[str, int]]] = {}
    for name, parameter, unit in _units_of_parameters(module, units):
        owners.setdefault(id(parameter), []).append((name, unit))
    for names in owners.values():
        if len({unit for _, unit in names}) > 1:
            (first, _), (second, _) = names[:2]
            raise ValueError(
                f"{first} and {second} are one table in two units, and each unit would get a table of its "
                f"own; put both in one unit: fully_shard([module.{_parent(first)}, module.{_parent(second)}])"
            )


def _units_of_parameters(
    module: "nn.Module", units: "Iterable[Unit]"
) -> Iterator[tuple[str, "nn.Parameter", int]]:
    """Each name of each parameter with the number of the innermost unit around it; 0 is what is left."""
    numbers: dict[Any, int] = {}
    for number, unit in enumerate(units, start=1):
        for part in unit if isinstance(unit, list | tuple) else [unit]:
            numbers[part] = number
    modules = dict(module.named_modules(remove_duplicate=False))
    for name, parameter in module.named_parameters(remove_duplicate=False):
        path = _parent(name)
        while path and modules[path] not in numbers:
            path = _parent(path)
        yield name, parameter, numbers.get(modules[path], 0)


def _parent(name: str) -> str:
    return name.rpartition(".")[0]
