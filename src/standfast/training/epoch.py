"""The epoch that a loop is in, and whether anybody knows how far it is."""

from __future__ import annotations

from typing import Any

from standfast.training import loaders
from standfast.training.state import TrainingState


class Epoch:
    """The epoch that was handed out last."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._is_over = True
        self._positions: list[Any] = []
        """Where the loaders were when it was handed out."""
        self.number: int | None = None
        """From 1; None if none was handed out."""
        self.next = 1
        """The one to hand out next."""

    def begin(self, number: int) -> bool:
        """It is handed out; true if what is handed out is the rest of it."""
        self.number, self._is_over = number, False
        self._positions = loaders.positions(self._state)
        return loaders.in_epoch(self._state)

    def end(self) -> None:
        """Its body is done."""
        assert self.number is not None
        self._is_over, self.next = True, self.number + 1

    def is_midway(self) -> bool:
        """Whether nobody knows how far it is: no loader of the state has moved in it."""
        return not self._is_over and loaders.positions(self._state) == self._positions
