"""Waiting for a server: Ctrl-C and other signals are heard meanwhile, and who waits is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

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
    results: list[Result] = []
    errors: list[BaseException] = []
    is_done = threading.Event()

    def act() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)
        finally:
            is_done.set()

    try:
        threading.Thread(target=act, name="standfast-request", daemon=True).start()
    except RuntimeError:  # at the very end of the process there are no new threads
        return action()
    if not is_done.wait(_SILENCE) and tell_of_silence is not None:
        tell_of_silence(place)
    is_done.wait()
    if errors:
        raise errors[0]
    return results[0]
