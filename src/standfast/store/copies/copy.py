"""A checkpoint is copied to another store, byte for byte: its files first, its record last.

Data files never change and their names are never used twice: what the target has under the same
name, of the same size, is there. So a copy that was interrupted goes on with the next file, and
what several checkpoints share goes over once. Until the record is there, the target has leftovers
that `gc` knows, and no half of a checkpoint.
"""

from __future__ import annotations

import errno
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from standfast.errors import (
    AlreadyExists,
    DamagedFile,
    DigestMismatch,
    FileError,
    LimitExceeded,
    MissingData,
    MissingFile,
    NotAStore,
    Protected,
    RefNotFound,
    RunCollision,
    StandfastError,
    StepExists,
    TooNew,
    TruncatedFile,
)
from standfast.files.reader import Progress
from standfast.store.backends.sizes import sizes_of
from standfast.store.checkpoint import Checkpoint
from standfast.store.copies.companions import copy_beside, copy_marks
from standfast.store.copies.files import Opened, copy_data, reading_source
from standfast.store.load.reading import gone
from standfast.store.query.mirrors import another_run, is_another_run, is_same
from standfast.store.retention.pins import pinned
from standfast.store.retention.removal import delete_unused
from standfast.store.save.saving import Assembler
from standfast.store.save.taken import changing
from standfast.store.schema import names
from standfast.store.schema.damage import mark_damaged, trust
from standfast.store.schema.decoder import decode
from standfast.store.schema.record import MAX_RECORD, DataFile, Head, Record
from standfast.store.schema.run_file import RunFile, read_run
from standfast.store.v3.foreign import is_foreign_store, read_only
from standfast.store.v3.torch_names import name_whole_file

if TYPE_CHECKING:
    from standfast.store.store import Store

There = Literal["nothing", "the same", "damaged", "older"]
"""What a target has as the record of a step."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What became of a checkpoint that was to be copied."""

    run: str
    step: int
    nbytes: int
    """The bytes of data files that were copied now."""
    shared: int
    """The bytes of its data files that the target had already."""
    already: bool
    """Whether the target had the checkpoint before."""
    left_out: tuple[str, ...] = ()
    """What of its tags and notes could not go along, and why."""


def copy_checkpoint(
    checkpoint: Checkpoint,
    target: Store,
    progress: Progress | None = None,
    *,
    check: bool = False,
    replace: bool = False,
) -> Copied:
    """Copy a checkpoint to another store, verified; when this returns, it is durable there.

    `progress` is told of the bytes of each block, and of each file that was there. With `check`,
    every byte is read back from the target. With `replace`, an older checkpoint of the same step
    is replaced, once all else of this one is there, but not one of another run: RunCollision, and
    none with a tag, or with marks that cannot be read: Protected. A damaged source raises a
    DamagedFile, one that cannot be read UnreadableSource, another checkpoint of the same step
    StepExists, a run or store that a newer version wrote TooNew, a root that weightslab wrote, on
    either side, NotAStore, and the target has no more checkpoints than before.
    """
    backend, head = checkpoint.store.backend, checkpoint.head
    for store in (target, checkpoint.store):  # one is read-only, the other has no digests to copy
        if is_foreign_store(store.backend):
            raise NotAStore(errno.EPERM, read_only(Path(store.url).parent))
    with pinned(backend, head.run, head.step):
        copied = _Copy(checkpoint, target, progress or (lambda nbytes: None), replace).make()
    target.saved()
    if check:
        Checkpoint(target, head).verify()
    return copied


