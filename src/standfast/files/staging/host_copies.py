"""Copies of what lies in the memory of the host, by the caller and by threads that come to help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from standfast.files.digests import batches_of, worker_count
from standfast.files.threads import Threads
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

    def run(self) -> None:
        """Copy everything; when this returns or raises, no thread reads the sources any more."""
        large = sum(target.size for target in self._targets) >= _FEW
        count = min(_MOST_THREADS, worker_count()) - 1 if large else 0
        helping = Threads(count)
        try:
            for _ in range(count):
                helping.submit(self._copy)
            self._copy()
        except BaseException as error:
            self._failed.append(error)
        try:
            helping.drain()
        except BaseException as error:
            self._failed.append(error)
        if self._failed:
            raise self._failed[0]

    def _copy(self) -> None:
        try:
            for batch in self._work:
                for tensor, start, stop in batch:
                    if self._failed:
                        return
                    self._sources[tensor].copy_to(self._targets[tensor][start:stop], start)
        except BaseException as error:
            self._failed.append(error)
