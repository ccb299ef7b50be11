"""What `standfast train` was asked for, and what a resumed training may change of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from standfast.errors import BadField, StateMismatch, UnsupportedFile
from standfast.tenzor.checkpoint import Checkpoint
from standfast.tenzor.config import SCHEDULERS
from standfast.tenzor.errors import BadConfig

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
        f"{flag(name)} was {getattr(saved, name)} and is now {value}"
        for name, value in changed.items()
    ]
    if "epochs" in changed and saved.scheduler == "cosine":
        notes.append(
            f"the cosine, which was to end after {saved.epochs} epochs, ends after "
            f"{settings.epochs}: the learning rate goes on from there"
        )
    return settings, notes
