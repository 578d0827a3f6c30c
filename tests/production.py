"""What the tests of several machines and of the training script share."""

import json
import socket
from collections.abc import Callable
from pathlib import Path


def losses(folder: Path) -> list[float]:
    path = folder / "losses.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["loss"] for line in lines if line.endswith("}")]


def train_here(arguments: list[str], change: Callable[[], None] | None = None) -> None:
    """Run the training script on ranks that are there already, after a change of its parts."""
    import torch

    from dpcourse.production import train

    if change:
        change()
    torch.set_num_threads(1)
    train.train(train.read_options(arguments), torch.device("cpu"))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
