"""Training checkpoints by the names that users of tenzor know.

    from holdfast.tenzor import Checkpoint, CheckpointMetadata

    Checkpoint.save("checkpoints/epoch_5.tenzor", model, optimizer, CheckpointMetadata(epoch=5))

    with Checkpoint.load("checkpoints/epoch_5.tenzor") as loaded:
        loaded.load_weights(model)
        loaded.resume_optimizer(optimizer)             # bit for bit, whatever the optimizer

`Trainer` counts epochs, sets the learning rate and saves by itself; `docs/tenzor.md` is the page
of all this. `holdfast.load` and `holdfast verify` read the same files.
"""

from holdfast.tenzor.checkpoint import Checkpoint
from holdfast.tenzor.config import TrainerConfig
from holdfast.tenzor.errors import BadConfig
from holdfast.tenzor.metadata import CheckpointMetadata
from holdfast.tenzor.trainer import Trainer
from holdfast.tenzor.trainer_state import EpochStats, TrainerState, TrainStats

__all__ = [
    "BadConfig",
    "Checkpoint",
    "CheckpointMetadata",
    "EpochStats",
    "TrainStats",
    "Trainer",
    "TrainerConfig",
    "TrainerState",
]
