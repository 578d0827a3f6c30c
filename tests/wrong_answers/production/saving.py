"""Script 6: a half mend or a wrong one for each mistake."""

_HEAD = "def save(model, write):\n"
_OPTIONS = "    options = StateDictOptions(full_state_dict=True)\n"
_GATHER = "state = get_model_state_dict(model, options=options)\n"

SAVE = {
    "barrier": _HEAD
    + "    if dist.get_rank() == 0:\n    "
    + _OPTIONS
    + ("        " + _GATHER)
    + "        write(state)\n    dist.barrier()\n",
    "only_a_shard": _HEAD + "    if dist.get_rank() == 0:\n        write(model.state_dict())\n",
    "all_write": _HEAD + _OPTIONS + "    write(get_model_state_dict(model, options=options))\n",
    "not_written": _HEAD + _OPTIONS + "    get_model_state_dict(model, options=options)\n",
    "other": _HEAD
    + _OPTIONS
    + ("    " + _GATHER)
    + "    if dist.get_rank() == 0:\n"
    + "        write({name: torch.zeros_like(value) for name, value in state.items()})\n",
}
