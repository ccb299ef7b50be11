"""What is saved without being handed over: the objects that a program registers once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from standfast.errors import BadOption


@dataclass
class Watched:
    """The registered objects; None for those that were not given."""

    model: Any = None
    optimizer: Any = None
    hyperparameters: Any = None
    data_state: Any = None

    def names(self) -> list[str]:
        """Which of them there are."""
        return [field.name for field in fields(self) if getattr(self, field.name) is not None]

    def forget(self) -> None:
        """Register nothing any more."""
        for field in fields(self):
            setattr(self, field.name, None)


watched: Final = Watched()
"""Those of this process."""


def watch(
    *,
    model: Any = None,
    optimizer: Any = None,
    hyperparameters: Any = None,
    data_state: Any = None,
) -> None:
    """Register what the checkpoint system saves; what is not given stays as it was.

    Hyperparameters and data state may be changed in place afterwards: they are looked at again
    whenever a checkpoint is due.
    """
    given = Watched(model, optimizer, hyperparameters, data_state)
    if not given.names():
        raise BadOption(f"watch what? Give one or more of {', '.join(vars(given))}")
    for name in given.names():
        setattr(watched, name, getattr(given, name))
