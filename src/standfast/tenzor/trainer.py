"""The trainer: it counts, sets the learning rate, finds the best epoch, saves and resumes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from standfast.errors import BadField, RefusedState, StateMismatch
from standfast.tensors import randomness
from standfast.tenzor.checkpoint import Checkpoint
from standfast.tenzor.config import TrainerConfig, learning_rate
from standfast.tenzor.errors import BadConfig
from standfast.tenzor.folder import BEST, epoch_file, make_writable, refuse_used
from standfast.tenzor.metadata import CheckpointMetadata, integer, number
from standfast.training.loaders import is_in_epoch, is_loader

DEFAULT_RATE: Final = 0.01


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


def _plain(record: Any) -> Any:
    """A copy of a state or of an epoch's figures, with plain numbers.

    The caller may have set scalars of NumPy or torch. Raises RefusedMetadata for anything else.
    """
    kinds: dict[Any, Callable[[str, Any], Any]] = {
        "int": partial(integer, least=-(1 << 63)),
        "float": number,
        "bool": lambda name, value: bool(number(name, value)),
    }
    return replace(
        record, **{f.name: kinds[f.type](f.name, getattr(record, f.name)) for f in fields(record)}
    )


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


class Trainer:
    """Calls around a training loop, which stays yours.

    >>> while trainer.should_continue():
    ...     trainer.begin_epoch(total_batches=len(loader))
    ...     for batch in loader:
    ...         ...
    ...         trainer.record_batch(loss, accuracy)
    ...     trainer.end_epoch(val_loss, val_acc)
    """

    def __init__(
        self,
        config: TrainerConfig | None = None,
        *,
        model: Any = None,
        optimizer: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare a training; `extra` names what else has `state_dict` and `load_state_dict`.

        The folder for checkpoints is made now, or found to be one that cannot be written to.
        """
        self.config = config if config is not None else TrainerConfig()
        self.model = model
        self.optimizer = optimizer
        self.extra = dict(extra or {})
        for name, each in self.extra.items():
            if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
                raise BadConfig(f"extra: {name!r:.80} has no state_dict and load_state_dict")
        self.history: list[EpochStats] = []
        """Every epoch that was done, those before a resume too."""
        self.state = TrainerState(total_epochs=self.config.epochs)
        self._bases = self._base_rates()
        self._folder: Path | None = None
        if self.config.checkpoint_dir is not None:
            if model is None:
                raise BadConfig("checkpoint_dir: there is no model to save; give Trainer(model=…)")
            self._folder = Path(self.config.checkpoint_dir)
            make_writable(self._folder)
        self._resumed = False
        self._best_before = self._best()
        self._sums = Means()
        self._in_epoch = self._continues_epoch = False
        self._started: float | None = None
        self.state.lr = self.get_lr()

    def should_continue(self) -> bool:
        """Whether there is an epoch left, or the rest of one, and nothing has asked to stop."""
        is_left = self.state.epoch < self.state.total_epochs or self._continues_epoch
        return is_left and not self.state.should_stop

    def begin_epoch(self, epoch: int | None = None, total_batches: int = 0) -> int:
        """Begin an epoch, the next one unless it is named, and set the learning rate.

        The cosine falls step by step if `total_batches` is known, else epoch by epoch. A training
        that was not resumed does not begin in a folder that holds checkpoints: AlreadyExists.
        One that was resumed within an epoch goes on with it, after `state.batch` batches: another
        epoch before it raises RefusedState.
        """
        state, total_batches = self.state, integer("total_batches", total_batches)
        epoch = None if epoch is None else integer("epoch", epoch)
        if self._continues_epoch and epoch not in (None, state.epoch):
            raise RefusedState(
                f"epoch {state.epoch} was resumed after {state.batch} batches: begin it first"
            )
        if self._folder is not None and not self._resumed and state.epoch == 0:
            refuse_used(self._folder)
        self._started = time.monotonic() if self._started is None else self._started
        if self._continues_epoch:
            state.total_batches = total_batches or state.total_batches
        else:
            state.epoch = state.epoch + 1 if epoch is None else epoch
            state.batch = 0
            state.total_batches = total_batches
            self._best_before = self._best()
            self._sums = Means()
        self._in_epoch, self._continues_epoch = True, False
        self._set_rate()
        return state.epoch

    def record_batch(
        self,
        loss: Any,
        accuracy: Any = None,
        batch_time_ms: float | None = None,
        *,
        correct: Any = None,
        count: int | None = None,
    ) -> None:
        """Count a step, and set the learning rate of the next one.

        Accuracy is a fraction; or give how many samples were `correct`, of `count` (the batch
        size unless told). Tensors will do; the original's time of the batch is not needed.
        """
        size = self.config.batch_size if count is None else integer("count", count)
        loss = number("loss", loss)
        if accuracy is None and correct is not None:
            accuracy = number("correct", correct) / max(size, 1)
        accuracy = None if accuracy is None else number("accuracy", accuracy)
        state = self.state
        state.batch += 1
        state.global_step += 1
        self._sums.add(loss, accuracy, size)
        state.train_loss, state.train_acc = self._sums.loss, self._sums.accuracy
        self._set_rate()

    def end_epoch(
        self, val_loss: Any, val_acc: Any = None, epoch_time_sec: float | None = None
    ) -> list[Path]:
        """End an epoch: note whether it is the best so far, and save; gives the files written.

        It is the best if its accuracy is greater than that of all before it, even where the
        caller has put it into `state` already; nan is never. With `best_by="loss"` the loss must
        be less, and no accuracy is needed: it is nan then. `best.tenzor` is written first, so
        that whoever resumes from `epoch_<n>.tenzor` has both.
        """
        state, by_loss = self.state, self.config.best_by == "loss"
        loss = number("val_loss", val_loss)
        accuracy = math.nan if by_loss and val_acc is None else number("val_acc", val_acc)
        state.val_loss, state.val_acc, self._in_epoch = loss, accuracy, False
        is_best = (-loss if by_loss else accuracy) > self._best_before
        if is_best:
            state.best_val_acc = state.val_acc
            state.best_val_loss = state.val_loss
            state.best_epoch = state.epoch
        state.epochs_without_best = 0 if is_best else state.epochs_without_best + 1
        patience = self.config.early_stopping_patience
        state.should_stop = state.should_stop or 0 < patience <= state.epochs_without_best
        figures = (getattr(state, each.name) for each in fields(EpochStats))
        self.history.append(EpochStats(*figures))
        return self._save_epoch(is_best)

    def _save_epoch(self, is_best: bool) -> list[Path]:
        if self._folder is None:
            return []
        written = [self._folder / BEST] if is_best else []
        every = self.config.checkpoint_every
        if every and (self.state.epoch % every == 0 or not self.should_continue()):
            written.append(epoch_file(self._folder, self.state.epoch))
        for path in written:
            self.save_checkpoint(path)
        return written

    def save_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Save everything that a resumed training needs, after an epoch or within it.

        Raises RefusedState within an epoch whose number of batches is not known: whether all of
        them are done decides where a resumed training goes on.
        """
        state = self.state
        # A loader that has handed out its last batch is in its epoch until the loop sees the end.
        is_loading = any(map(is_in_epoch, self.extra.values()))
        if self._in_epoch and not (state.total_batches or is_loading):
            raise RefusedState(
                f"epoch {state.epoch} has not ended, and how many batches it has is not known: "
                "give begin_epoch(total_batches=…), or save after end_epoch"
            )
        is_within = self._in_epoch and (is_loading or state.batch < state.total_batches)
        metadata = CheckpointMetadata(
            epoch=state.epoch,
            global_step=state.global_step,
            best_val_loss=state.best_val_loss,
            best_val_acc=state.best_val_acc,
            best_epoch=state.best_epoch,
            learning_rate=state.lr,
            model_name=self.config.model_name,
        )
        history, epoch = [*map(_plain, self.history)], self._sums if is_within else None
        extra = {
            "trainer": asdict(Kept(_plain(state), self._bases, history, epoch)),
            "objects": {name: each.state_dict() for name, each in self.extra.items()},
            "random": randomness.capture(),
        }
        Checkpoint.save(path, self.model, self.optimizer, metadata, extra=extra)

    def resume(self, source: str | os.PathLike[str] | Checkpoint) -> list[str]:
        """Go on from a checkpoint, bit for bit; gives sentences on what keeps it from being exact.

        Weights, optimizer, `extra`, counters and the random states of Python, NumPy and torch
        are put back. All is compared first: StateMismatch names what differs.
        """
        if not isinstance(source, Checkpoint):
            with Checkpoint.load(source) as loaded:
                return self.resume(loaded)
        plans: list[Callable[[], Any]] = [source.plan_weights(self.model)]
        if self.optimizer is not None:
            plans.append(source.plan_optimizer(self.optimizer))
        saved = source.extra
        objects, random = saved.get("objects", {}), saved.get("random")
        notes = [] if random else ["the checkpoint has no random states"]
        if not isinstance(objects, dict) or objects.keys() != self.extra.keys():
            raise StateMismatch(
                f"extra: {sorted(map(str, objects))} was saved, {sorted(self.extra)} is given; "
                "nothing was changed"
            )
        if "trainer" in saved:
            kept = read_kept(saved["trainer"])
        else:
            kept = kept_by_metadata(source.metadata, self._bases)
            notes.append("it was not saved by a Trainer: only its metadata is known")
        if len(kept.bases) != len(self._bases):
            raise StateMismatch(
                f"{len(kept.bases)} learning rates were saved, {len(self._bases)} are given; "
                "nothing was changed"
            )
        if kept.epoch is not None and not any(map(is_loader, self.extra.values())):
            notes.append(
                f"it was saved within epoch {kept.state.epoch}: the loop has to skip the first "
                f"{kept.state.batch} batches, for no loader in extra= does"
            )
        for put_back in plans:
            put_back()
        for name, each in self.extra.items():
            each.load_state_dict(objects[name])
        self._take(kept)
        if random:
            notes += randomness.restore(random)
        return notes

    def _take(self, kept: Kept) -> None:
        self.state, self.history = kept.state, list(kept.history)
        self.state.total_epochs = self.config.epochs
        patience = self.config.early_stopping_patience
        self.state.should_stop = bool(patience and self.state.epochs_without_best >= patience)
        if self.config.learning_rate is None:
            self._bases = list(kept.bases)
        self._in_epoch = self._continues_epoch = kept.epoch is not None
        self._sums = kept.epoch or Means()
        self._best_before = self._best()
        self._resumed = True

    def get_lr(self) -> float:
        """The learning rate of the next step; that of the first group where they differ."""
        return self._rate(self._bases[0])

    def get_stats(self) -> TrainStats:
        """What the training came to, or has come to so far."""
        state = self.state
        elapsed = 0.0 if self._started is None else time.monotonic() - self._started
        return TrainStats(
            final_epoch=state.epoch,
            final_train_loss=state.train_loss,
            final_train_acc=state.train_acc,
            final_val_loss=state.val_loss,
            final_val_acc=state.val_acc,
            best_val_acc=state.best_val_acc,
            best_epoch=state.best_epoch,
            total_time_sec=elapsed,
            stopped_early=state.should_stop and state.epoch < state.total_epochs,
        )

    def _base_rates(self) -> list[float]:
        groups = getattr(self.optimizer, "param_groups", None) or [{}]
        given = self.config.learning_rate
        return [
            float(group.get("lr", DEFAULT_RATE)) if given is None else given for group in groups
        ]

    def _best(self) -> float:
        """What an epoch must exceed to be the best: an accuracy, or a loss times -1."""
        state = self.state
        return -state.best_val_loss if self.config.best_by == "loss" else state.best_val_acc

    def _rate(self, base: float) -> float:
        return learning_rate(self.config, base, self.state.global_step, self._fraction())

    def _fraction(self) -> float:
        """How much of the training behind the warm-up is done."""
        state, warmup = self.state, self.config.warmup_steps
        total = self.config.total_steps or state.total_epochs * state.total_batches
        if total:
            return max(0, state.global_step - warmup) / max(1, total - warmup)
        return max(0, state.epoch - 1) / max(1, state.total_epochs)

    def _set_rate(self) -> None:
        self.state.lr = self.get_lr()
        for group, base in zip(
            getattr(self.optimizer, "param_groups", []), self._bases, strict=False
        ):
            if hasattr(group["lr"], "fill_"):  # a tensor, which a compiled step refers to
                group["lr"].fill_(self._rate(base))
            else:
                group["lr"] = self._rate(base)
