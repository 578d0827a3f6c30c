"""Script 10: a half mend or a wrong one for each mistake."""

_HEAD = "def stop_and_resume(run, start_again):\n"
_SAVE = '    saved = {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}\n'
_RANDOM = '    saved["random"] = torch.get_rng_state()\n'
_SCHEDULE = '    saved["scheduler"] = run.scheduler.state_dict()\n'
_START = "    new = start_again()\n"
_LOAD = (
    '    new.model.load_state_dict(saved["model"])\n    new.optimizer.load_state_dict(saved["optimizer"])\n'
)
_LOAD_SCHEDULE = '    new.scheduler.load_state_dict(saved["scheduler"])\n'
_LOAD_RANDOM = '    torch.set_rng_state(saved["random"])\n'
_RETURN = "    return new\n"

STOP_AND_RESUME = {
    "schedule": _HEAD + _SAVE + _RANDOM + _START + _LOAD + _LOAD_RANDOM + _RETURN,
    "random": _HEAD + _SAVE + _SCHEDULE + _START + _LOAD + _LOAD_SCHEDULE + _RETURN,
    "seeded_again": _HEAD
    + "    torch.manual_seed(torch.initial_seed())\n"
    + _SAVE
    + _RANDOM
    + _SCHEDULE
    + _START
    + _LOAD
    + _LOAD_SCHEDULE
    + _LOAD_RANDOM
    + _RETURN,
    "one_for_all": _HEAD
    + _SAVE
    + _RANDOM
    + _SCHEDULE
    + '    dist.broadcast(saved["random"], src=0)\n'
    + _START
    + _LOAD
    + _LOAD_SCHEDULE
    + _LOAD_RANDOM
    + _RETURN,
    "not_started_again": _HEAD + "    return run\n",
    "momentum": _HEAD
    + _SAVE
    + _RANDOM
    + _SCHEDULE
    + _START
    + '    new.model.load_state_dict(saved["model"])\n'
    + _LOAD_SCHEDULE
    + '    new.optimizer.param_groups[0]["lr"] = new.scheduler.get_last_lr()[0]\n'
    + _LOAD_RANDOM
    + _RETURN,
    "other": _HEAD
    + _SAVE
    + _RANDOM
    + _SCHEDULE
    + _START
    + '    new.optimizer.load_state_dict(saved["optimizer"])\n'
    + _LOAD_SCHEDULE
    + _LOAD_RANDOM
    + _RETURN,
}
