"""Experiments and their checkpoints by the names that users of weightslab know.

    from standfast.experiments import CheckpointManagerV2, get_checkpoint_system, watch

    watch(model=model, optimizer=optimizer, hyperparameters=config, data_state=data_state)
    system = get_checkpoint_system(root_log_dir="experiments", checkpoint_frequency=100)
    for step in range(1, 10_001):
        train_step(model)
        system.on_training_step(step)                  # returns after the commit

    CheckpointManagerV2("experiments").load_latest_checkpoint(model)

An experiment is a run of `standfast.Store`; `docs/experiments.md` is the page of all this.
"""

from standfast.experiments.hashes import ExperimentHashGenerator
from standfast.experiments.manager import CheckpointManagerV2
from standfast.experiments.registry import watch
from standfast.experiments.system import CheckpointSystem, get_checkpoint_system

__all__ = [
    "CheckpointManagerV2",
    "CheckpointSystem",
    "ExperimentHashGenerator",
    "get_checkpoint_system",
    "watch",
]
