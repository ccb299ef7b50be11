"""Which run of which store DCP writes into or reads from, and which step it means."""

from __future__ import annotations

import os
import re
from typing import Any

from standfast.errors import BadOption, NotAStore, RefNotFound
from standfast.store.run import Run
from standfast.store.schema.run_file import RunFile
from standfast.store.store import Store

Folder = str | os.PathLike[str]


class Where:
    """A store and a run of it, each as it was given; it can be sent to another process."""

    def __init__(self, store: Folder | Store, run: str | Run | RunFile) -> None:
        self.store = store if isinstance(store, Store) else Store(store)
        self._run = run

    @property
    def is_ours(self) -> bool:
        """Whether the run is opened here, so that nobody else will let go of it."""
        return not isinstance(self._run, Run)

    def found(self) -> Run:
        """The run; raises RefNotFound if there is none."""
        if isinstance(self._run, Run):
            return self._run
        if isinstance(self._run, RunFile):
            return Run(self.store, self._run)
        return self.store.find_run(self._run)

    def made(self) -> Run:
        """The run, which is made if there is none of that name."""
        try:
            return self.found()
        except (RefNotFound, NotAStore):
            if not isinstance(self._run, str):
                raise
            return self.store.run(self._run)

    def __reduce__(self) -> tuple[Any, ...]:
        run = self._run.file if isinstance(self._run, Run) else self._run
        place = self.store.place
        if place is None:
            raise BadOption(
                f"{self.store.url} is in this process alone: use async_save without "
                "AsyncCheckpointerType.PROCESS"
            )
        return Where, (place, run)


def step_of(checkpoint_id: Any) -> int:
    """The step that a checkpoint_id ends in: 100, "100" or "outputs/step-100"."""
    text = str(checkpoint_id if isinstance(checkpoint_id, int) else os.fspath(checkpoint_id))
    found = re.search(r"(?:^|[^0-9])([0-9]{1,16})/*$", text)
    if found is None:
        raise BadOption(
            f"checkpoint_id={checkpoint_id!r:.200}: it must end in the number of a step, such as "
            "'step-100'"
        )
    return int(found[1])
