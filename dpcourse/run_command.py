"""`dpcourse run`: one experiment from the command line, on ranks of its own or those of torchrun."""

import argparse
import ast
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpcourse.json_output import add_json, show, words_aside

EXAMPLES = """\
examples:
  dpcourse run ddp                                        2 ranks on this machine
  dpcourse run fsdp2 --model gpt-small --ranks 4 --out run.json
  dpcourse run ddp --option bucket_cap_mb=1 --option gradient_as_bucket_view=True
  dpcourse run fsdp2 --ranks 4 --option "mesh=(2, 2)"     hybrid sharding
  dpcourse run ddp --hosts 2 --ranks-per-host 2 --inter 500mbit    two emulated hosts, a slow link between
  dpcourse run ddp --json | python -c "import json, sys; print(json.load(sys.stdin)['num_params'])"
  torchrun --nproc-per-node 4 -m dpcourse run fsdp2       the ranks are there already, and are taken

On several machines, this on each (dpcourse torchrun --help says more):
  dpcourse torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST0:29500 \\
    -m dpcourse run fsdp2 --out run.json

A saved run opens in Python with dc.Run.load("run.json"). help(dpcourse.train) says what each word means.

What is shown: the bytes that rank 0 held and sent, measured beside expected, the losses, the time of a step.
After two seconds a line says what the ranks do.

exit codes: 0 done; 1 a rank failed; 2 it could not start: wrong arguments, something missing; 130 interrupted
"""
# What goes to dc.train and to dc.Cluster under the same name.
_WORDS = (
    *("strategy", "model", "ranks", "steps", "batch_size", "recipe", "optimizer", "seed", "checkpointing"),
    *("device", "backend", "deadline_seconds"),
)
_LINKS = ("hosts", "ranks_per_host", "inter", "intra", "latency", "links")


def main(arguments: Sequence[str]) -> int:
    """Train, and let rank 0 show and save the run. Errors are one line."""
    from dpcourse.ranks import torchrun
    from dpcourse.ranks.errors import RankError

    asked = _parser().parse_args(arguments)
    member = None
    try:
        member = torchrun.found()
        is_saver = member is None or member.rank == 0
        with words_aside(asked.json):
            run = _train(asked, is_saver)
        if is_saver:
            return _deliver(run, asked)
    except RankError as error:
        return _say(error.summary, 1, member)
    except (ValueError, TypeError) as error:
        return _say(str(error), 2, member)
    return 0


def _say(text: str, exit_code: int, member: Any) -> int:
    """Of ranks that all say the same, one on each host says it."""
    if member is None or member.local_rank == 0:
        print(f"dpcourse run: {text}", file=sys.stderr)
    return exit_code


def _deliver(run: Any, asked: argparse.Namespace) -> int:
    """Show the run, then save it: what cannot be saved is seen all the same."""
    if asked.json:
        show(json.loads(run.to_json()))
    else:
        print(run)
    if asked.out:
        try:
            run.save(asked.out)
        except OSError as error:
            return _say(f"--out {asked.out}: not written ({error.strerror}); the run is shown above", 1, None)
    return 0


def _train(asked: argparse.Namespace, is_saver: bool) -> Any:
    from dpcourse.training import train

    if asked.out and is_saver:
        _check_out(asked.out)
    words = {name: getattr(asked, name) for name in _WORDS}
    for name, _ in asked.option:
        if name in words:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"--option {name}: that is no option of a strategy; give {flag}")
    return train(**words, cluster=_cluster(asked), **dict(asked.option))


def _cluster(asked: argparse.Namespace) -> Any:
    """The emulated hosts that were asked for, or None for this machine as it is."""
    from dpcourse.ranks.cluster import Cluster

    links = {name: getattr(asked, name) for name in _LINKS}
    if all(value is None for value in links.values()):
        return None
    return Cluster(ranks=asked.ranks, device=asked.device, **links)


def _check_out(out: Path) -> None:
    """Refuse a file that cannot be written while nothing is lost yet: by writing, since that alone tells."""
    if not os.access(out.parent, os.W_OK):
        raise ValueError(f"--out {out}: {out.parent} is no folder that can be written; make it first")
    is_new = not out.exists()
    try:
        out.open("a").close()
    except OSError as error:
        raise ValueError(f"--out {out}: it cannot be written ({error.strerror}); name another file") from None
    if is_new:
        out.unlink()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dpcourse run",
        description="Train a model with a strategy, measure what it holds and moves, and show it.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("strategy", help="ddp, fsdp2, ...; a wrong name is answered with all there are")
    _add_training(parser)
    _add_place(parser)
    _add_hosts(parser.add_argument_group("emulated hosts", "as dc.Cluster takes them"))
    parser.add_argument("--out", type=Path, metavar="FILE", help="save the run as JSON")
    add_json(parser, "the run, as --out saves it,")
    return parser


def _add_training(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="mlp", help="mlp, convnet or gpt-small (default: mlp)")
    parser.add_argument("--steps", type=int, default=3, help="bare steps, for losses and time (default: 3)")
    parser.add_argument("--batch-size", type=int, help="of all ranks together (default: 16)")
    parser.add_argument(
        "--recipe", default="fp32", help="fp32 (default), autocast, mixed-adam, bf16 or fsdp-mixed"
    )
    parser.add_argument("--optimizer", default="adamw", help="adamw (default), adam, sgd or momentum")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default: 0)")
    parser.add_argument("--checkpointing", action="store_true", help="compute blocks again in backward")
    parser.add_argument(
        "--option", type=_option, action="append", default=[], metavar="NAME=VALUE", help="the strategy's own"
    )


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, help="processes (default: 2, or those of torchrun)")
    parser.add_argument("--device", help="cpu or cuda (default: GPUs where there are enough)")
    parser.add_argument("--backend", help="gloo, nccl, ring or staged (default: the device's own)")
    parser.add_argument(
        "--deadline",
        type=float,
        default=120.0,
        dest="deadline_seconds",
        metavar="SECONDS",
        help="after which all ranks are ended, and what they did is said (default: 120)",
    )


def _add_hosts(group: Any) -> None:
    group.add_argument("--hosts", type=int, help="hosts, emulated on this machine")
    group.add_argument("--ranks-per-host", type=int, metavar="N", help="ranks on each")
    group.add_argument(
        "--inter", metavar="RATE", help="of each host's card, such as 500mbit (default: 1gbit)"
    )
    group.add_argument("--intra", metavar="RATE", help="within a host (default: as fast as it goes)")
    group.add_argument("--latency", metavar="TIME", help="between two hosts, such as 50us (default: none)")
    group.add_argument("--links", metavar="KIND", help="kernel or paced (default: what works here)")


def _option(text: str) -> tuple[str, Any]:
    """Read "mesh=(2, 2)" as Python would, and a value that is none of Python's as text."""
    name, sign, value = text.partition("=")
    if not sign or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r}: give name=value, as in bucket_cap_mb=1")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value
