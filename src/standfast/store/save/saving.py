"""Assembling a checkpoint: data files, then the record, so that a crash at no point does harm."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from standfast.errors import (
    AlreadyExists,
    DamagedFile,
    MissingData,
    NotEnoughSpace,
    RefusedState,
    StandfastError,
    StepExists,
    WriteFailed,
)
from standfast.store.backends.backend import Backend
from standfast.store.backends.sizes import sizes_of
from standfast.store.index.index import Index
from standfast.store.load.reading import read_record
from standfast.store.retention.removal import delete_unused
from standfast.store.retention.trash import Trash
from standfast.store.save.changing import change_of
from standfast.store.save.known import Known, remember
from standfast.store.save.planning import Plan
from standfast.store.save.taken import check_writable, is_taken
from standfast.store.save.writing import Written, bytes_needed, write_data
from standfast.store.schema import names
from standfast.store.schema.decoder import encode_checked
from standfast.store.schema.extents import columns
from standfast.store.schema.record import DataFile, Head, Place, Record
from standfast.store.schema.run_file import now
from standfast.store.schema.settings import NAME as SETTINGS
from standfast.store.schema.settings import read_settings
from standfast.store.v3.torch_names import SUFFIX as WHOLE
from standfast.store.v3.torch_names import name_whole_file
from standfast.store.v3.torch_writer import WholeFile

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
    time: str | None = None
    """When it was first saved, if another program did that."""


@dataclass(frozen=True, slots=True)
class Task:
    """A checkpoint to be assembled, and what only the writer of the run knows."""

    plan: Plan
    wanted: Wanted
    identity: Mapping[str, str | None]
    origin: Place | None
    """The checkpoint that the run came from."""
    software: Mapping[str, str]
    token: str
    """Chosen at random for this save, and the same on all ranks; data files are named after it."""
    after: int
    """A sequence number that has been used."""
    claim: int
    """How often the run was taken: in between, others may have written into it."""


Commit = Callable[[Head, bytes, bool], None]
"""Creates the record of a checkpoint, or replaces the one of its step, if the run is still ours."""

Assemble = Callable[[Task, Commit], Head]
"""Writes all of a checkpoint, and has it committed."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint that is being assembled, or what one of several ranks has of it."""

    task: Task
    parent: Record | None
    known: Known


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
        wanted = task.wanted
        whole = None
        if wanted.format == TORCH:
            whole = WholeFile(task.plan, self._run, wanted.step, task.token)
        with change_of(self._backend, self._run), ExitStack() as stack:
            replace = self.begin(wanted)
            draft = self.draft(task, stack)
            if whole is not None:
                self.check_space(whole.size)
                written = whole.write(self._backend, stack)
            else:
                self._preflight(draft)
                written = self.write(draft, stack)
            record = self.record(draft, written)
            placed: list[str] = []
            with self.taking_back(record.head, placed):
                self.place(draft, written, placed)
                self.confirm(record, commit, replace)
            self._last = record
            self.tidy(record, {file.name for file, _ in written.new}, replace)
        return record.head

    def begin(self, wanted: Wanted) -> bool:
        """See what the store has; whether a record is to be replaced, if it may be; raises TooNew.

        The caller holds the lock of the run's changes, from here to the end of the save.
        """
        check_writable(self._backend, self._index, self._run)
        return is_taken(self._backend, self._index, self._run, wanted.step, wanted.replace)

    def draft(self, task: Task, stack: ExitStack) -> Draft:
        """Begin a checkpoint; links that are made for it go with the stack, unless it is placed."""
        parent = self._parent()
        known = Known(self._backend, self._index, self._run, parent)
        stack.callback(lambda: self._unlink(known))
        if task.wanted.format != TORCH:
            if parent is None and task.plan.shares:
                known.learn()
            self._give_up_whole(known, task.wanted.step)
        return Draft(task, parent, known)

    def _give_up_whole(self, known: Known, step: int) -> None:
        """A whole file that bears this step is known as its checkpoint: see `whole_of`."""
        known.give_up(f"{self._run}_step_{step:06d}.", WHOLE)

    def write(self, draft: Draft, stack: ExitStack) -> Written:
        """Write what the store does not hold."""
        task = draft.task
        return write_data(
            self._backend, self._run, task.wanted.step, task.token, task.plan, draft.known, stack
        )

    def _parent(self) -> Record | None:
        """The newest checkpoint of the run that can be read."""
        for listed in self._index.newest(self._run):
            if self._last is not None and self._last.head.place == listed.head.place:
                return self._last
            with suppress(StandfastError):
                return read_record(self._backend, self._run, listed.step)
        return None

    def _preflight(self, draft: Draft) -> None:
        if not self.has_room(draft.task.plan.most):
            self.check_space(self.needed(draft))

    def has_room(self, most: int) -> bool:
        """Whether so much can be written for certain."""
        free = self._backend.free()
        return free is None or most + _MARGIN <= free

    def needed(self, draft: Draft) -> int:
        """How many bytes the data files will take; hashes everything to find out."""
        trial = Known(self._backend, self._index, self._run, draft.parent)
        self._give_up_whole(trial, draft.task.wanted.step)
        needed = bytes_needed(draft.task.plan, trial)
        draft.known.linked += trial.linked
        return needed

    def check_space(self, needed: int) -> None:
        """Raise NotEnoughSpace if so much cannot be written; the trash is emptied for it."""
        needed += _MARGIN
        free = self._backend.free()
        if free is not None and needed > free:
            with suppress(StandfastError):  # then there is too little space
                Trash(self._backend).empty(need=needed - free)
            free = self._backend.free()
        if free is not None and needed > free:
            raise NotEnoughSpace(
                errno.ENOSPC,
                f"{self._backend.url}: the checkpoint needs {needed:,} bytes, and {free:,} are "
                "free; nothing was written",
            )

    def record(self, draft: Draft, written: Written) -> Record:
        """The record of what was written."""
        task, parent, known = draft.task, draft.parent, draft.known
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
            sequence=self.next_sequence(task.after),
            token=task.token,
            time=wanted.time or now(),
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

    def next_sequence(self, after: int) -> int:
        """The number of the next commit, which no other has; raises RefusedState if none is left.

        A higher number could not be copied, and would stay after the forged record is deleted.
        """
        highest = 0
        with suppress(DamagedFile):  # `doctor` reports it; no reason to lose a checkpoint
            highest = read_settings(self._backend).highest
        sequence = max(after, self._index.highest(), highest) + 1
        if sequence >= names.FORGED_SEQUENCE:
            newest = next(self._index.newest(), None)
            name = names.record_file(newest.run, newest.step) if newest else SETTINGS
            raise RefusedState(
                f"{name}: its sequence number {sequence - 1:,} leaves no higher one for another "
                "checkpoint of this store; delete it"
            )
        return sequence

    def place(self, draft: Draft, written: Written, placed: list[str]) -> None:
        """Give the new files their names, durably; `placed` gets all names that are new."""
        folder = names.run_folder(self._run)
        placed += [f"{folder}/{link}" for link in draft.known.linked]
        draft.known.linked.clear()  # they go with the new files now: a record may need them
        for file, new in written.new:
            new.place()
            placed.append(f"{folder}/{file.name}")
        if placed:
            self._backend.sync(folder)

    def confirm(self, record: Record, commit: Commit, replace: bool) -> None:
        """Have a checkpoint committed, if all its files are there."""
        self._check_files(record.head.files)
        commit(record.head, encode_checked(record), replace)

    @contextmanager
    def taking_back(self, head: Head, placed: Collection[str]) -> Iterator[None]:
        """Delete what was placed, if the checkpoint does not come to be."""
        try:
            yield
        except AlreadyExists as error:
            self.take_back(placed)
            raise StepExists(
                errno.EEXIST, f"run {self._run}: another writer saved step {head.step}"
            ) from error
        except BaseException:
            in_doubt = self._backend.in_doubt(names.run_folder(self._run))  # it may come yet
            if not in_doubt and not self._is_committed(head):
                self.take_back(placed)
            raise

    def _check_files(self, files: list[DataFile]) -> None:
        """Everything that the record refers to must be there before it is."""
        folder = names.run_folder(self._run)
        sizes = sizes_of(self._backend, folder, [file.name for file in files])
        for file in files:
            size = sizes.get(file.name)
            if size != file.size:
                raise MissingData(
                    f"run {self._run}: {file.name} was "
                    f"{'deleted' if size is None else 'changed'} during the save; save again"
                )

    def _is_committed(self, head: Head) -> bool:
        """Whether the record is in place, though its commit was reported to have failed."""
        try:
            return read_record(self._backend, head.run, head.step).head.place == head.place
        except StandfastError:
            # One that cannot be read may be it: then its files must stay.
            return self._backend.exists(names.record_file(head.run, head.step))

    def take_back(self, placed: Collection[str]) -> None:
        """Delete what was placed for a checkpoint that does not come to be."""
        with suppress(WriteFailed):  # the error that brought us here is the one to report
            self._backend.delete(placed)

    def _unlink(self, known: Known) -> None:
        """Remove the links that were made for a checkpoint that did not come to be."""
        self.take_back([f"{names.run_folder(self._run)}/{name}" for name in known.linked])

    def tidy(self, record: Record, new: Collection[str], replaced: bool) -> None:
        """What may be done after the commit, and may fail without harm to it."""
        with suppress(StandfastError):
            if new and any(n >= 1 for n in record.counts):
                remember(self._index, record, new)
            # Before the old file is deleted, by which its name is known to be ours: if this fails,
            # so must that.
            name_whole_file(self._backend, record.head)
            if replaced:  # marks of the old one are ignored already
                self._backend.delete([names.marks_file(self._run, record.head.step)])
                delete_unused(self._backend, self._index, self._run)
