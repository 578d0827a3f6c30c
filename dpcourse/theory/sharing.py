"""How messages that are under way at once share the links that they pass: each as much as is fair.

Max-min fairness: the fullest link is divided equally among those that pass it, what they leave on others goes
to the rest, and so on. That is about what many streams of TCP on one switch come to.
Source: Bertsekas and Gallager, Data networks, 1992, section 6.5.2.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

_ROUNDING = 1e-15
Path = tuple[int, ...]  # the links that a message passes, by number


def fair_rates(paths: Sequence[Path], capacities: Mapping[int, float]) -> list[float]:
    """Give each message's rate, in bytes per second; one that passes no link has no limit."""
    rates = [math.inf] * len(paths)
    spare, waiting = dict(capacities), {place for place, path in enumerate(paths) if path}
    while waiting:
        users = Counter(link for place in waiting for link in paths[place])
        share, fullest = min((spare[link] / count, link) for link, count in users.items())
        for place in [place for place in waiting if fullest in paths[place]]:
            rates[place] = share
            waiting.remove(place)
            for link in paths[place]:
                spare[link] -= share
    return rates


def carry(
    paths: Sequence[Path],
    left_bytes: Sequence[float],
    capacities: Mapping[int, float],
    start: float,
    until: float = math.inf,
) -> tuple[list[float], list[float]]:
    """Carry messages from `start` on, sharing anew whenever one ends and nothing new coming.

    Args:
        left_bytes: what of each message is still to be sent.
        until: a time to stop at.

    Returns:
        What is then left of each, and when each ends (infinity for those that have not by then).
    """
    left, ends, now = list(left_bytes), [math.inf] * len(paths), start
    active = list(range(len(paths)))
    while active:
        rates = fair_rates([paths[place] for place in active], capacities)
        needed = [left[place] / rate for place, rate in zip(active, rates, strict=True)]
        seconds = min(*needed, until - now) if len(needed) > 1 else min(needed[0], until - now)
        for place, rate, own in zip(active, rates, needed, strict=True):
            is_over = own <= seconds + _ROUNDING * abs(now)  # those that end together end at once
            left[place] = 0.0 if is_over else left[place] - rate * seconds
            ends[place] = now + seconds if is_over else math.inf
        now += seconds
        active = [place for place in active if ends[place] == math.inf] if now < until else []
    return left, ends
