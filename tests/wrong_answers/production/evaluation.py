"""Script 7: a half mend or a wrong one for each mistake."""

_HEAD = "@torch.no_grad()\ndef evaluate(model, batches):\n"
_EACH = "    losses = [F.mse_loss(model(inputs), targets) for inputs, targets in batches]\n"
_MEAN = "    dist.all_reduce(mean)\n    return mean / dist.get_world_size()\n"
_TOTAL = "    total = torch.zeros(2, dtype=torch.float64)\n    for inputs, targets in batches:\n"
_SUM = "F.mse_loss(model(inputs), targets, reduction='sum')"

EVALUATE = {
    "mean_of_ranks": _HEAD
    + _TOTAL
    + f"        total += torch.stack([{_SUM}, torch.tensor(float(len(inputs)))])\n"
    + "    mean = total[0] / total[1]\n"
    + _MEAN,
    "by_batches": _HEAD
    + _TOTAL
    + "        total += torch.stack([F.mse_loss(model(inputs), targets), torch.tensor(1.0)])\n"
    + "    dist.all_reduce(total)\n    return total[0] / total[1]\n",
    "dropped": _HEAD
    + "    size = max([len(inputs) for inputs, _ in batches], default=0)\n"
    + _TOTAL
    + "        if len(inputs) == size:\n"
    + f"            total += torch.stack([{_SUM}, torch.tensor(float(size))])\n"
    + "    dist.all_reduce(total)\n    return total[0] / total[1]\n",
    "own_loss": _HEAD
    + _TOTAL
    + f"        total += torch.stack([{_SUM}, torch.tensor(float(len(inputs)))])\n"
    + "    return total[0] / total[1]\n",
    "hang": _HEAD
    + "    if not batches:\n        return 0.0\n"
    + _TOTAL
    + f"        total += torch.stack([{_SUM}, torch.tensor(float(len(inputs)))])\n"
    + "    dist.all_reduce(total)\n    return total[0] / total[1]\n",
    "other": _HEAD
    + _TOTAL
    + f"        total += torch.stack([{_SUM}, torch.tensor(float(len(inputs)))])\n"
    + "    dist.all_reduce(total)\n    return total[0]\n",
}
