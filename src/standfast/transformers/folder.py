"""A checkpoint as the folder that a Trainer resumes from, made for one process and gone with it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers.trainer import OPTIMIZER_NAME, SCALER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from standfast.errors import BadField, BadName, NotEnoughSpace, StateMismatch, shortened
from standfast.files.atomic import as_write_failed
from standfast.store import Checkpoint, Store
from standfast.store.load.loading import saved_tree
from standfast.tensorfile.save import save
from standfast.transformers.state import (
    FILES,
    MODEL,
    OPTIMIZER,
    RANKS,
    SCALER,
    SCHEDULER,
    TRAINER,
)

LOCK: Final = "lock"
OWN: Final = "standfast.json"
"""What a Trainer has no file for: the losses that are not logged yet."""
_TORCH_FILES: Final = {OPTIMIZER: OPTIMIZER_NAME, SCHEDULER: SCHEDULER_NAME, SCALER: SCALER_NAME}
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_DEEPEST: Final = 3


class Shelter:
    """A folder for folders, which goes when this process closes it, or ends in any way.

    Whoever makes the next one removes those whose process is gone: it no longer holds their lock.
    """

    def __init__(self, store: Store) -> None:
        place = store.backend.cache
        self._place = (place or Path(tempfile.gettempdir())) / "transformers"
        with as_write_failed(self._place):
            self._place.mkdir(parents=True, exist_ok=True)
            self._remove_abandoned()
            self.path: Final = Path(tempfile.mkdtemp(dir=self._place))
            self._lock = _locked(self.path / LOCK, os.O_CREAT)
        self._process = os.getpid()

    def _remove_abandoned(self) -> None:
        for folder in self._place.iterdir():
            lock = None
            with suppress(OSError):  # another process is about to remove it, or to make it
                lock = _locked(folder / LOCK)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)

    def remove(self, folder: Path) -> None:
        """Remove one of the folders in it."""
        shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove it; may be called several times."""
        if self._process == os.getpid() and self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None


