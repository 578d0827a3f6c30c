"""Script 2: a half mend or a wrong one for each mistake."""

_HEAD = "def accumulate(model, micro_batches):\n"
_LOOP = """\
    last = len(micro_batches) - 1
    for number, (inputs, targets) in enumerate(micro_batches):
"""
_LOSS = "loss = F.mse_loss(model(inputs), targets) / len(micro_batches)\n"

ACCUMULATE = {
    "never_reduced": _HEAD
    + _LOOP
    + "        with model.no_sync():\n"
    + ("            " + _LOSS)
    + "            loss.backward()\n",
    "wrong_micro_batch": _HEAD
    + _LOOP
    + "        with model.no_sync() if number > 0 else nullcontext():\n"
    + ("            " + _LOSS)
    + "            loss.backward()\n",
    "held_together": _HEAD
    + "    losses = [F.mse_loss(model(inputs), targets) for inputs, targets in micro_batches]\n"
    + "    torch.stack(losses).mean().backward()\n",
    "not_divided": _HEAD
    + _LOOP
    + "        with model.no_sync() if number < last else nullcontext():\n"
    + "            F.mse_loss(model(inputs), targets).backward()\n",
    "other": _HEAD
    + "    inputs, targets = micro_batches[-1]\n    F.mse_loss(model(inputs), targets).backward()\n",
}
