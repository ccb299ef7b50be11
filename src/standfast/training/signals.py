"""Signals that ask a program to end: the loop saves and stops, a second one ends it at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, Final

_ASKING: Final = (signal.SIGTERM, signal.SIGUSR1)


class Preemption:
    """Notes the first signal that asks to end, and lets the handlers that were there have it too.

    Handlers belong to the main thread: elsewhere, and for what a program ignores, it does nothing.
    """

    def __init__(self) -> None:
        self.signal: str | None = None
        """The name of the signal that came, if one did."""
        self.exit_code = 0
        """What a shell gives for a program that this signal ended."""
        self._before: dict[int, Any] = {}
        self._process = os.getpid()

    def watch(self) -> None:
        """Take the signals over."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _ASKING:
            before = signal.getsignal(number)
            # None: set by something else than Python, which could not be put back.
            if before is not None and before is not signal.SIG_IGN:
                self._before[number] = before
                signal.signal(number, self._asked)

    def unwatch(self, obeyed: bool) -> None:
        """Put the handlers back that were there before, where they are still ours.

        A signal that came too late for a `step` to obey it has the effect now that it had without
        us; a handler of the program's own has had it already.
        """
        if threading.current_thread() is threading.main_thread():
            for number, before in self._before.items():
                if signal.getsignal(number) == self._asked:
                    signal.signal(number, before)
                late = self.signal == signal.Signals(number).name and not obeyed
                if late and before is signal.SIG_DFL:
                    os.kill(os.getpid(), number)
        self._before.clear()

    def _asked(self, number: int, frame: FrameType | None) -> None:
        before = self._before.get(number)
        if os.getpid() != self._process:  # a forked child, such as a worker that is being ended
            signal.signal(number, before)
            if callable(before):
                before(number, frame)
            else:
                os.kill(os.getpid(), number)
            return
        if self.signal is not None:  # the second one: do as if nobody had watched
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self.signal = signal.Signals(number).name
        self.exit_code = 128 + number
        if callable(before):
            before(number, frame)
