"""Waiting for a server: Ctrl-C and other signals are heard meanwhile, and who waits is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from standfast.errors import OutOfMemory
from standfast.files.threads import Task, Thread

Result = TypeVar("Result")

_SILENCE: Final = 5.0

tell_of_silence: Callable[[str], None] | None = None
"""Is called with a place that has not answered for some seconds, where somebody looks on."""


def heard(action: Callable[[], Result], place: str) -> Result:
    """What it returns or raises; on the main thread, which alone hears signals, by another one.

    If the wait is interrupted, the action goes on, and nobody learns how it ended.
    """
    if threading.current_thread() is not threading.main_thread():
        return action()
    task = Task(action)
    with suppress(OutOfMemory):  # or at the very end of the process: there are no new threads
        if not Thread(task.attempt).join(_SILENCE) and tell_of_silence is not None:
            tell_of_silence(place)
    return task.result()
