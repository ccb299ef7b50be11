"""What `standfast train` does, without how it looks."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import msgspec
import numpy as np

from standfast.errors import BadField, StateMismatch, UnknownFramework, UnsupportedFile
from standfast.tenzor.checkpoint import Checkpoint
from standfast.tenzor.config import SCHEDULERS, TrainerConfig
from standfast.tenzor.digits import DEFAULT, NEEDED, load_digits
from standfast.tenzor.errors import BadConfig
from standfast.tenzor.folder import BEST, checkpoints_in, epoch_file, refuse_used
from standfast.tenzor.trainer import Trainer

NAME: Final = "train"
"""The recipe's name among what a trainer saves."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The flags of `standfast train`."""

    epochs: int = 10
    batch_size: int = 64
    lr: float = 0.01
    momentum: float = 0.9
    scheduler: Literal["constant", "step", "cosine"] = "cosine"
    warmup: int = 0
    patience: int = 0
    seed: int = 42
    data_dir: str | None = None
    checkpoint_every: int = 1


FREE: Final = frozenset({"epochs", "patience", "data_dir", "checkpoint_every"})
"""What may change on resuming: the steps up to the checkpoint would have been the same, but for
the cosine's end; of the data their digest must be the same, wherever they lie."""


def flag(name: str) -> str:
    """What a setting is called on the command line."""
    return f"--{name.replace('_', '-')}"


def settings_of(given: Mapping[str, Any]) -> Settings:
    """The settings for the flags that were given, and defaults for the others."""
    return checked(Settings(**given))


def checked(settings: Settings) -> Settings:
    """The settings, if a training can run with them."""
    for name, least in (
        *(("epochs", 1), ("batch_size", 1), ("warmup", 0), ("patience", 0)),
        *(("seed", 0), ("checkpoint_every", 1)),
    ):
        if not least <= getattr(settings, name) < 1 << 63:
            found = getattr(settings, name)
            raise BadConfig(f"{flag(name)}: expected {least} or more, found {found}")
    if not 0 < settings.lr < math.inf:
        raise BadConfig(f"--lr: expected a number above 0, found {settings.lr}")
    if not 0 <= settings.momentum < 1:
        raise BadConfig(
            f"--momentum: expected 0 or more and less than 1, found {settings.momentum}"
        )
    if settings.scheduler not in SCHEDULERS:
        raise BadConfig(
            f"--scheduler: expected one of {', '.join(SCHEDULERS)}, found {settings.scheduler!r}"
        )
    return settings


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything besides the state that decides which bits a training comes to."""

    settings: Settings
    data: str
    """The digest over all samples."""
    torch: str
    """The release of torch."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        tree: dict[str, Any] = msgspec.to_builtins(self)
        return tree

    def load_state_dict(self, tree: Any) -> None:
        """Nothing: whoever resumes has compared the two before."""


def saved_recipe(checkpoint: Checkpoint, path: object) -> Recipe:
    """The recipe that a checkpoint was made by."""
    objects = checkpoint.extra.get("objects")
    if not isinstance(objects, dict) or NAME not in objects:
        raise UnsupportedFile(
            f"{path} was not written by `standfast train`, which cannot continue it: use "
            "Checkpoint.load of standfast.tenzor in a program of your own"
        )
    try:
        recipe = msgspec.convert(objects[NAME], Recipe)
        checked(recipe.settings)
    except (msgspec.ValidationError, BadConfig) as error:
        raise BadField(f"{path}: the saved settings: {error}") from error
    return recipe


def continued(saved: Settings, given: Mapping[str, Any]) -> tuple[Settings, list[str]]:
    """The saved settings with those that were given, and a sentence for each that changes.

    Raises StateMismatch for a change that would give other bits than one long training.
    """
    changed = {name: value for name, value in given.items() if value != getattr(saved, name)}
    fixed = [name for name in changed if name not in FREE]
    if fixed:
        was = ", ".join(f"{flag(name)} {getattr(saved, name)}" for name in fixed)
        now = ", ".join(f"{flag(name)} {changed[name]}" for name in fixed)
        raise StateMismatch(
            f"the checkpoint was trained with {was}; with {now} it would not be continued exactly: "
            "leave that out, or begin a new training"
        )
    settings = checked(msgspec.structs.replace(saved, **changed))
    notes = [
        f"{flag(name)} was {old if old is not None else 'not given'} and is now {value}"
        for name, value in changed.items()
        for old in [getattr(saved, name)]
    ]
    if "epochs" in changed and saved.scheduler == "cosine":
        notes.append(
            f"the cosine, which was to end after {saved.epochs} epochs, ends after "
            f"{settings.epochs}: the learning rate goes on from there"
        )
    return settings, notes


