"""Script 1: a half mend or a wrong one for each mistake."""

_HEAD = "def train_epochs(samples, batch_size, first_epoch, num_epochs, train_step):\n"
_SAMPLER = "    sampler = DistributedSampler(samples)\n"
_LOADER = "    loader = DataLoader(samples, batch_size=batch_size, sampler=sampler)\n"
_EPOCHS = "    for epoch in range(first_epoch, num_epochs):\n"
_BATCHES = "        for batch in loader:\n            train_step(batch)\n"

TRAIN_EPOCHS = {
    "told_late": _HEAD + _SAMPLER + _LOADER + _EPOCHS + _BATCHES + "        sampler.set_epoch(epoch)\n",
    "another_run": _HEAD
    + _SAMPLER
    + _LOADER
    + _EPOCHS
    + "        sampler.set_epoch(epoch - first_epoch)\n"
    + _BATCHES,
    "ranks_disagree": _HEAD
    + _EPOCHS
    + "        sampler = DistributedSampler(samples, seed=100 * epoch + dist.get_rank())\n"
    + ("    " + _LOADER)
    + _BATCHES,
    "wrong_share": _HEAD
    + "    loader = DataLoader(samples, batch_size=batch_size, shuffle=True)\n"
    + _EPOCHS
    + _BATCHES,
}
