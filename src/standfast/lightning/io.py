"""The plugin through which ModelCheckpoint, and trainer.save_checkpoint, write into a store."""

from __future__ import annotations

import itertools
import os
import pickle
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from standfast.errors import BadOption, Protected, RefNotFound, RefusedPickle, RunBusy
from standfast.lightning.library import TorchCheckpointIO
from standfast.lightning.pointers import (
    Pointer,
    pointer_before,
    pointer_to,
    read_pointer,
    write_pointer,
)
from standfast.lightning.references import is_reference, load_checkpoint, loaded
from standfast.lightning.run import save_state
from standfast.store import Run, Store
from standfast.training.beginning import program_name, store_of


class StandfastIO(TorchCheckpointIO):
    """Keeps checkpoints in a store; at their paths are small files that say where.

    >>> trainer = Trainer(plugins=[StandfastIO("experiments")], callbacks=[ModelCheckpoint()])
    """

    def __init__(self, store: str | os.PathLike[str] | Store, name: str | None = None) -> None:
        """The checkpoints are those of the run `name`, which is that of the program if not given.

        A second one of the same step, as `last.ckpt` is, belongs to the next trial of that run.
        """
        self.store = store_of(store)
        self._name = program_name() if name is None else name
        self._runs: dict[str, Run] = {}
        """The runs that were saved into, by their hashes: they stay taken."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Save into the store, then let the file at the path say where.

        What the file led to before is deleted after that.
        """
        if storage_options is not None:
            raise BadOption("StandfastIO takes no storage_options")
        if is_reference(path):
            raise BadOption(f"{path} is a checkpoint of a store, which is never written over")
        before = pointer_before(path)
        step = checkpoint.get("global_step", 0)
        saved = save_state(self._free_run(step), step, checkpoint, epoch=checkpoint.get("epoch"))
        write_pointer(path, pointer_to(saved, self.store))
        if before is not None:
            self._delete(before)

    def load_checkpoint(
        self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """What a file, or a reference, leads to, verified; or what an ordinary file holds.

        Of ordinary files no code is run, unless `weights_only=False` says that they are trusted.
        """
        device = map_location if isinstance(map_location, str | torch.device) else None
        if is_reference(path):
            return load_checkpoint(path, device)
        pointer = read_pointer(path)
        if pointer is not None:
            return loaded(pointer.checkpoint(self.store), device)
        if weights_only is False:
            return super().load_checkpoint(path, map_location, weights_only)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what it cannot load, it refuses
                return super().load_checkpoint(path, map_location, True)
        except pickle.UnpicklingError as error:
            raise RefusedPickle(
                f"{path} holds more than tensors and plain values, and loading it would run code "
                "out of it: if you trust it, pass weights_only=False to trainer.fit"
            ) from error

    def remove_checkpoint(self, path: Any) -> None:
        """Remove the file, and what it leads to, unless that has a tag."""
        try:
            pointer = None if is_reference(path) else read_pointer(path)
        except FileNotFoundError:
            return
        if pointer is None:
            super().remove_checkpoint(path)
            return
        self._delete(pointer)
        Path(path).unlink(missing_ok=True)  # last: what could not be deleted is still led to

    def teardown(self) -> None:
        """Let others have the runs."""
        while self._runs:
            self._runs.popitem()[1].close()

    def _free_run(self, step: int) -> Run:
        """The first trial of the run that has no checkpoint of this step."""
        for trial in itertools.count(1):
            run = self._taken(self.store.run(self._name, trial=trial))
            if self.store.find(run.hash, step) is None:
                return run
        raise AssertionError("there is always another trial")

    def _taken(self, run: Run) -> Run:
        known = self._runs.setdefault(run.hash, run)
        known.take()
        return known

    def _delete(self, pointer: Pointer) -> None:
        try:
            pointer.checkpoint(self.store)
        except RefNotFound:
            return  # deleted by somebody, or never in this store
        run = self._runs.get(pointer.run) or self.store.open_run(pointer.run)
        with suppress(Protected, RunBusy):  # it has a tag, or is in use
            if self._has_others(pointer):
                run.delete(pointer.step, why="Lightning removed it")
                return
            run = self._taken(run)  # so that no other process adds a checkpoint now
            if not self._has_others(pointer):
                run.delete_all()
                self._runs.pop(pointer.run, None)

    def _has_others(self, pointer: Pointer) -> bool:
        """Whether its run has other checkpoints, also such that cannot be read now."""
        self.store.index.refresh()
        return any(step != pointer.step for step in self.store.index.steps(pointer.run))
