"""Saves, deletions and marks of one run keep out of each other's way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from standfast.errors import RunBusy
from standfast.store.backends.backend import Backend

PATIENCE: Final = 600.0
"""How many seconds one waits for another, who may be in the middle of a long save."""


@contextmanager
def change_of(backend: Backend, run: str, wait: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of those who add to a run or delete from it, for a moment."""
    lock = backend.lock(f"{run}.change", wait)
    if lock is None:
        raise RunBusy(f"run {run}: {backend.holder(f'{run}.change')} is changing it; try again")
    with lock:
        yield
