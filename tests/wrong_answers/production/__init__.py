"""Lab 10: for each script the mends that are none, without the imports that all scripts have."""

from tests.wrong_answers.production import (
    clipping,
    damaged,
    epochs,
    evaluation,
    metrics,
    prefix,
    quiet,
    resuming,
    saving,
    scaling,
    seeds,
    sharding,
)

MENDS = {
    "train_epochs": epochs.TRAIN_EPOCHS,
    "start": seeds.START,
    "evaluate": evaluation.EVALUATE,
    "sum_metrics": metrics.SUM_METRICS,
    "accumulate": quiet.ACCUMULATE,
    "backward": scaling.BACKWARD,
    "clip": clipping.CLIP,
    "train": damaged.TRAIN,
    "prepare": sharding.PREPARE,
    "save": saving.SAVE,
    "load_checkpoint": prefix.LOAD_CHECKPOINT,
    "stop_and_resume": resuming.STOP_AND_RESUME,
}
