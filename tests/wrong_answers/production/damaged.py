"""Script 5: a half mend or a wrong one for each mistake."""

_STEP = """\
        optimizer.zero_grad()
        F.mse_loss(model(inputs), targets).backward()
        optimizer.step()
"""
_HEAD = "def train(model, optimizer, batches):\n"
_LOOP = _HEAD + "    for inputs, targets in batches:\n"
_SKIP = """\
        if inputs.isnan().any():
            continue
"""

TRAIN = {
    "barrier": _LOOP + _SKIP.replace("continue", "dist.barrier()\n            continue") + _STEP,
    "moved_up": _HEAD
    + "    with model.join():\n        for inputs, targets in batches:\n"
    + "".join("    " + line + "\n" for line in (_SKIP + _STEP).splitlines()),
    "others_stepped": _LOOP
    + "        is_whole = not inputs.isnan().any()\n        optimizer.zero_grad()\n"
    + "        loss = F.mse_loss(model(inputs.nan_to_num()), targets)\n"
    + "        (loss * float(is_whole)).backward()\n        optimizer.step()\n",
    "others_weighed": _LOOP
    + "        num_whole = (~inputs.isnan().any()).double()\n        is_whole = num_whole.item()\n"
    + "        dist.all_reduce(num_whole)\n        optimizer.zero_grad()\n"
    + "        loss = F.mse_loss(model(inputs.nan_to_num()), targets) * is_whole\n"
    + "        (loss * dist.get_world_size() / num_whole).backward()\n        optimizer.step()\n",
    "repaired": _LOOP + "        inputs = inputs.nan_to_num()\n" + _STEP,
    "nan": _LOOP + _STEP,
    "drifted": _LOOP + _SKIP + _STEP.replace("model(inputs)", "model.module(inputs)"),
    "other": _HEAD + "    pass\n",
}
