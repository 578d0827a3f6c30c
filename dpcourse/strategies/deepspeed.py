"""DeepSpeed's ZeRO, stages 0 to 3, run for real: an optional extra, `pip install ".[deepspeed]"`."""

import contextlib
import importlib.util
import io
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpcourse.checks import check_choice
from dpcourse.ledger import Holding, Transfer
from dpcourse.strategies import deepspeed_lists as lists
from dpcourse.strategies.base import Setting, Strategy
from dpcourse.strategies.deepspeed_owners import owned_by, tell_passing

if TYPE_CHECKING:
    from torch import Tensor, nn

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Options:
    """DeepSpeed's options, under its own names.

    stage: what ZeRO shares out: 0 nothing, 1 the optimizer's states, 2 gradients too, 3 parameters too.
    reduce_bucket_size: elements of the buffer that gradients are collected in. DeepSpeed makes it whole at
    once, at stage 3 for good, and its own default of 5e8 elements takes 2 GB in fp32 on each rank; the
    default here fits small models.
    grad_accum_dtype: "fp32" accumulates the gradients of bf16 parameters in fp32; None in their own format.
    """

    stage: int = 1
    reduce_bucket_size: int = 1_000_000
    grad_accum_dtype: str | None = None

    def __post_init__(self) -> None:
        check_choice("stage", self.stage, STAGES)
        if self.reduce_bucket_size < 1:
            raise ValueError(
                f"reduce_bucket_size={self.reduce_bucket_size!r}: give a number of elements from 1 on"
            )
        if self.grad_accum_dtype not in (None, "fp32"):
            raise ValueError(
                f'grad_accum_dtype={self.grad_accum_dtype!r}: give "fp32", or None for the parameters\' own'
            )


class DeepSpeed(Strategy):
    """ZeRO as DeepSpeed carries it out. The recipe mixed-adam is its bf16 mode.

    Where its own settings would change the training or hide the stage in a small model, others are taken:
    gradients are not clipped (its default clips them at a norm of 1), and stage 3 shares out every tensor
    (its default leaves those below 1e5 elements whole). Batch norms keep statistics of their own rank.
    """

    lists_each_call = False  # of buckets that fill up, the list has the sums
    Options = Options
    recipes = ("fp32", "mixed-adam")

    def check(self, setting: Setting) -> None:
        """Refuse what it has no optimizer for."""
        options = setting.options
        if options.stage == 0 and setting.recipe.has_masters and options.grad_accum_dtype:
            raise ValueError(
                "DeepSpeed accumulates in fp32 from stage 1 on; give stage=1, or leave grad_accum_dtype out"
            )

    def check_place(self, setting: Setting) -> None:
        """Refuse where DeepSpeed is not installed."""
        if importlib.util.find_spec("deepspeed") is None:
            raise ValueError(
                "the strategy deepspeed needs the package deepspeed, which is not installed; install it with "
                '`pip install ".[deepspeed]"`, or take "fsdp2" or "scratch-zero2"'
            )

    def rank_memory(self, setting: Setting, rank: int) -> Iterable[Holding]:
        """What each rank holds at the ends of phases, to the byte; buffers within backward are not listed."""
        return lists.memory(setting, rank)

    def rank_traffic(self, setting: Setting, rank: int, step: int) -> Iterable[Transfer]:
        """The start's broadcasts, then a step's collectives, those of one kind in a phase as one."""
        return lists.traffic(setting, rank)

    def wrap(self, module: "nn.Module", setting: Setting) -> "nn.Module":
        """Build DeepSpeed's engine, which takes the optimizer too, and rank 0's parameters for all ranks."""
        from dpcourse.optimizers import OPTIMIZER_CLASSES, arguments_of

        deepspeed = _import_quietly()
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        optimizer = OPTIMIZER_CLASSES[setting.optimizer](trainable, **arguments_of(setting.optimizer))
        with contextlib.redirect_stdout(io.StringIO()):  # it prints its use of memory; errors are raised
            engine, *_ = deepspeed.initialize(
                model=module, optimizer=optimizer, config=_config(setting), dist_init_required=False
            )
        if setting.options.stage == 0 and setting.recipe.has_masters:
            _forget_step_of_zeros(engine.optimizer)
        tell_passing(engine)
        return engine

    def build_optimizer(self, wrapped: "nn.Module", setting: Setting) -> Any:
        return _EngineStep(wrapped)

    def backward(self, wrapped: Any, loss: "Tensor") -> None:
        wrapped.backward(loss)

    def owned(self, wrapped: Any, optimizer: Any) -> Iterator[tuple[str, str, "Tensor"]]:
        """Name what the engine holds; it is the optimizer, too."""
        return owned_by(wrapped)

    def whole_parameters(self, wrapped: Any) -> dict[str, "Tensor"]:
        """Give copies of all parameters; at stage 3 they are gathered for it."""
        with _gathered(wrapped):
            return super().whole_parameters(wrapped)

    def name_transfers(self, transfers: list[Transfer], setting: Setting) -> list[Transfer]:
        """Name collectives by phase and kind; one that does not occur here keeps the name its meter gave."""
        return [replace(item, unit=_name(item)) for item in transfers]


class _EngineStep:
    """DeepSpeed's engine in the place of an optimizer: its step clears the gradients, too."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def step(self) -> None:
        self.engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        pass


def _name(item: Transfer) -> str:
    if (item.phase, item.collective) == ("step", "all_reduce"):
        return lists.OVERFLOW if item.unit == "uint8" else lists.NORM
    names = {
        ("init", "broadcast"): "each parameter",
        ("init", "all_gather"): "each parameter",
        ("forward", "all_gather"): "parameters",
        ("backward", "all_reduce"): "gradients",
        ("backward", "reduce_scatter"): "gradients",
        ("step", "all_gather"): lists.ROW,
    }
    return names.get((item.phase, item.collective), item.unit)


def _import_quietly() -> Any:
    """Import DeepSpeed for ranks on CPUs or GPUs, without its log and without compiling anything.

    Its operation for shared memory serves inference, and costs minutes of compiling at the first use.
    """
    import torch

    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    import deepspeed
    from deepspeed import ops
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed


def _forget_step_of_zeros(optimizer: Any) -> None:
    """Begin where the other stages begin: to make the states, this optimizer has stepped once, on zeros.

    Adam would count that step in its bias correction, and weight decay has moved the masters.
    """
    optimizer.optimizer.state.clear()
    for whole, masters in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
        for parameter, master in zip(whole, masters, strict=True):
            master.data.copy_(parameter.data)


def _config(setting: Setting) -> dict[str, Any]:
    options = setting.options
    return {
        "train_micro_batch_size_per_gpu": setting.batch_size // setting.world_size,
        "gradient_clipping": 0.0,  # DeepSpeed clips gradients at a norm of 1 unless it is told not to
        "data_types": {"grad_accum_dtype": options.grad_accum_dtype},
        "bf16": {"enabled": setting.recipe.has_masters},
        "zero_optimization": {
            "stage": options.stage,
            "reduce_bucket_size": options.reduce_bucket_size,
            "stage3_param_persistence_threshold": 0,
        },
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
    }


def _gathered(engine: Any) -> contextlib.AbstractContextManager:
    """Gather what is shared out, while this is open."""
    import deepspeed

    return deepspeed.zero.GatheredParameters(list(engine.parameters()))
