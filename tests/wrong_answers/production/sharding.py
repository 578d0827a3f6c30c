"""Script 4: a half mend or a wrong one for each mistake."""

_HEAD = "def prepare(model, learning_rate):\n"
_OPTIMIZER = "    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)\n"
_SHARD = "    fully_shard(model)\n"
_RETURN = "    return optimizer\n"

PREPARE = {
    "not_sharded": _HEAD + "    for parameter in model.parameters():\n"
    "        parameter.register_hook(lambda g: dist.all_reduce(g) or g / dist.get_world_size())\n"
    + _OPTIMIZER
    + _RETURN,
    "keeps_old": _HEAD
    + _OPTIMIZER
    + _SHARD
    + "    optimizer.add_param_group({'params': list(model.parameters())})\n"
    + _RETURN,
    "other": _HEAD
    + _SHARD
    + "    return torch.optim.SGD(model.parameters(), lr=learning_rate / dist.get_world_size())\n",
}
