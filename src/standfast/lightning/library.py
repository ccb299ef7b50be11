"""Lightning under the name that the program imports it by: there are two packages of the same."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import BadOption

_NAMES: Final = ("lightning.pytorch", "pytorch_lightning")

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Checkpoint as Checkpoint
    from lightning.pytorch.plugins import CheckpointIO as CheckpointIO
    from lightning.pytorch.plugins import TorchCheckpointIO as TorchCheckpointIO


def _imported() -> ModuleType:
    """The one that the program has imported, else the first that there is."""
    for name in _NAMES:
        if name in sys.modules:
            return sys.modules[name]
    try:
        return import_module(_NAMES[0])
    except ImportError:
        return import_module(_NAMES[1])


library: Final[Any] = _imported()

if not TYPE_CHECKING:
    Checkpoint = library.callbacks.Checkpoint
    CheckpointIO = library.plugins.CheckpointIO
    TorchCheckpointIO = library.plugins.TorchCheckpointIO


def check_trainer(trainer: Any) -> None:
    """Refuse the trainer of the other package, which would not know our classes for its own."""
    if not isinstance(trainer, library.Trainer):
        raise BadOption(
            f"the trainer is one of {type(trainer).__module__.partition('.')[0]}, and Standfast "
            f"found {library.__name__} imported: import the package of your trainer before "
            "standfast.lightning, and no other"
        )


def check_strategy(trainer: Any) -> None:
    """Refuse strategies that spread the state over the ranks: here rank 0 has all of it."""
    strategies = library.strategies
    whole = (strategies.SingleDeviceStrategy, strategies.DDPStrategy)
    if not isinstance(trainer.strategy, whole):
        raise BadOption(
            f"under {type(trainer.strategy).__name__} no rank has all of the state: "
            "StandfastCheckpoint saves under one device and under DDP; keep ModelCheckpoint, or "
            "save the shards with standfast's own run.save"
        )
