"""Lab 08, what crosses a host's card: a wrong answer for each mistake."""


def _answer(changed: str = "", then: str = "") -> str:
    """The solution with something in it replaced."""
    source = """def card_bytes(strategy, num_params, number_bytes, hosts, ranks_per_host, hosts_per_copy):
    size, ranks, on_host = num_params * number_bytes, hosts * ranks_per_host, ranks_per_host
    trip = lambda number: (number - 1) / number
    shards, ring, held_by = 1, 1, None
    if strategy == "ddp":
        across = 2 * ring * trip(ranks) if hosts > 1 else 0
    else:
        together = hosts_per_copy if strategy == "fsdp" else 1
        across = 2 / together * trip(hosts // together)
        if strategy == "fsdp":
            shards = together * on_host
            across += 3 * ring * trip(shards) if together > 1 else 0
    return {"across": across * size, "held": 16 * num_params / (held_by or shards)}
"""
    assert changed in source
    return source.replace(changed, then)


HYBRID = {
    "elements": _answer("num_params * number_bytes", "num_params"),
    "every_rank_crosses": _answer("ring, held_by = 1, 1", "ring, held_by = 1, on_host"),
    "one_rank_only": _answer("2 / together *", "2 / together / on_host *"),
    "whole_model_across": _answer("2 / together *", "2 *"),
    "by_every_rank": _answer("2 / together *", "2 * on_host *"),
    "gathers_across": _answer("if together > 1 else 0", "if hosts > 1 else 0"),
    "two_trips": _answer("3 * ring", "2 * ring"),
    "one_way": _answer("2 * ring", "ring").replace("2 / together", "1 / together"),
    "no_averages": _answer("2 / together *", "0 *"),
    "whole_payload": _answer("(number - 1) / number", "int(number > 1)"),
    "one_host_crosses": _answer(" if hosts > 1 else 0", ""),
    "held_over_all": _answer("held_by or shards", "ranks if shards > 1 else 1"),
    "held_whole": _answer("held_by or shards", "1"),
    "wrong_type": _answer('return {"across": across * size, "held"', 'return across * size, {"held"'),
    "across": _answer("across * size", "1.3 * across * size"),
    "held": _answer("16 *", "12 *"),
}
