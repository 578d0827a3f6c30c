"""Script 12: a half mend or a wrong one for each mistake."""

_HEAD = "def sum_metrics(metrics):\n    sums = {}\n"
_TOTAL = """\
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total)
        sums[name] = total.item()
"""
_LOOP = "    for name, value in metrics.items():\n"

SUM_METRICS = {
    "hang": _HEAD + "    for name, value in sorted(metrics.items()):\n" + _TOTAL + "    return sums\n",
    "own": _HEAD + _LOOP + "        sums[name] = value\n    return sums\n",
    "rank_0s": "def sum_metrics(metrics):\n    shares = [metrics]\n"
    "    dist.broadcast_object_list(shares, src=0)\n    return shares[0]\n",
    "lacking": "def sum_metrics(metrics):\n    shares = [None] * dist.get_world_size()\n"
    "    dist.all_gather_object(shares, metrics)\n"
    "    names = set.intersection(*map(set, shares))\n"
    "    return {name: sum(share[name] for share in shares) for name in sorted(names)}\n",
    "other": "def sum_metrics(metrics):\n    shares = [None] * dist.get_world_size()\n"
    "    dist.all_gather_object(shares, metrics)\n"
    "    names = {name for share in shares for name in share}\n"
    "    return {name: sum(s.get(name, 0.0) for s in shares) / len(shares) for name in names}\n",
}
