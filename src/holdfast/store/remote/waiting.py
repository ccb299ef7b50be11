"""Waiting for a server so that Ctrl-C and other signals are heard meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def heard(action: Callable[[], Result]) -> Result:
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
        threading.Thread(target=act, name="holdfast-request", daemon=True).start()
    except RuntimeError:  # at the very end of the process there are no new threads
        return action()
    is_done.wait()
    if errors:
        raise errors[0]
    return results[0]
