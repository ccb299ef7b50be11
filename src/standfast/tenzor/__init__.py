"""Training checkpoints by the names that users of tenzor know.

    from standfast.tenzor import Checkpoint, CheckpointMetadata

    Checkpoint.save("checkpoints/epoch_5.tenzor", model, optimizer, CheckpointMetadata(epoch=5))

    with Checkpoint.load("checkpoints/epoch_5.tenzor") as loaded:
        loaded.load_weights(model)
        loaded.resume_optimizer(optimizer)             # bit for bit, whatever the optimizer

`Trainer` counts epochs, sets the learning rate and saves by itself; `docs/tenzor.md` is the page
of all this. `standfast.load` and `standfast verify` read the same files.
"""

from standfast.tenzor.checkpoint import Checkpoint
from standfast.tenzor.config import TrainerConfig
from standfast.tenzor.errors import BadConfig
from standfast.tenzor.metadata import CheckpointMetadata
from standfast.tenzor.trainer import EpochStats, Trainer, TrainerState, TrainStats

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
