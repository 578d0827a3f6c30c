"""Lab 08, a step from latency and bandwidth: a wrong answer for each mistake."""


def _answer(changed: str = "", then: str = "") -> str:
    """The solution with something in it replaced."""
    source = """import math


def step_seconds(payload_bytes, bucket_bytes, forward_seconds, backward_seconds, ranks, latency_seconds,
                 bytes_per_second):
    count = math.ceil(payload_bytes / bucket_bytes)
    rounds, trips = 2 * (ranks - 1), 2 * (ranks - 1) / ranks
    each = rounds * latency_seconds + trips * payload_bytes / count / bytes_per_second
    piece = backward_seconds / count
    backward = piece + (count - 1) * max(piece, each) + each
    return {"all_reduce": each, "step": forward_seconds + backward}
"""
    assert changed in source
    return source.replace(changed, then)


_BACKWARD = "piece + (count - 1) * max(piece, each) + each"

STEP_SECONDS = {
    "no_latency": _answer("rounds * latency_seconds +", ""),
    "one_latency": _answer("rounds, trips = 2 * (ranks - 1)", "rounds, trips = int(ranks > 1)"),
    "half_the_messages": _answer("rounds, trips = 2 * (ranks - 1)", "rounds, trips = ranks - 1"),
    "one_way": _answer("2 * (ranks - 1)", "(ranks - 1)"),
    "one_way_bytes": _answer("2 * (ranks - 1) / ranks", "(ranks - 1) / ranks"),
    "whole_payload": _answer("2 * (ranks - 1) / ranks", "2 * (ranks > 1)"),
    "bits": _answer("trips * payload_bytes", "8 * trips * payload_bytes"),
    "whole_at_once": _answer("math.ceil(payload_bytes / bucket_bytes)", "1"),
    "buckets_rounded_down": _answer(
        "math.ceil(payload_bytes / bucket_bytes)", "math.floor(payload_bytes / bucket_bytes) or 1"
    ),
    "nothing_hidden": _answer(_BACKWARD, "count * (piece + each)"),
    "all_hidden": _answer(_BACKWARD, "count * max(piece, each)"),
    "last_is_hidden": _answer(_BACKWARD, "piece + (count - 1) * max(piece, each)"),
    "first_is_there": _answer(_BACKWARD, "max(count * piece, (count - 1) * each) + each"),
    "wrong_type": _answer(
        '{"all_reduce": each, "step": forward_seconds + backward}', "forward_seconds + backward"
    ),
    "all_reduce": _answer('{"all_reduce": each', '{"all_reduce": 1.3 * each'),
    "step": _answer("forward_seconds + backward}", "1.3 * (forward_seconds + backward)}"),
}