class _Copy:
    """One checkpoint on its way."""

    def __init__(
        self, checkpoint: Checkpoint, target: Store, progress: Progress, replace: bool
    ) -> None:
        self._replace = replace
        self._source = checkpoint.store
        self._target = target
        self._progress = progress
        self._name = names.record_file(checkpoint.head.run, checkpoint.step)
        self._text, self._record = _read(checkpoint)
        self._head = self._record.head
        self._folder = names.run_folder(self._head.run)

    def make(self) -> Copied:
        """Copy what the target lacks, and last the record."""
        head, target = self._head, self._target
        target.index.refresh()
        if self._is_all_there():
            self._progress(sum(file.size for file in head.files))
            left_out = copy_marks(self._source.backend, target, head)
            shared = sum(file.size for file in head.files)
            return Copied(head.run, head.step, 0, shared, already=True, left_out=left_out)
        with changing(target.backend, target.index, head.run):
            self._refuse_collision()
            there = self._look()
            self._refuse_history()
            nbytes = self._copy_files()
            beside = copy_beside(self._source.backend, target.backend, head.run)
            target.backend.sync(self._folder)
            self._check_sizes()
            self._commit(there)
        if beside.is_new:
            target.index.close()  # now there is a folder for its file
        left_out = (*beside.left_out, *copy_marks(self._source.backend, target, head))
        shared = sum(file.size for file in head.files) - nbytes
        return Copied(head.run, head.step, nbytes, shared, there == "the same", left_out)

    def _is_all_there(self) -> bool:
        """Whether nothing is to be done, seen without a lock and by few requests."""
        backend = self._target.backend
        try:
            if backend.read(self._name, MAX_RECORD) != self._text:
                return False
        except FileError:
            return False
        files = {file.name: file.size for file in self._head.files}
        sizes = sizes_of(backend, self._folder, files)
        is_trusted = self._target.index.damaged_files().isdisjoint(files)
        return is_trusted and all(sizes.get(name) == size for name, size in files.items())

    def _refuse_history(self) -> None:
        """Raise StepExists if the target went on by itself: its latest would be another then.

        Numbers count the commits of one store; that of a later one is higher, unless it counts
        those of another. If the source has the latest of the target too, it went on from that,
        and the clocks of two machines differ.
        """
        newest = next(self._target.index.newest(self._head.run), None)
        if newest is None or self._replace:
            return
        head, there = self._head, newest.head
        if there.sequence < head.sequence and there.time > head.time and not self._knows(there):
            raise StepExists(
                errno.EEXIST,
                f"{self._target.url} has gone on with run {head.run} by itself: its step "
                f"{there.step} is later than this one of step {head.step}, which would become its "
                "latest; copy it into another store",
            )

    def _knows(self, there: Head) -> bool:
        """Whether the source has a checkpoint of the target."""
        self._source.index.refresh()
        listed = self._source.index.record(there.run, there.step)
        return listed is not None and is_same(listed.head, there)

    def _refuse_collision(self) -> None:
        """Raise RunCollision if the target has another run of the same short hash."""
        run = self._head.run
        try:
            there = read_run(self._target.backend, run)
            identity = there.identity
            if self._replace:
                self._refuse_another(there)
        except (MissingFile, DamagedFile):
            newest = next(self._target.index.newest(run), None)
            identity = newest.head.identity if newest else self._head.identity
        if identity != self._head.identity:
            raise RunCollision(
                f"{self._target.url} has another run with the same short hash {run}: they cannot "
                "be in one store"
            )

    def _refuse_another(self, there: RunFile) -> None:
        """Raise RunCollision if the run of the target was begun apart from this one.

        Where nothing is replaced, as by `standfast push`, checkpoints of both may lie in one store.
        """
        with suppress(MissingFile, DamagedFile):  # then nobody knows
            here = read_run(self._source.backend, self._head.run)
            if is_another_run(here, there):
                raise another_run(self._target.url, there)

    def _look(self) -> There:
        """What the target has of this step; raises StepExists if it is another checkpoint."""
        try:
            found = self._target.backend.read(self._name, MAX_RECORD)
        except MissingFile:
            return "nothing"
        if found == self._text:
            return "the same"
        try:
            there = decode(found, self._head.run, self._head.step).head
        except DamagedFile:
            return "damaged"
        if self._replace and there.sequence < self._head.sequence and there.time < self._head.time:
            why = self._target.index.protected(self._head.run).get(self._head.step)
            if why is not None:
                raise Protected(f"{self._target.url}: step {self._head.step} {why}")
            return "older"
        raise self._taken(is_same(there, self._head))

    def _taken(self, is_same_save: bool) -> StepExists:
        what = (
            "this checkpoint with other parts or files, for one of the two was changed,"
            if is_same_save
            else "another checkpoint"
        )
        head = self._head
        return StepExists(
            errno.EEXIST,
            f"{self._target.url} has {what} as step {head.step} of run {head.run}: it stays as it "
            "is; `standfast rm` deletes it, if this one is to take its place",
        )

    def _copy_files(self) -> int:
        """Copy the data files that the target lacks; returns their bytes."""
        target, run = self._target, self._head.run
        distrusted = target.index.damaged_files()
        lacking = [f for f in self._head.files if f.name in distrusted or not self._has(f)]
        new = [file for file in lacking if not self._is_linked(file)]
        nbytes = sum(file.size for file in new)
        with ExitStack() as stack:
            sources = [stack.enter_context(closing(self._open(file))) for file in new]
            if nbytes:
                Assembler(target.backend, target.index, run).check_space(nbytes)
            self._progress(sum(file.size for file in self._head.files) - nbytes)
            for file, source in zip(new, sources, strict=True):
                self._copy_file(file, source)
        for file in lacking:
            if file.name in distrusted:
                trust(target.backend, run, file.name)
        return nbytes

    def _has(self, file: DataFile, folder: str | None = None) -> bool:
        return self._target.backend.size(f"{folder or self._folder}/{file.name}") == file.size

    def _is_linked(self, file: DataFile) -> bool:
        """Whether another run of the target has a file, which is linked into this one now."""
        target = f"{self._folder}/{file.name}"
        for run in self._others.get(file.name, ()):
            folder = names.run_folder(run)
            if file.name in self._target.index.damaged_files() or not self._has(file, folder):
                continue
            with suppress(MissingFile):  # deleted just now
                if self._target.backend.link(f"{folder}/{file.name}", target, over=True):
                    return True
        return False

    @cached_property
    def _others(self) -> dict[str, set[str]]:
        """The other runs of the target whose records refer to files of the checkpoint."""
        wanted = {file.name for file in self._head.files}
        found: dict[str, set[str]] = {}
        for run, _, name in self._target.index.references():
            if name in wanted and run != self._head.run:
                found.setdefault(name, set()).add(run)
        return found

    def _open(self, file: DataFile) -> Opened:
        try:
            with reading_source():
                source = self._source.backend.open(f"{self._folder}/{file.name}")
        except MissingFile as error:
            raise gone(self._source.backend, self._head, file.name) from error
        if source.size != file.size:
            source.close()
            raise TruncatedFile(
                f"{source.path}: it has {source.size:,} bytes; the record of step "
                f"{self._head.step} says {file.size:,}"
            )
        return source

    def _copy_file(self, file: DataFile, source: Opened) -> None:
        name, backend = f"{self._folder}/{file.name}", self._target.backend
        with backend.new(name) as new:
            try:
                copy_data(source, new, file, self._record, self._progress)
            except DigestMismatch:
                mark_damaged(self._source.backend, file.name, "found by a copy of it")
                raise
            if backend.size(name) is not None:
                backend.delete([name])  # it is cut, or damaged
            new.place()

    def _check_sizes(self) -> None:
        """Everything that the record refers to must be there before it is."""
        for file in self._head.files:
            if not self._has(file):
                raise MissingData(
                    f"{self._target.url}: {file.name} was deleted or changed during the copy; copy "
                    "it again"
                )

    def _commit(self, there: There) -> None:
        backend = self._target.backend
        if there in ("damaged", "older"):
            backend.replace(self._name, self._text)
        elif there == "nothing":
            try:
                backend.create(self._name, self._text)
            except AlreadyExists as error:
                # Of one that asked twice, because an answer was lost, or of another who copies it.
                if backend.read(self._name) != self._text:
                    raise self._taken(is_same_save=False) from error
        with suppress(StandfastError):  # a second name of what is committed: doctor makes it too
            name_whole_file(backend, self._head)
            if there == "older":  # what was written about the old one is not true of the new one
                backend.delete([names.marks_file(self._head.run, self._head.step)])
                delete_unused(backend, self._target.index, self._head.run)


def _read(checkpoint: Checkpoint) -> tuple[bytes, Record]:
    """The record of a checkpoint, as it is and decoded, if it is still the one that was meant."""
    head, backend = checkpoint.head, checkpoint.store.backend
    name = names.record_file(head.run, head.step)
    try:
        with reading_source():
            text = backend.read(name, MAX_RECORD)
        record = decode(text, head.run, head.step)
    except MissingFile as error:
        raise RefNotFound(f"{checkpoint.ref} was deleted meanwhile") from error
    except (DamagedFile, TooNew) as error:
        error.args = (f"{name}: {error}", *error.args[1:])
        raise
    if head.sequence > names.LAST_COPIED:
        raise LimitExceeded(
            f"{name}: its sequence number {head.sequence:,} would leave too few for the "
            "checkpoints of another store; no save reaches such a number"
        )
    if record.head.place != head.place:
        raise RefNotFound(f"{checkpoint.ref} was replaced meanwhile: resolve it again")
    return text, record
