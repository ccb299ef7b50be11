"""What a checkpoint says about the training: the eight fields of the original."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self

from standfast.errors import BadField, RefusedMetadata, UnsupportedFile
from standfast.formats.tenzor.file import checkpoint_metadata

COUNTS: Final = ("epoch", "global_step", "best_epoch")
NUMBERS: Final = ("best_val_loss", "best_val_acc", "learning_rate")


@dataclass(frozen=True, slots=True)
class CheckpointMetadata:
    """Where the training stood; without arguments, that of a trainer that has not begun."""

    epoch: int = 0
    global_step: int = 0
    best_val_loss: float = math.inf
    best_val_acc: float = 0.0
    best_epoch: int = 0
    learning_rate: float = 0.0
    model_name: str = "model"
    timestamp: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""

    def __post_init__(self) -> None:
        """Make plain numbers of whatever was given, such as scalars of NumPy or torch."""
        for name in (*COUNTS, "timestamp"):
            object.__setattr__(self, name, _integer(name, getattr(self, name)))
        for name in NUMBERS:
            object.__setattr__(self, name, _number(name, getattr(self, name)))
        if type(self.model_name) is not str:
            raise RefusedMetadata(f"model_name: expected text, found {self.model_name!r}")

    def text(self) -> bytes:
        """The fields as the original writes them, its rounding included."""
        return checkpoint_metadata(**asdict(self))

    def exact(self) -> dict[str, Any]:
        """The fields as they are."""
        return asdict(self)

    @classmethod
    def from_members(cls, members: Mapping[str, Any]) -> Self:
        """The fields out of a file; a number that was not finite, and so is null, is nan."""
        names = [each.name for each in fields(cls)]
        missing = [name for name in names if name not in members]
        if missing:
            raise UnsupportedFile(
                f"no training checkpoint: its metadata has no {', '.join(missing)}; "
                "standfast.load reads any file of tensors"
            )
        values = {name: members[name] for name in names}
        for name in NUMBERS:
            values[name] = math.nan if values[name] is None else values[name]
        try:
            return cls(**values)
        except RefusedMetadata as error:
            raise BadField(f"metadata key {error}") from error


def _integer(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError as error:
        raise RefusedMetadata(f"{name}: expected an integer, found {value!r}") from error
    if name in COUNTS and number < 0:
        raise RefusedMetadata(f"{name}: expected 0 or more, found {number}")
    return number


def _number(name: str, value: Any) -> float:
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RefusedMetadata(f"{name}: expected a number, found {value!r}") from error
