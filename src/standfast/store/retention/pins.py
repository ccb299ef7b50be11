"""Checkpoints that are in use: while somebody reads one, or goes on from it, no policy deletes it.

A pin is a lock of its own, and so dies with its process. Where there can be no locks, as in a
store that can only be read, nothing is pinned; who reads has the files open all the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from standfast.errors import StandfastError
from standfast.store.backends.backend import Backend, Lock

_PIN: Final = ".pin."
_ATTEMPTS: Final = 10


def pin(backend: Backend, run: str, step: int) -> Lock | None:
    """Keep a checkpoint from being deleted until the lock is released, if that can be."""
    with suppress(StandfastError):
        for _ in range(_ATTEMPTS):  # who looks whether it is held has it for that moment
            lock = backend.lock(f"{run}{_PIN}{step}.{os.urandom(4).hex()}", passing=True)
            if lock is not None:
                return lock
    return None


@contextmanager
def pinned(backend: Backend, run: str, step: int) -> Iterator[None]:
    """Pin a checkpoint for a while."""
    lock = pin(backend, run, step)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def pinned_steps(backend: Backend, run: str) -> set[int]:
    """The steps of a run that are in use."""
    prefix = f"{run}{_PIN}"
    held = (name.removeprefix(prefix).partition(".")[0] for name in backend.locked(prefix))
    return {int(step) for step in held if step.isdecimal() and len(step) <= 16}
