"""Copies of what lies in the memory of the host, by the caller and by threads that come to help."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from standfast.files.digests import batches_of, worker_count
from standfast.tensors import Source
from standfast.tensors.sources import Bytes

_MOST_THREADS: Final = 4
"""More of them do not make memory any faster."""
_FEW: Final = 8 << 20
"""Less than this is copied by the caller alone, before another thread would have started."""


class HostCopies:
    """One copy of all sources; who makes it ends only when no thread reads them any more."""

    def __init__(self, sources: Sequence[Source], targets: Sequence[Bytes]) -> None:
        self._sources = sources
        self._targets = targets
        self._work = iter(list(batches_of(sources)))
        self._failed: list[BaseException] = []
        self._changed = threading.Condition()
        self._helping = 0
        self._over = False

    def run(self) -> None:
        """Copy everything; when this returns or raises, no thread reads the sources any more."""
        try:
            self._call_help()
            self._copy()
        except BaseException as error:
            self._failed.append(error)
        self._drain()
        if self._failed:
            raise self._failed[0]

    def _call_help(self) -> None:
        large = sum(target.size for target in self._targets) >= _FEW
        for _ in range(min(_MOST_THREADS, worker_count()) - 1 if large else 0):
            try:
                threading.Thread(target=self._help, name="standfast-copy", daemon=True).start()
            except RuntimeError:  # no more threads can be had: then with fewer
                return

    def _help(self) -> None:
        with self._changed:
            if self._over:  # too late
                return
            self._helping += 1
        try:
            self._copy()
        except BaseException as error:
            self._failed.append(error)
        finally:
            with self._changed:
                self._helping -= 1
                self._changed.notify_all()

    def _copy(self) -> None:
        for batch in self._work:
            for tensor, start, stop in batch:
                if self._failed:
                    return
                self._sources[tensor].copy_to(self._targets[tensor][start:stop], start)

    def _drain(self) -> None:
        """Wait until no thread copies any more, however often the user presses Ctrl-C."""
        while True:
            try:
                with self._changed:
                    self._over = True
                    self._changed.wait_for(lambda: not self._helping)
                return
            except BaseException as error:  # also what a handler of signals raises
                self._failed.append(error)
