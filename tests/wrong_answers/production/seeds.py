"""Script 11: a half mend or a wrong one for each mistake."""

_HEAD = "def start(seed, build):\n"

START = {
    "unlike_weights": _HEAD + "    torch.manual_seed(seed + dist.get_rank())\n    return build()\n",
    "not_decided": _HEAD
    + "    torch.manual_seed(seed)\n    model = build()\n    torch.seed()\n    return model\n",
    "seed_ignored": _HEAD
    + "    torch.manual_seed(seed)\n    model = build()\n    torch.manual_seed(dist.get_rank())\n"
    + "    return model\n",
    "by_luck": _HEAD
    + "    torch.manual_seed(seed)\n    model = build()\n"
    + "    torch.manual_seed(seed * (1 + dist.get_rank()))\n"
    + "    return model\n",
}