def _locked(path: Path, flags: int = 0) -> int | None:
    """A descriptor that holds the lock of a file; None if another process does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def write_folder(checkpoint: Checkpoint, shelter: Path, *, model_only: bool) -> Path:
    """A checkpoint as a folder of its own in the shelter, every byte of it verified.

    It has its name only when all of it is there. Raises a DamagedFile, and leaves nothing then.
    """
    _refuse_what_is_not_whole(checkpoint, model_only)
    with as_write_failed(shelter):
        _check_space(checkpoint, shelter)
        draft = Path(tempfile.mkdtemp(prefix=".new-", dir=shelter))
        try:
            _write_model(checkpoint, draft)
            if not model_only:
                _write_training(checkpoint, draft)
            target = _free(shelter, checkpoint.step)
            draft.rename(target)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    return target


def _refuse_what_is_not_whole(checkpoint: Checkpoint, model_only: bool) -> None:
    saved = _parts(checkpoint)
    missing = ({MODEL, FILES} if model_only else {MODEL, FILES, TRAINER}) - saved
    if missing:
        raise StateMismatch(
            f"{checkpoint.ref} was not saved by a StandfastCallback: it has no "
            f"{' and no '.join(sorted(missing))}"
        )
    dropped = [part for part in checkpoint.head.dropped if not model_only or part == MODEL]
    if dropped:
        raise StateMismatch(
            f"{checkpoint.ref}: its {', '.join(dropped)} was deleted, because the run does not "
            "keep that of old checkpoints; folder(…, model_only=True) gives the model"
        )


def _check_space(checkpoint: Checkpoint, shelter: Path) -> None:
    free = shutil.disk_usage(shelter).free
    if free < checkpoint.nbytes:
        raise NotEnoughSpace(
            errno.ENOSPC,
            f"{shelter}: a folder to resume from takes {checkpoint.nbytes:,} bytes, and {free:,} "
            "are free",
        )


def _free(shelter: Path, step: int) -> Path:
    """A path that nothing is at, called as a Trainer calls its own."""
    target = shelter / f"{PREFIX_CHECKPOINT_DIR}-{step}"
    if not target.exists():
        return target
    return Path(tempfile.mkdtemp(dir=shelter)) / target.name


def _parts(checkpoint: Checkpoint) -> set[Any]:
    saved = saved_tree(checkpoint, None)
    return set(saved) if isinstance(saved, dict) else set()


def _part(checkpoint: Checkpoint, part: str) -> Any:
    """A part of the state, verified, in memory of its own."""
    return checkpoint.state(part=part, mapped=False)


def _write_model(checkpoint: Checkpoint, folder: Path) -> None:
    for name, content in _part(checkpoint, FILES).items():
        path = folder / _checked_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(np.asarray(content, np.uint8).tobytes())
    weights = _part(checkpoint, MODEL)
    if all(isinstance(value, torch.Tensor) for value in weights.values()):
        save(folder / SAFE_WEIGHTS_NAME, weights, {"format": "pt"}, extras=False)
    else:  # a module keeps something else in it, which only torch's file can hold
        torch.save(_loadable(weights), folder / WEIGHTS_NAME)


def _checked_name(name: Any) -> str:
    """The name of a file in the folder; raises BadName for any that could lead elsewhere."""
    parts = name.split("/") if isinstance(name, str) else []
    if not 0 < len(parts) <= _DEEPEST or not all(map(_NAME.fullmatch, parts)):
        raise BadName(f"no file of a model is called {shortened(str(name))!r}")
    if parts[0] in (SAFE_WEIGHTS_NAME, WEIGHTS_NAME):
        raise BadName(f"a file beside the weights is called {parts[0]!r}, as these are")
    return str(name)


def _write_training(checkpoint: Checkpoint, folder: Path) -> None:
    saved = _parts(checkpoint)
    for part, file in _TORCH_FILES.items():
        if part in saved:
            torch.save(_loadable(_part(checkpoint, part)), folder / file)
    trainer = _part(checkpoint, TRAINER)
    ranks = _part(checkpoint, RANKS) if RANKS in saved else []
    try:
        unlogged = [[rank["loss"], rank["last_logged"]] for rank in ranks]
        for number, rank in enumerate(ranks):
            file = "rng_state.pth" if len(ranks) == 1 else f"rng_state_{number}.pth"
            torch.save(_random(rank["random"], distributed=len(ranks) > 1), folder / file)
        text = json.dumps(trainer["state"], indent=2, sort_keys=True)
        (folder / OWN).write_text(json.dumps({"unlogged": unlogged}))
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise BadField(f"{checkpoint.ref}: it holds no state of a Trainer: {error!r}") from error
    (folder / TRAINER_STATE_NAME).write_text(text + "\n", encoding="utf-8")


def _random(states: Mapping[str, Any], distributed: bool) -> dict[str, Any]:
    """Random states in the form that the Trainer puts back, of plain values and tensors alone."""
    python, numpy, torch_states = states["python"], states["numpy"], states["torch"]
    words = numpy["state"]
    random = {
        "python": (python["version"], tuple(python["words"].tolist()), python["gauss"]),
        "numpy": (
            numpy["bit_generator"],
            words["key"].tolist(),
            words["pos"],
            numpy["has_gauss"],
            numpy["gauss"],
        ),
        "cpu": torch_states["cpu"].clone(),
    }
    if "cuda" in torch_states:
        # A process that has one device alone is given the state of that one.
        devices = [state.clone() for state in torch_states["cuda"]]
        random["cuda"] = devices if distributed else devices[0]
    return random


def _loadable(value: Any) -> Any:
    """A tree that `torch.load(weights_only=True)` takes: NumPy's values become torch's."""
    if isinstance(value, dict):
        return type(value)((key, _loadable(member)) for key, member in value.items())
    if isinstance(value, list | tuple):
        return type(value)(map(_loadable, value))
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    return value.item() if isinstance(value, np.generic) else value
