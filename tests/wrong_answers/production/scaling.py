"""Script 8: a half mend or a wrong one for each mistake."""

_HEAD = "def backward(model, micro_batches):\n    for inputs, targets in micro_batches:\n"
_LOSS = "        loss = F.mse_loss(model(inputs), targets)\n"

BACKWARD = {
    "by_ranks": _HEAD + _LOSS + "        (loss * dist.get_world_size() / len(micro_batches)).backward()\n",
    "by_micro_batches": _HEAD + _LOSS + "        loss.backward()\n",
    "twice": _HEAD + _LOSS + "        (loss / len(micro_batches) / dist.get_world_size()).backward()\n",
    "by_hand": _HEAD + _LOSS + "        (loss * dist.get_world_size() / 10).backward()\n",
    "other": _HEAD + "        model.zero_grad()\n" + _LOSS + "        loss.backward()\n",
}