class Watcher(Protocol):
    """Who is told how a training goes."""

    def epoch_began(self) -> None:
        """An epoch began."""
        ...

    def batch_done(self) -> None:
        """A batch was recorded."""
        ...

    def epoch_ended(self, written: list[Path]) -> None:
        """An epoch was validated, and these checkpoints are on the disk."""
        ...


class Program:
    """A training of LeNet-5, ready to run."""

    def __init__(
        self, given: Mapping[str, Any], *, folder: Path | None = None, resume: Path | None = None
    ) -> None:
        """Prepare a training with the flags that were given.

        Checkpoints go into `folder`, or to where the resumed one lies; with neither there are
        none. All that can be refused is refused here, before anything is written.
        """
        self.notes: list[str] = []
        """What the user should know before it begins."""
        self.last = resume
        """The checkpoint of an epoch that was written or read last."""
        self.folder = resume.parent if folder is None and resume is not None else folder
        if resume is None:
            self._prepare(settings_of(given), None)
        else:
            with Checkpoint.load(resume) as checkpoint:
                saved = saved_recipe(checkpoint, resume)
                settings, self.notes = continued(saved.settings, given)
                self._prepare(settings, saved, resume)
                self.notes += self.trainer.resume(checkpoint)
            self._note_replaced()

    def run(self, watcher: Watcher) -> None:
        """Train until the last epoch, or until patience is at its end."""
        samples = self.digits.training
        while self.trainer.should_continue():
            epoch = self.trainer.begin_epoch(total_batches=self.batches)
            watcher.epoch_began()
            # The order depends on seed and epoch alone: there is nothing of it to be saved.
            order = np.random.default_rng([self.settings.seed, epoch]).permutation(
                len(samples.labels)
            )
            self._lenet.train_epoch(self.trainer, samples, order, watcher.batch_done)
            loss, accuracy = self._lenet.validate(self.trainer.model, self.digits.validation)
            written = self.trainer.end_epoch(loss, accuracy)
            self.last = next((path for path in written if path.name != BEST), self.last)
            watcher.epoch_ended(written)

    @property
    def batches(self) -> int:
        """How many an epoch has; samples that do not fill one wait for another epoch."""
        return len(self.digits.training.labels) // self.settings.batch_size

    def _prepare(
        self, settings: Settings, saved: Recipe | None, resume: Path | None = None
    ) -> None:
        self.settings = settings
        if self.folder is not None and not _is_in(resume, self.folder):
            refuse_used(self.folder)
        self._lenet = _lenet()
        self.digits = load_digits(settings.data_dir)
        if self.batches == 0:
            count = len(self.digits.training.labels)
            raise BadConfig(
                f"--batch-size: {settings.batch_size:,} is more than all {count:,} samples"
            )
        recipe = Recipe(settings, self.digits.digest(), str(self._lenet.torch.__version__))
        if saved is not None:
            self._compare(saved, recipe)
        self.trainer = self._trainer(recipe)

    def _compare(self, saved: Recipe, recipe: Recipe) -> None:
        if saved.data != recipe.data:
            raise StateMismatch(
                f"the checkpoint was trained on other data than {self.digits.name}: name the "
                f"folder by --data-dir (it was {saved.settings.data_dir or DEFAULT})"
            )
        if saved.torch != recipe.torch:
            self.notes.append(
                f"torch was {saved.torch} and is now {recipe.torch}: the bits may differ"
            )

    def _trainer(self, recipe: Recipe) -> Trainer:
        settings = self.settings
        self._lenet.make_deterministic()
        model, optimizer = self._lenet.build(settings.seed, settings.lr, settings.momentum)
        config = TrainerConfig(
            epochs=settings.epochs,
            batch_size=settings.batch_size,
            learning_rate=settings.lr,
            scheduler=settings.scheduler,
            warmup_steps=settings.warmup,
            checkpoint_dir=self.folder,
            checkpoint_every=settings.checkpoint_every,
            early_stopping_patience=settings.patience,
            seed=settings.seed,
            model_name="lenet",
        )
        return Trainer(config, model=model, optimizer=optimizer, extra={NAME: recipe})

    def _note_replaced(self) -> None:
        if self.folder is None or not self.trainer.should_continue():
            return
        later = {
            epoch_file(self.folder, n)
            for n in range(self.trainer.state.epoch + 1, self.settings.epochs + 1)
        }
        replaced = [path.name for path in checkpoints_in(self.folder) if path in later]
        if replaced:
            self.notes.append(
                f"these are there already and will be replaced: {', '.join(replaced)}"
            )


def _is_in(file: Path | None, folder: Path) -> bool:
    return file is not None and os.path.realpath(file.parent) == os.path.realpath(folder)


def _lenet() -> Any:
    try:
        return importlib.import_module("standfast.tenzor.lenet")
    except ImportError as error:
        raise UnknownFramework(
            f"training needs torch, which cannot be imported ({error}): {NEEDED}"
        ) from error
