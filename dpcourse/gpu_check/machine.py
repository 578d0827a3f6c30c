"""What machine is checked: its cards, their links, its driver and its torch, without importing torch."""

import platform
from datetime import UTC, datetime
from typing import Any

from dpcourse.doctor import packages, probes
from dpcourse.ranks import cluster


def describe() -> dict[str, Any]:
    """Say what the machine is made of, as data."""
    cards = cluster.gpus()
    driver = cluster.ask_nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    findings = [*probes.gpus(), *packages.torch()]
    return {
        "system": platform.platform(),
        "python": platform.python_version(),
        "cores": cluster.num_cores(),
        "memory_bytes": cluster.memory_bytes(),
        "gpus": [{"name": card.name, "memory_bytes": card.memory_bytes} for card in cards],
        "driver": driver.splitlines()[0].strip() if driver else None,
        "found": {finding.topic: finding.text for finding in findings},
    }


def in_words(machine: dict[str, Any], device: str) -> str:
    """Name the machine in one line, as a recorded run shows it."""
    names = [card["name"] for card in machine["gpus"]]
    if device != "cuda" or not names:
        return f"{machine['cores']} cores, no GPU used"
    return f"{len(names)} x {names[0]}, driver {machine['driver']}, {machine['cores']} cores"


def today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")
