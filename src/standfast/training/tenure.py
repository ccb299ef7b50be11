"""A run while a Checkpointer saves into it: it alone in its process, and its past stays."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from standfast.errors import RunBusy, StandfastError
from standfast.store import Run
from standfast.store.backends.backend import Lock
from standfast.store.retention.budgets import after_save
from standfast.store.retention.pins import pin


class Tenure:
    """The time in which a Checkpointer saves into a run."""

    def __init__(self, run: Run, commits: bool = True, is_new: bool = False) -> None:
        """Of several ranks, only the one that `commits` takes the run and deletes from it.

        A run that `is_new` was made for this, as far as the one who made it knows.
        """
        self._run = run
        self._is_new = is_new
        self._commits = commits
        self._pin: Lock | None = None
        """Keeps the checkpoint that the run came from."""
        self._is_ours = False

    def take(self) -> None:
        """Take the run; raises RunBusy if another Checkpointer, or another process, has it."""
        if not self._commits:
            return
        if self._key in _taken:
            raise RunBusy(
                f"run {self._run.hash}: another Checkpointer of this process saves into it"
            )
        _taken.add(self._key)
        self._is_ours = True
        self._run.take()

    @property
    def _key(self) -> tuple[str, str]:
        return self._run.store.url, self._run.hash

    def came_from(self, ref: str) -> None:
        """Keep the checkpoint that the run goes on from, `RUN@STEP`, until it has ended."""
        if not self._commits:
            return
        run, _, step = ref.partition("@")
        self._pin = pin(self._run.store.backend, run, int(step))

    def forget_the_past(self, say: Callable[[str], None]) -> None:
        """Delete what is not kept, now that all metrics are in and the past is not needed."""
        self._unpin()
        if self._commits and self._run.is_limited():
            for problem in after_save(self._run.store, self._run.hash).problems:
                say(f"old checkpoints: {problem}")

    def abandon(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End before anything was saved: a run that was made for nothing is deleted."""
        try:
            if self._is_ours and self._is_new:
                self._run.delete_empty()
        except StandfastError as failure:  # the run stays, and why it all failed counts
            if error is not None:
                error.add_note(f"besides, run {self._run.hash} could not be deleted: {failure}")
        finally:
            self.end()

    def end(self) -> None:
        """Let others have the run."""
        self._unpin()
        if self._is_ours:
            self._run.close()
            _taken.discard(self._key)
            self._is_ours = False

    def _unpin(self) -> None:
        if self._pin is not None:
            self._pin.release()
            self._pin = None


_taken: set[tuple[str, str]] = set()
"""The runs that Checkpointers of this process save into."""
