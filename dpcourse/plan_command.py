"""`dpcourse plan`: the selection guide from the command line."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpcourse.json_output import add_json, words_aside

EXAMPLES = """\
examples:
  dpcourse plan llama-2-7b --gpus 8 --gpu-memory 80GB
  dpcourse plan 13B --gpus 4 --gpu a100-80gb --recipe mixed-adam    a parameter count: states alone
  dpcourse plan config.json --gpus 16 --hosts 2 --inter "200 Gbit/s"    Hugging Face's file
  dpcourse plan gpt2 --gpus 8 --gpu-memory 24GB --json

What is shown: every strategy of the course, the best first, with its peak, what it sends, the time of a step,
the number that decides and why; then how the table of decisions leads there, and what was assumed.

exit codes: 0 something fits; 1 nothing fits, and the text says what would; 2 wrong arguments; 130 interrupted
"""
# What goes to dc.plan under the same name.
_HARDWARE = ("gpus", "gpu_memory", "gpu", "hosts", "ranks_per_host", "intra", "inter")
_STEP = (
    *("recipe", "optimizer", "sequence_length", "micro_batch", "checkpointing", "attention", "trainable"),
    "utilisation",
)


def main(arguments: Sequence[str]) -> int:
    """Plan and show it; 1 where nothing fits, 2 for what cannot be planned."""
    asked = _parser().parse_args(arguments)
    try:
        with words_aside(asked.json):
            plan = _plan(asked)
    except (ValueError, TypeError, OSError) as error:
        print(f"dpcourse plan: {error}", file=sys.stderr)
        return 2
    print(plan.to_json() if asked.json else plan)
    return 0 if plan.best else 1


def _plan(asked: argparse.Namespace) -> Any:
    from dpcourse.planning.selection import plan

    words = {name: getattr(asked, name) for name in (*_HARDWARE, *_STEP)}
    given = {name: value for name, value in words.items() if value is not None}  # the rest as dc.plan has it
    return plan(_model(asked.model), **given)


def _model(text: str) -> Any:
    """A name or a count as it stands; of a file that ends in .json the configuration that it holds."""
    if not text.endswith(".json"):
        return text
    try:
        return json.loads(Path(text).read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(
            f"{text} is no JSON; give a configuration file, a name or a parameter count"
        ) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpcourse plan",
        description="Choose a strategy for a model on some cards: every one of the course, ranked.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", help="a name, a parameter count (7B, 7e9), or a configuration in a .json file"
    )
    _add_hardware(parser.add_argument_group("hardware"))
    _add_step(parser.add_argument_group("a step"))
    add_json(parser, "the plan")
    return parser


def _add_hardware(group: Any) -> None:
    group.add_argument("--gpus", type=int, help="how many cards (default: 8)")
    group.add_argument("--gpu-memory", metavar="SIZE", help="of each, with its unit: 80GB, 80GiB")
    group.add_argument("--gpu", metavar="NAME", help="a card by name, with its memory and speeds: a100-80gb")
    group.add_argument("--hosts", type=int, help="how many (default: hosts of eight cards)")
    group.add_argument("--ranks-per-host", type=int, metavar="N", help="cards in each host")
    group.add_argument("--intra", metavar="RATE", help='from card to card inside a host: "2400 Gbit/s"')
    group.add_argument("--inter", metavar="RATE", help='out of a host: "200 Gbit/s"')


def _add_step(group: Any) -> None:
    group.add_argument(
        "--recipe", metavar="NAME", help="number formats (default: mixed-adam, and it says so)"
    )
    group.add_argument("--optimizer", metavar="NAME", help="default: adamw")
    group.add_argument("--sequence-length", type=int, metavar="N", help="tokens (default: the model's own)")
    group.add_argument(
        "--micro-batch", type=int, metavar="N", help="sequences on a rank at once (default: 1)"
    )
    group.add_argument("--checkpointing", metavar="KIND", help="none, selective or full (default: both ends)")
    group.add_argument("--attention", metavar="KIND", help="fused or plain (default: fused)")
    group.add_argument("--trainable", type=float, metavar="N", help="of a parameter count: how many train")
    group.add_argument(
        "--utilisation", type=float, metavar="SHARE", help="of its operations that a card reaches"
    )
