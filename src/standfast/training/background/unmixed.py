"""The proof that copies are of one step: the sums of the state before are those of the copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from standfast.errors import StateChanged
from standfast.files.staging.layout import Copy, Summed, changed
from standfast.files.threads import Threads
from standfast.store.save.planning import Plan
from standfast.store.save.saving import Commit
from standfast.store.schema.record import Head


class Proof:
    """Sums copies up while they are written, for as long as the `with` lasts."""

    def __init__(self, copies: Sequence[Copy], summed: Summed, plan: Plan, step: int) -> None:
        self._plan = plan
        self._step = step
        self._pool = Threads(1)
        self._changed = self._pool.submit(changed, copies, summed)

    def then(self, commit: Commit) -> Commit:
        """Commit only if nothing has changed; raises StateChanged."""

        def proven(head: Head, record: bytes, replace: bool) -> None:
            self.check()
            commit(head, record, replace)

        return proven

    def check(self) -> None:
        """Raise StateChanged if anything has changed."""
        self._refuse(self._changed.result())

    def _refuse(self, numbers: Sequence[int]) -> None:
        if not numbers:
            return
        stored = [tensor.name for tensor in self._plan.tensors if tensor.source]
        more = f" and {len(numbers) - 1:,} more" if len(numbers) > 1 else ""
        raise StateChanged(
            f"step {self._step} was not saved: {stored[numbers[0]]}{more} changed after the save "
            "and before its copy was made, and not in a step of an optimizer in the state"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()
