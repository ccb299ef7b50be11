"""Where a training stands, what it came to, and what of it a checkpoint keeps."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

import msgspec

from standfast.errors import BadField
from standfast.tenzor.metadata import CheckpointMetadata


@dataclass(slots=True)
class TrainerState:
    """Where the training stands; all of it may be changed."""

    epoch: int = 0
    """The epoch that runs, or the last one that was done; the first is 1."""
    total_epochs: int = 0
    batch: int = 0
    total_batches: int = 0
    """0 as long as nobody has said how many an epoch has."""
    global_step: int = 0
    train_loss: float = 0.0
    """The mean of the epoch so far, and so is the accuracy."""
    train_acc: float = 0.0
    val_loss: float = 0.0
    val_acc: float = 0.0
    best_val_loss: float = math.inf
    """That of the best epoch, and so is the accuracy."""
    best_val_acc: float = 0.0
    best_epoch: int = 0
    epochs_without_best: int = 0
    lr: float = 0.0
    should_stop: bool = False


@dataclass(frozen=True, slots=True)
class EpochStats:
    """What an epoch came to."""

    epoch: int
    train_loss: float
    train_acc: float
    val_loss: float
    val_acc: float
    lr: float


@dataclass(frozen=True, slots=True)
class TrainStats:
    """What a training came to."""

    final_epoch: int
    final_train_loss: float
    final_train_acc: float
    final_val_loss: float
    final_val_acc: float
    best_val_acc: float
    best_epoch: int
    total_time_sec: float
    """Of this process alone."""
    stopped_early: bool


@dataclass(slots=True)
class Means:
    """The means of an epoch so far."""

    loss_sum: float = 0.0
    accuracy_sum: float = 0.0
    count: int = 0
    """Samples."""
    judged: int = 0
    """Samples of the batches that had an accuracy."""

    def add(self, loss: float, accuracy: float | None, count: int) -> None:
        """Count the samples of a batch."""
        self.loss_sum += loss * count
        self.count += count
        if accuracy is not None:
            self.accuracy_sum += accuracy * count
            self.judged += count

    @property
    def loss(self) -> float:
        """The mean loss of a sample."""
        return self.loss_sum / self.count if self.count else 0.0

    @property
    def accuracy(self) -> float:
        """The mean accuracy of the batches that had one."""
        return self.accuracy_sum / self.judged if self.judged else 0.0


@dataclass(frozen=True, slots=True)
class Kept:
    """What a trainer keeps of itself in a checkpoint."""

    state: TrainerState
    bases: list[float]
    history: list[EpochStats]
    epoch: Means | None = None
    """Those of the epoch that was not finished; None between two epochs."""

    def tree(self) -> dict[str, Any]:
        """All of it as plain values."""
        return asdict(self)


def read_kept(tree: Any) -> Kept:
    """What a checkpoint has of a trainer, checked."""
    try:
        return msgspec.convert(tree, Kept)
    except msgspec.ValidationError as error:
        raise BadField(f"the saved state of the trainer: {error}") from error


def kept_by_metadata(metadata: CheckpointMetadata, bases: list[float]) -> Kept:
    """What is known of a trainer that was not saved with its checkpoint."""
    names = {each.name for each in fields(TrainerState)}
    known = {name: value for name, value in metadata.exact().items() if name in names}
    return Kept(TrainerState(**known, lr=metadata.learning_rate), bases, [])
