"""What `standfast train` does, without how it looks."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from standfast.errors import StateMismatch, UnknownFramework
from standfast.tenzor.checkpoint import Checkpoint
from standfast.tenzor.config import TrainerConfig
from standfast.tenzor.digits import DEFAULT, NEEDED, load_digits
from standfast.tenzor.errors import BadConfig
from standfast.tenzor.folder import BEST, checkpoints_in, epoch_file, refuse_used
from standfast.tenzor.recipe import (
    NAME,
    Recipe,
    Settings,
    continued,
    saved_recipe,
    settings_of,
)
from standfast.tenzor.trainer import Trainer


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
