"""Whether what lists show has changed: a short text of it, and those who wait for another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from anyio import to_thread
from blake3 import blake3

from standfast.errors import FileError
from standfast.store import Store
from standfast.store.backends.backend import Backend, Version
from standfast.store.schema import names

LONGEST: Final = 25.0
"""Nobody waits for more seconds: what stands between may take a silent connection for dead."""
GONE: Final = "gone"
"""The state of a store that is not there."""
_PAUSE: Final = 1.0
_PAUSE_FAR: Final = 20.0
"""So many seconds pass between two looks at a store on this machine, and at one elsewhere."""
_TICK: Final = 0.25
_SETTLED: Final = 2_000_000_000
_LOCKS: Final = ".standfast/locks"
_LOCK: Final = ".lock"


class Watch:
    """Looks at a store on behalf of all who wait; as long as nobody does, it does nothing."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pause = _PAUSE if store.backend.path(names.MODELS) else _PAUSE_FAR
        self._state = ""
        self._looked = -self._pause
        self._is_looking = False
        self._has_ended = False

    def end(self) -> None:
        """Let nobody wait any more."""
        self._has_ended = True

    def saw(self, state: str) -> None:
        """Somebody has looked by himself: who brings this state is to wait for another."""
        self._state, self._looked = state, time.monotonic()

    async def changed(self, known: str, seconds: float) -> None:
        """Return when the state is another than the known one, or after so many seconds."""
        end = time.monotonic() + min(max(seconds, 0.0), LONGEST)
        while await self._look() in ("", known) and not self._has_ended:
            left = end - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(min(_TICK, left))

    async def _look(self) -> str:
        """The state; one of those who wait looks for all."""
        if self._is_looking or time.monotonic() - self._looked < self._pause:
            return self._state
        self._is_looking = True
        try:
            self._state = await to_thread.run_sync(state_of, self._store)
            self._looked = time.monotonic()
        finally:
            self._is_looking = False
        return self._state


def state_of(store: Store) -> str:
    """A text that is another one whenever what lists show has changed.

    The versions of folders are as coarse as the disk's clock. One that is young is told apart from
    the same one later, so that who has seen it asks once more when it has settled.
    """
    try:
        now = time.time_ns()
        folders = sorted(store.backend.folders(names.MODELS).items())
        if not folders and store.backend.version(names.MODELS) is None:
            return GONE
        young = [run for run, version in folders if _is_young(version, now)]
        told = (folders, young, sorted(noted(store.backend)))
    except FileError:
        return GONE
    return blake3(repr(told).encode()).hexdigest(12)


def _is_young(version: Version, now: int) -> bool:
    return version[0] > now - _SETTLED


def live(backend: Backend, runs: Collection[str]) -> set[str]:
    """Those of some runs that somebody writes into now."""
    if backend.path(names.MODELS) is None:  # then one question is cheaper than many
        with suppress(FileError):
            return set(backend.locked("")).intersection(runs)
        return set()
    found = set()
    for run in noted(backend).intersection(runs):
        with suppress(FileError):
            if run in backend.locked(run):  # a process that was killed leaves its name as well
                found.add(run)
    return found


def noted(backend: Backend) -> set[str]:
    """The runs in whose locks somebody stands as their holder, whether that lives or not."""
    with suppress(FileError):
        sizes = backend.sizes(_LOCKS)
        locks = (name.removesuffix(_LOCK) for name, size in sizes.items() if size)
        return {name for name in locks if names.is_run(name)}
    return set()
