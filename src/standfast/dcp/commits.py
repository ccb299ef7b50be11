"""The coordinator's side of a save by DCP: it takes the run, and commits what all have written."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

import msgspec
from torch.distributed.checkpoint.metadata import Metadata

from standfast.dcp.items import NO_OWN, Handed
from standfast.dcp.join import join
from standfast.dcp.runs import Where
from standfast.parallel.failures import Failure, raise_failures
from standfast.store.run import Run
from standfast.store.save.changing import change_of
from standfast.store.save.planning import Plan
from standfast.store.save.saving import Commit, Task, Wanted
from standfast.store.schema.decoder import decode
from standfast.store.schema.record import Head, Record

_NO_PLAN: Final = Plan(NO_OWN, (), [], ())
"""What is committed is planned by no rank alone."""


class Told(msgspec.Struct, frozen=True):
    """What a rank says when it has written, or has not."""

    handed: Handed | None
    failure: Failure | None


class Attempt:
    """One save: the run is taken when it is made, and let go of when it is closed."""

    def __init__(self, where: Where, wanted: Callable[[Run], Wanted]) -> None:
        self.run: Final = where.made()
        self._is_ours = where.is_ours
        self._thread = threading.current_thread()
        self._assembler = self.run.assembler()
        self._changes = ExitStack()
        try:
            self._wanted = wanted(self.run)
            for other in [*_open]:
                if other.run.hash == self.run.hash and other.is_abandoned():
                    other.close()
            self.run.take()
            self._changes.enter_context(change_of(self.run.store.backend, self.run.hash))
            _open.add(self)
            self._replaces = self._assembler.begin(self._wanted)
        except BaseException:
            self.close()
            raise

    def is_abandoned(self) -> bool:
        """Whether nobody will finish it: all of a save is done by one thread.

        DCP does not tell when a planner fails, or the other ranks are lost.
        """
        return self._thread is threading.current_thread() or not self._thread.is_alive()

    def commit(self, metadata: Metadata, told: Sequence[Told]) -> Head:
        """Commit what all ranks have handed over, the coordinator's first, or raise what failed.

        What was placed for a checkpoint that does not come to be is deleted.
        """

        def assemble(task: Task, commit: Commit) -> Head:
            with self._changes:
                return self._assembled(metadata, told, task, commit).head

        head = self.run.commit(_NO_PLAN, self._wanted, assemble)
        self.run.tidy()
        return head

    def _assembled(
        self, metadata: Metadata, told: Sequence[Told], task: Task, commit: Commit
    ) -> Record:
        assembler = self._assembler
        handed = [each.handed for each in told if each.handed is not None]
        placed = [name for each in handed for name in each.share.placed]
        if len(handed) < len(told):
            assembler.take_back(placed)
            raise_failures([each.failure for each in told], None)
        records = [decode(each.share.record, self.run.hash, self._wanted.step) for each in handed]
        with assembler.taking_back(records[0].head, placed):
            record = join(metadata, handed, records)
            assembler.confirm(record, commit, self._replaces)
        new = {name for each in handed for name in each.share.new}
        assembler.tidy(record, new, self._replaces)
        return record

    def close(self) -> None:
        """Let others change the run, and write into it, unless the program has opened it itself."""
        _open.discard(self)
        self._changes.close()
        if self._is_ours:
            self.run.close()


_open: Final[weakref.WeakSet[Attempt]] = weakref.WeakSet()
"""Those of this process that hold a run."""
