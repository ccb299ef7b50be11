"""Assembling a checkpoint: data files, then the record, so that a crash at no point does harm."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

from holdfast.errors import (
    AlreadyExists,
    DamagedFile,
    HoldfastError,
    MissingData,
    NotEnoughSpace,
    Protected,
    StepExists,
    WriteFailed,
)
from holdfast.store import names
from holdfast.store.backend import Backend
from holdfast.store.changing import change_of
from holdfast.store.extents import columns
from holdfast.store.index import Index
from holdfast.store.known import Known, remember
from holdfast.store.planning import Plan
from holdfast.store.reading import Data, read_record
from holdfast.store.record import DataFile, Head, Place, Record, encode
from holdfast.store.removal import delete_unused
from holdfast.store.runfile import now
from holdfast.store.settings import read_settings
from holdfast.store.trash import Trash
from holdfast.store.whole import SUFFIX as WHOLE
from holdfast.store.whole import name_whole_file
from holdfast.store.whole_writing import WholeFile
from holdfast.store.writing import Written, bytes_needed, write_data

SAFETENSORS: Final = "safetensors"
TORCH: Final = "torch"
FORMATS: Final = (SAFETENSORS, TORCH)
"""What data files can be: one for each part and what it changes, or one that is whole."""
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
    format: str = SAFETENSORS


@dataclass(frozen=True, slots=True)
class Task:
    """A checkpoint to be assembled, and what only the writer of the run knows."""

    plan: Plan
    wanted: Wanted
    identity: Mapping[str, str | None]
    origin: Place | None
    """The checkpoint that the run came from."""
    software: Mapping[str, str]
    after: int
    """A sequence number that has been used."""
    claim: int
    """How often the run was taken: in between, others may have written into it."""


Commit = Callable[[Head, bytes, bool], None]
"""Creates the record of a checkpoint, or replaces the one of its step, if the run is still ours."""

Assemble = Callable[[Task, Commit], Head]
"""Writes all of a checkpoint, and has it committed."""


class Assembler:
    """Does all the work of a save but the commit, which is for the one that holds the run's lock.

    The two need not be in one process: a crash of this one loses the checkpoint that is being
    assembled and nothing else.
    """

    def __init__(self, backend: Backend, index: Index, run: str) -> None:
        self._backend = backend
        self._index = index
        self._run = run
        self._claim = 0
        self._last: Record | None = None

    def save(self, task: Task, commit: Commit) -> Head:
        """Assemble a checkpoint and have it committed; when this returns, it is durable."""
        if task.claim != self._claim:
            self._claim, self._last = task.claim, None
        plan, wanted = task.plan, task.wanted
        whole = WholeFile(plan, self._run, wanted.step) if wanted.format == TORCH else None
        with change_of(self._backend, self._run), ExitStack() as stack:
            self._index.refresh()
            replace = self._is_taken(wanted)
            parent = self._parent()
            known = Known(self._backend, self._index, self._run, parent)
            stack.callback(lambda: self._unlink(known))
            if whole is not None:
                self._check_space(whole.size + _MARGIN)
                written = whole.write(self._backend, stack)
            else:
                written = self._write_data(task, known, parent, stack)
            record = self._record(task, written, known, parent)
            self._commit(record, written, known, commit, replace=replace)
            self._last = record
            self._tidy(record, written, replace)
        return record.head

    def _write_data(
        self, task: Task, known: Known, parent: Record | None, stack: ExitStack
    ) -> Written:
        """Write what the store does not hold."""
        plan, step = task.plan, task.wanted.step
        if parent is None and plan.shares:
            known.learn()
        # A whole file that bears this step is known as its checkpoint: see `whole_of`.
        known.give_up(f"{self._run}_step_{step:06d}.", WHOLE)
        self._preflight(plan, step, known)
        return write_data(self._backend, self._run, step, plan, known, stack)

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

    def _preflight(self, plan: Plan, step: int, known: Known) -> None:
        free = self._backend.free()
        if free is None or plan.most + _MARGIN <= free:
            return
        trial = Known(self._backend, self._index, self._run, self._parent())
        trial.give_up(f"{self._run}_step_{step:06d}.", WHOLE)
        needed = bytes_needed(plan, trial) + _MARGIN
        known.linked += trial.linked
        self._check_space(needed)

    def _check_space(self, needed: int) -> None:
        free = self._backend.free()
        if free is not None and needed > free:
            with suppress(HoldfastError):  # then there is too little space
                Trash(self._backend).empty(need=needed - free)
            free = self._backend.free()
        if free is not None and needed > free:
            raise NotEnoughSpace(
                errno.ENOSPC,
                f"{self._backend.url}: the checkpoint needs {needed:,} bytes, and {free:,} are "
                "free; nothing was written",
            )

    def _record(self, task: Task, written: Written, known: Known, parent: Record | None) -> Record:
        plan, wanted = task.plan, task.wanted
        extents = [written.extents.get(number, []) for number in range(len(plan.tensors))]
        placed = columns(extents, known.files | {file.name: file for file, _ in written.new})
        named = {file.name for file in placed.data_files}
        # A whole file counts, whether there is any tensor in it or not.
        unnamed = [file for file, _ in written.new if file.name not in named]
        before = parent.head.place if parent else task.origin
        if parent and parent.head.step == wanted.step:  # it is being replaced
            before = parent.head.parent
        head = Head(
            run=self._run,
            identity=dict(task.identity),
            step=wanted.step,
            epoch=wanted.epoch,
            sequence=max(task.after, self._index.highest(), self._highest_deleted()) + 1,
            time=now(),
            best=wanted.best,
            metrics=dict(wanted.metrics),
            parent=before,
            software=dict(task.software),
            tensors=len(plan.tensors),
            nbytes=sum(tensor.nbytes for tensor in plan.tensors),
            parts=plan.parts,
            files=[*placed.data_files, *unnamed],
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

    def _highest_deleted(self) -> int:
        try:
            return read_settings(self._backend).highest
        except DamagedFile:  # `doctor` tells of it; no reason to lose a checkpoint
            return 0

    def _commit(
        self, record: Record, written: Written, known: Known, commit: Commit, *, replace: bool
    ) -> None:
        folder = names.run_folder(self._run)
        placed = [f"{folder}/{link}" for link in known.linked]
        known.linked.clear()  # from here on they go with the new files: a record may need them
        try:
            for file, new in written.new:
                new.place()
                placed.append(f"{folder}/{file.name}")
            if placed:
                self._backend.sync(folder)
            self._check_files(record.head.files)
            commit(record.head, encode(record), replace)
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
            # Before the old file is deleted, by which its name is known to be ours: if this fails,
            # so must that.
            name_whole_file(self._backend, record.head)
            if replaced:
                # What was written about the old one is not true of the new one.
                self._backend.delete([names.marks_file(self._run, record.head.step)])
                delete_unused(self._backend, self._index, self._run)
