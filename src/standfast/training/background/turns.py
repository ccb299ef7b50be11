"""Turns at the interpreter, for a thread that needs it for moments only."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SHORT: Final = 0.0005
"""Seconds. By default a thread that lets go of the GIL may wait for 5 ms to have it back."""

_guard = threading.Lock()
_users = 0
_before = 0.0


@contextmanager
def short_turns() -> Iterator[None]:
    """Meanwhile, let no thread keep others from the GIL for long; then as it was before."""
    global _users, _before
    with _guard:
        if not _users:
            _before = sys.getswitchinterval()
            if _before > _SHORT:
                sys.setswitchinterval(_SHORT)
        _users += 1
    try:
        yield
    finally:
        with _guard:
            _users -= 1
            if not _users:
                _restore()


def _restore() -> None:
    if sys.getswitchinterval() == _SHORT:  # else somebody has chosen another one meanwhile
        sys.setswitchinterval(_before)


def _forget() -> None:
    """In a forked child, which has none of the threads that this is for."""
    global _guard, _users
    _guard = threading.Lock()
    if _users:
        _users = 0
        _restore()


os.register_at_fork(after_in_child=_forget)
