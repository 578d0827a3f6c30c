"""Lab 03: judging what ranks hold after a step: each trained parameter's gradient, as the mean over ranks."""

from typing import Any

import numpy as np

from dpcourse.labs.ddp.chains import UNUSED, Chain, Share
from dpcourse.labs.question import Finding
from dpcourse.labs.sums import Sums
from dpcourse.labs.tensors import wrong_kind


def judge_means(place: str, shares: tuple[Share, ...], step: int, sent: list[Any]) -> Finding:
    """Every rank's gradients are the mean, and nothing else has changed.

    sent: what `Layers.gradients` gave on each rank. A parameter that no rank used may have zeros or none.
    """
    if problem := _wrong_leftovers(place, shares, sent):
        return problem
    used = set().union(*(share.used() for share in shares))
    names = [name for name in shares[0].chain.trained() if name in used]
    given = [[share.gradients(step)[name] for name in names] for share in shares]
    parts = [[gradient.astype(np.float64) / len(shares) for gradient in own] for own in given]
    held = [[own["gradients"][name] for name in names] for own in sent]
    for rank, own in enumerate(held):
        for name, gradient in zip(names, own, strict=True):
            if gradient["type"] == "NoneType":
                return Finding("no_gradient", f"{place}: rank {rank} has no gradient of {name}")
    sums = Sums(place, given, parts, held, [[]] * len(held))
    finding = sums.judge()
    if not finding.mistake and not _are_alike(sums.got):
        return Finding("different_bits", f"{place}: ranks differ in the last bits", finding.targets)
    return Finding(_likely(finding.mistake, shares[0].chain), finding.where, finding.targets)


def _wrong_leftovers(place: str, shares: tuple[Share, ...], sent: list[Any]) -> Finding | None:
    """Values of parameters that changed, gradients of frozen ones, and of those that nobody used."""
    used = set().union(*(share.used() for share in shares))
    for rank, own in enumerate(sent):
        for name, array in shares[0].chain.parameters().items():
            where = f"{place}: rank {rank}: {name}"
            if not _holds(own["values"][name], array):
                return Finding("changed_parameters", f"{where} has changed")
            gradient = own["gradients"][name]
            if name in shares[0].chain.frozen and gradient["type"] != "NoneType":
                return Finding("frozen_gradient", f"{where} is frozen, and has a gradient")
            is_idle = name not in used and gradient["type"] != "NoneType"
            if is_idle and not _holds(gradient, np.zeros_like(array)):
                return Finding("mixed_up", f"{where}: no rank used it, and its gradient is not zero")
    return None


def _holds(sent: Any, array: np.ndarray) -> bool:
    return wrong_kind(sent, array.dtype, array.shape) is None and np.array_equal(sent["values"], array)


def _are_alike(got: list[list[np.ndarray]]) -> bool:
    return all(np.array_equal(*pair) for own in got for pair in zip(own, got[0], strict=True))


def _likely(mistake: str, chain: Chain) -> str:
    """Where one rank made other all-reduces than the rest, sums of unlike things come out."""
    is_odd = mistake in ("other", "only_some_tensors", "only_some_ranks")
    return "mixed_up" if is_odd and chain.title == UNUSED else mistake
