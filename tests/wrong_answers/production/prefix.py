"""Script 3: a half mend or a wrong one for each mistake."""

_HEAD = "def load_checkpoint(path, model):\n    state = torch.load(path)\n"

LOAD_CHECKPOINT = {
    "nothing_loaded": _HEAD + "    model.load_state_dict(state, strict=False)\n",
    "partly_loaded": _HEAD
    + "    state = {name.replace('module.', ''): value for name, value in state.items()}\n"
    "    model.load_state_dict(state, strict=False)\n",
    "other": _HEAD + "    state = {name.removeprefix('module.'): value for name, value in state.items()}\n"
    "    model.load_state_dict(state)\n    model['head'].reset_parameters()\n",
}
