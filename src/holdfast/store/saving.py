"""The commit: data files, then the record, in an order in which a crash does no harm."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import (
    AlreadyExists,
    DamagedFile,
    HoldfastError,
    MissingData,
    NotEnoughSpace,
    Protected,
    RunBusy,
    StepExists,
    WriteFailed,
)
from holdfast.store import names
from holdfast.store.backend import Backend, Lock
from holdfast.store.changing import change_of
from holdfast.store.extents import columns
from holdfast.store.index import Index
from holdfast.store.known import Known, remember
from holdfast.store.planning import Plan
from holdfast.store.reading import Data, read_record
from holdfast.store.record import DataFile, Head, Record, encode
from holdfast.store.removal import delete_unused, sweep
from holdfast.store.runfile import RunFile, now, software
from holdfast.store.writing import Written, bytes_needed, write_data

_HURRY: Final = 1.0
"""How many seconds a writer waits for the run: somebody may be cleaning up in it."""
_MARGIN: Final = 1 << 20
"""What a disk must have free beyond the data: records, folders, the file system's own."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a checkpoint shall be, besides its state."""

    step: int
    metrics: Mapping[str, Any]
    epoch: int | None
    best: bool
    replace: bool


class Writer:
    """The one that writes into a run, in this process and among all; it holds the run's lock."""

    def __init__(self, backend: Backend, index: Index, run: str) -> None:
        self._backend = backend
        self._index = index
        self._run = run
        self._guard = threading.Lock()
        self._lock: Lock | None = None
        self._last: Record | None = None
        self._sequence = 0
        self._users = 0
        self.process = os.getpid()

    def is_locking(self) -> bool:
        """Whether it keeps others out of the run."""
        return self._lock is not None and self._lock.is_held()

    def enter(self) -> None:
        """Somebody writes into the run."""
        with _writers_guard:
            self._users += 1

    def leave(self) -> None:
        """Somebody does no more; with the last one, other processes may."""
        with _writers_guard:
            self._users -= 1
            if not self._users:
                self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def save(self, file: RunFile, plan: Plan, wanted: Wanted) -> Head:
        """Commit a checkpoint; when this returns, it is durable."""
        with self._guard, self._locked(), ExitStack() as stack:
            self._index.refresh()
            replace = self._is_taken(wanted)
            parent = self._parent()
            known = Known(self._backend, self._index, self._run, parent)
            if parent is None and plan.shares:
                known.learn()
            stack.callback(lambda: self._unlink(known))
            self._preflight(plan, known)
            written = write_data(self._backend, self._run, wanted.step, plan, known, stack)
            record = self._record(file, plan, wanted, written, known, parent)
            self._commit(record, written, known, replace=replace)
        self._last = record
        self._sequence = record.head.sequence
        self._tidy(record, written, replace)
        return record.head

    def claim(self) -> None:
        """Keep other processes out of the run from now on, and clean up after dead ones."""
        if self.is_locking():
            return
        self._release()
        self._lock = self._backend.lock(self._run, _HURRY)
        if self._lock is None:
            raise RunBusy(
                f"run {self._run}: {self._backend.holder(self._run)} writes into it; wait for it "
                "to end, or give another `trial` to start a run of its own"
            )
        self._last = None
        with change_of(self._backend, self._run):
            sweep(self._backend, self._index, self._run)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the run's lock from the first save on, and keep deletions out during this one."""
        self.claim()
        with change_of(self._backend, self._run):
            yield

    def _is_taken(self, wanted: Wanted) -> bool:
        """Whether the step has a record, which may be replaced; raises StepExists, Protected.

        One that is damaged may be: whoever fell back to an older step comes by here again.
        """
        step = wanted.step
        if not self._backend.exists(names.record_file(self._run, step)):
            return False
        if not wanted.replace and not self._is_damaged(step):
            raise StepExists(
                errno.EEXIST,
                f"run {self._run} has a checkpoint of step {step} already: save another step, or "
                "pass replace=True",
            )
        why = self._index.protected(self._run).get(step)
        if why is not None:
            raise Protected(f"step {step} of run {self._run} {why}")
        return True

    def _is_damaged(self, step: int) -> bool:
        """Whether a checkpoint cannot be loaded; it is read if a file of it is under suspicion."""
        try:
            record = read_record(self._backend, self._run, step)
            with Data(self._backend, record) as data:
                if self._index.distrusted(self._run) & {file.name for file in record.head.files}:
                    data.check()
        except DamagedFile:
            return True
        except HoldfastError:
            return False
        return False

    def _parent(self) -> Record | None:
        """The newest checkpoint of the run that can be read."""
        for listed in self._index.newest(self._run):
            if self._last is not None and self._last.head.place == listed.head.place:
                return self._last
            with suppress(HoldfastError):
                return read_record(self._backend, self._run, listed.step)
        return None

    def _preflight(self, plan: Plan, known: Known) -> None:
        free = self._backend.free()
        if free is None or plan.most + _MARGIN <= free:
            return
        trial = Known(self._backend, self._index, self._run, self._parent())
        needed = bytes_needed(plan, trial) + _MARGIN
        known.linked += trial.linked
        if needed > free:
            raise NotEnoughSpace(
                errno.ENOSPC,
                f"{self._backend.url}: the checkpoint needs {needed:,} bytes, and {free:,} are "
                "free; nothing was written",
            )

    def _record(
        self,
        file: RunFile,
        plan: Plan,
        wanted: Wanted,
        written: Written,
        known: Known,
        parent: Record | None,
    ) -> Record:
        extents = [written.extents.get(number, []) for number in range(len(plan.tensors))]
        placed = columns(extents, known.files | {file.name: file for file, _ in written.new})
        before = parent.head.place if parent else file.parent
        if parent and parent.head.step == wanted.step:  # it is being replaced
            before = parent.head.parent
        head = Head(
            run=self._run,
            identity=file.identity,
            step=wanted.step,
            epoch=wanted.epoch,
            sequence=max(self._sequence, self._index.highest()) + 1,
            time=now(),
            best=wanted.best,
            metrics=dict(wanted.metrics),
            parent=before,
            software=software(),
            tensors=len(plan.tensors),
            nbytes=sum(tensor.nbytes for tensor in plan.tensors),
            parts=plan.parts,
            files=placed.data_files,
        )
        return Record(
            head=head,
            tree=plan.tree,
            names=[tensor.name for tensor in plan.tensors],
            kinds=[tensor.kind for tensor in plan.tensors],
            specs=[tensor.spec for tensor in plan.tensors],
            counts=placed.counts,
            files=placed.files,
            starts=placed.starts,
            sizes=placed.sizes,
            digests=b"".join(written.digests.get(n, b"") for n in range(len(plan.tensors))),
            views={n: tensor.view for n, tensor in enumerate(plan.tensors) if tensor.view},
        )

    def _commit(self, record: Record, written: Written, known: Known, *, replace: bool) -> None:
        folder = names.run_folder(self._run)
        name = names.record_file(self._run, record.head.step)
        placed = [f"{folder}/{link}" for link in known.linked]
        known.linked.clear()  # from here on they go with the new files: a record may need them
        try:
            for file, new in written.new:
                new.place()
                placed.append(f"{folder}/{file.name}")
            if placed:
                self._backend.sync(folder)
            self._check_files(record.head.files)
            if not self.is_locking():
                raise RunBusy(f"run {self._run}: its lock was deleted during the save; save again")
            if replace:
                self._backend.replace(name, encode(record))
            else:
                self._backend.create(name, encode(record))
        except AlreadyExists as error:
            self._take_back(placed)
            raise StepExists(
                errno.EEXIST, f"run {self._run}: another writer saved step {record.head.step}"
            ) from error
        except BaseException:
            if not self._is_committed(record.head):
                self._take_back(placed)
            raise

    def _check_files(self, files: list[DataFile]) -> None:
        """Everything that the record refers to must be there before it is."""
        folder = names.run_folder(self._run)
        for file in files:
            size = self._backend.size(f"{folder}/{file.name}")
            if size != file.size:
                raise MissingData(
                    f"run {self._run}: {file.name} was "
                    f"{'deleted' if size is None else 'changed'} during the save; save again"
                )

    def _is_committed(self, head: Head) -> bool:
        """Whether the record is in place, though its commit was reported to have failed."""
        try:
            return read_record(self._backend, head.run, head.step).head.place == head.place
        except HoldfastError:
            # One that cannot be read may be it: then its files must stay.
            return self._backend.exists(names.record_file(head.run, head.step))

    def _take_back(self, placed: list[str]) -> None:
        with suppress(WriteFailed):  # the error that brought us here is the one to report
            self._backend.delete(placed)

    def _unlink(self, known: Known) -> None:
        """Remove the links that were made for a checkpoint that did not come to be."""
        self._take_back([f"{names.run_folder(self._run)}/{name}" for name in known.linked])

    def _tidy(self, record: Record, written: Written, replaced: bool) -> None:
        """What may be done after the commit, and may fail without harm to it."""
        with suppress(HoldfastError):
            if written.new and any(n >= 1 for n in record.counts):
                remember(self._index, record, {file.name for file, _ in written.new})
            if replaced:
                with change_of(self._backend, self._run):
                    # What was written about the old one is not true of the new one.
                    self._backend.delete([names.marks_file(self._run, record.head.step)])
                    delete_unused(self._backend, self._index, self._run)


_writers: weakref.WeakValueDictionary[tuple[str, str], Writer] = weakref.WeakValueDictionary()
_writers_guard = threading.RLock()


def writer_of(backend: Backend, index: Index, run: str) -> Writer:
    """The writer of a run: one for all of a process, as long as somebody uses it."""
    with _writers_guard:
        writer = _writers.get((backend.url, run))
        if writer is None or writer.process != os.getpid():
            writer = _writers[backend.url, run] = Writer(backend, index, run)
        return writer


def _forget_parent() -> None:
    """In a forked process: another thread may have held the guard, and the locks are not ours."""
    global _writers_guard
    _writers_guard = threading.RLock()
    _writers.clear()


os.register_at_fork(after_in_child=_forget_parent)
