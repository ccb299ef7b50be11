"""The helper that a run has, if it can have one."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Sequence

from standfast.files.staging.staging import SharedStaging
from standfast.store.backends.address import is_shared
from standfast.store.run import Run
from standfast.training.background.process import HelperProcess


class Helpers:
    """Starts a helper ahead of its first job, and another one when it has died.

    All calls but `take_notice` come from one thread, which lives as long as the helper.
    """

    def __init__(self, run: Run, stagings: Sequence[SharedStaging]) -> None:
        self._run = run
        self._stagings = stagings
        self._possible = is_shared(run.store.backend)
        self._notice: str | None = None
        self.current: HelperProcess | None = None
        self.ready_at = math.inf
        """When the last one was ready for its first job, or it was known that there is none."""

    def start(self) -> None:
        """Start a helper, which takes its time to be ready; where there can be none, do nothing."""
        if not self._possible:
            return
        self.end()
        store, run = self._run.store.url, self._run.hash
        try:
            stagings = [staging.fileno() for staging in self._stagings]
            self.current = HelperProcess.start(store, run, stagings)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            self._do_without(str(error))

    def ready(self) -> HelperProcess | None:
        """A helper that can be given a job; None if there can be none."""
        if self.current is not None and self.current.is_ready and self.current.is_running():
            return self.current
        if self._possible or self.ready_at == math.inf:
            if self.current is None or not self.current.is_running():
                self.start()
            if self.current is not None and not self.current.wait_until_ready():
                self._do_without(f"it {self.current.how_it_ended()}")
            self.ready_at = time.perf_counter()
        return self.current

    def _do_without(self, why: str) -> None:
        self._possible, self.current = False, None
        self._notice = (
            f"the helper process that writes checkpoints cannot be started ({why}): a thread "
            "writes them, which slows the loop down"
        )

    def take_notice(self) -> str | None:
        """What the user should be warned of, once."""
        notice, self._notice = self._notice, None
        return notice

    def end(self) -> None:
        """End the helper, if there is one."""
        if self.current is not None:
            self.current.end()
            self.current = None
