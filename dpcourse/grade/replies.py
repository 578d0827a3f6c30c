"""Reads a worker's replies strictly: what a worker would not say itself counts as the worker lost."""

import json
from typing import Any

from dpcourse.labs.question import Question, Target
from dpcourse.labs.verdict import HEADLINES, Verdict

_TEXTS = ("question", "status", "message", "mistake", "where", "details")
_FIELDS = {*_TEXTS, "points", "max_points", "targets"}


class BadReply(Exception):
    """What came back is no reply to what was asked."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the grader's worker sent no valid reply: {what}")


def read_reply(line: bytes, nonce: str) -> dict[str, Any]:
    """The reply in a line of JSON; it must carry the nonce of the request that it answers."""
    try:
        reply = json.loads(line)
    except (ValueError, RecursionError):
        raise BadReply("not JSON") from None
    if type(reply) is not dict or reply.pop("nonce", None) != nonce:
        raise BadReply("not an answer to this request")
    if type(reply.get("num_left")) is not int or type(reply.get("is_worn")) is not bool:
        raise BadReply("without the worker's own state")
    return reply


def read_run(reply: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """How the notebook's run went, and the notebook after it."""
    notebook, cells = reply.get("notebook"), reply.get("cells_not_run")
    if type(reply.get("problem")) is not str or not _are(cells, str):
        raise BadReply("no account of the run")
    if type(notebook) is not dict or not _are(notebook.get("cells"), dict):
        raise BadReply("no notebook")
    return {
        "is_run": True,
        **{name: reply[name] for name in ("problem", "cells_not_run", "num_left")},
    }, notebook


def read_verdict(reply: dict[str, Any], question: Question) -> Verdict:
    """The verdict on `question`: on no other, with its maximum, and with points only where it is right."""
    verdict = reply.get("verdict")
    if (
        type(verdict) is not dict
        or set(verdict) != _FIELDS
        or not _are([verdict[name] for name in _TEXTS], str)
    ):
        raise BadReply("no verdict")
    if (verdict["question"], verdict["max_points"]) != (question.name, question.points):
        raise BadReply("a verdict on another question")
    points = question.points if verdict["status"] == "right" else 0
    if (
        verdict["status"] not in HEADLINES
        or verdict["points"] != points
        or not _are_targets(verdict["targets"])
    ):
        raise BadReply("a verdict that contradicts itself")
    return Verdict.from_dict(verdict)


def _are(items: Any, kind: type) -> bool:
    return type(items) is list and all(type(item) is kind for item in items)


def _are_targets(items: Any) -> bool:
    fields = Target.__annotations__
    return _are(items, dict) and all(
        set(item) == set(fields) and type(item["is_met"]) is bool for item in items
    )
