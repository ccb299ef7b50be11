"""What the pages and the API are about: a store, and what may be done with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from anyio import CapacityLimiter

from standfast import __version__
from standfast.store import Store
from standfast.web.changes import Watch, state_of
from standfast.web.curves import Curves

_LIGHT: Final = 64
"""So many answers are worked out at a time, each by a thread."""
_MIDDLE: Final = 8
"""So many of those that read a whole log or record."""
_HEAVY: Final = 3
"""So many of those that read tensors, which take memory."""
_LONG: Final = 2
"""So many of those that may read for minutes: nothing else waits for them."""


class Site:
    """A store that is shown, and what its answers share."""

    def __init__(self, store: Store, *, allow_edit: bool, files: Path | None) -> None:
        self.store: Final = store
        self.allow_edit: Final = allow_edit
        self.files: Final = files
        self.curves: Final = Curves()
        self.watch: Final = Watch(store)
        self.light: Final = CapacityLimiter(_LIGHT)
        self.middle: Final = CapacityLimiter(_MIDDLE)
        self.heavy: Final = CapacityLimiter(_HEAVY)
        self.long: Final = CapacityLimiter(_LONG)
        self.threads: Final = CapacityLimiter(_LIGHT + _MIDDLE + _HEAVY + _LONG)
        self._refreshing: Final = Together(store.index.refresh)

    def refresh(self) -> None:
        """Let the index know what there is now; raises NotAStore if the store is gone."""
        self.store.check_exists()
        self._refreshing()

    def about(self) -> dict[str, Any]:
        """The store, as `/api/v1/store` tells of it."""
        state = state_of(self.store)  # before what it stands for
        self.watch.saw(state)
        self.refresh()
        index = self.store.index
        spans = index.spans().values()
        return {
            "url": self.store.url,
            "version": __version__,
            "runs": len(index.runs()),
            "checkpoints": sum(span.records for span in spans),
            "damaged": sum(span.damaged for span in spans),
            "allow_edit": self.allow_edit,
            "files": None if self.files is None else str(self.files),
            "state": state,
        }


class Together:
    """An action that many threads want done: one does it for all who asked before it began."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._changed = threading.Condition()
        self._begun = 0
        self._done = 0
        self._is_running = False

    def __call__(self) -> None:
        """Return when it was done once since the call."""
        with self._changed:
            wanted = self._begun + 1  # what runs already may have looked too early
            while self._is_running and self._done < wanted:
                self._changed.wait()
            if self._done >= wanted:
                return
            self._begun += 1
            number = self._begun
            self._is_running = True
        try:
            self._action()
        finally:
            with self._changed:
                self._done = number
                self._is_running = False
                self._changed.notify_all()
