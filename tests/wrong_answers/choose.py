"""Lab 09, the table of decisions: a wrong answer for each mistake."""


def solution(changed: str = "", then: str = "") -> str:
    """A right answer with something in it replaced."""
    source = """def choose(num_cards, num_hosts, card_gb, peak_gb, step_seconds):
    fits = {name for name in peak_gb if peak_gb[name] <= card_gb}
    quickest = min([step_seconds[name] for name in fits if name != "offload"], default=0)
    good = {name for name in fits - {"offload"} if step_seconds[name] <= 1.05 * quickest}
    first = ["single", "single+recompute"] if num_cards == 1 else ["ddp", "ddp+recompute"]
    for name in first:
        if name in (fits if num_cards == 1 else good):
            return name
    for again, enough in (("", good), ("+recompute", fits)):
        ways = ["hybrid" + again, "kept" + again, "full" + again]
        if any(name in enough for name in ways):
            return next((name for name in ways[:2] if name in good), ways[2])
    return "offload" if "offload" in fits else "none"
"""
    assert changed in source
    return source.replace(changed, then)


CHOOSE = {
    # In the order of the names as they came: several are equally quick, and a set has an order of its own.
    "just_quickest": solution(
        "    first =",
        "    in_order = [name for name in peak_gb if name in fits]\n"
        '    return min(in_order, key=step_seconds.get, default="none")\n    first =',
    ),
    "no_tie": solution("1.05 * quickest", "quickest"),
    "against_what_does_not_fit": solution(
        'for name in fits if name != "offload"]', 'for name in peak_gb if name != "offload"]'
    ),
    "copies_whenever_they_fit": solution("(fits if num_cards == 1 else good)", "fits"),
    "shards_first": solution('["ddp", "ddp+recompute"]', "[]"),
    "never_recomputes": solution("+recompute", ""),
    "hybrid_whenever_it_fits": solution(
        "for name in ways[:2] if name in good",
        "for name in ways[:2] if name in (fits if name == ways[0] else good)",
    ),
    "no_hybrid": solution("ways[:2]", "ways[1:2]"),
    "kept_whenever_it_fits": solution(
        "for name in ways[:2] if name in good",
        "for name in ways[:2] if name in (fits if name == ways[1] else good)",
    ),
    "never_kept": solution("ways[:2]", "ways[:1]"),
    "no_offload": solution('"offload" if "offload" in fits else "none"', '"none"'),
    "full_is_too_much": solution("peak_gb[name] <= card_gb", "peak_gb[name] < card_gb"),
    "wrong_type": solution('return "offload" if "offload" in fits else "none"', "return None"),
    "take": solution('"offload" if "offload" in fits else "none"', '"full"'),
}
