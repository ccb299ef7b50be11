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
            least = 0 if name in COUNTS else -(1 << 63)
            object.__setattr__(self, name, integer(name, getattr(self, name), least))
        for name in NUMBERS:
            object.__setattr__(self, name, number(name, getattr(self, name)))
        check_text("model_name", self.model_name)

    @classmethod
    def of(cls, given: Any) -> Self:
        """The fields as they are, or out of a mapping that has some of them."""
        if isinstance(given, cls):
            return given
        names = [each.name for each in fields(cls)]
        if not isinstance(given, Mapping):
            raise RefusedMetadata(
                f"metadata: expected CheckpointMetadata or a dict, found a {type(given).__name__}"
            )
        if unknown := [key for key in given if key not in names]:
            raise RefusedMetadata(
                f"metadata: there is no field {unknown[0]!r:.80}; the fields are "
                f"{', '.join(names)}, and extra= takes anything else"
            )
        return cls(**given)

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


def integer(name: str, value: Any, least: int = 0) -> int:
    """An integer of 64 bits, whatever its type; RefusedMetadata names what is not one."""
    try:
        found = operator.index(value)
    except TypeError as error:
        raise RefusedMetadata(f"{name}: expected an integer, found {value!r:.80}") from error
    if not least <= found < 1 << 64:
        shown = found if found.bit_length() <= 128 else f"one of {found.bit_length():,} bits"
        raise RefusedMetadata(f"{name}: expected an integer from {least} to 2^64-1, found {shown}")
    return found


def number(name: str, value: Any) -> float:
    """A number, whatever its type; RefusedMetadata names what is not one."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        # Of a tensor that wants gradients, torch would warn.
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise RefusedMetadata(f"{name}: expected a number, found {value!r:.80}") from error


def check_text(name: str, value: Any) -> None:
    """Raise RefusedMetadata for what is not text, or not valid Unicode."""
    try:
        if type(value) is str:
            value.encode()
            return
    except UnicodeEncodeError:
        pass
    raise RefusedMetadata(f"{name}: expected text, found {value!r:.80}")
