"""Deleting: the record first, then what nothing refers to any more."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from standfast.errors import DamagedFile, StandfastError
from standfast.store.backends.backend import Backend
from standfast.store.backends.read_ahead import ReadingAhead
from standfast.store.index.index import Index
from standfast.store.retention.trash import KEPT, Trash, recorded, run_files
from standfast.store.save.taken import check_writable
from standfast.store.schema import names
from standfast.store.schema.damage import forget_deleted
from standfast.store.schema.decoder import FIRST, names_in_head, read_head
from standfast.store.schema.marks import marks_at
from standfast.store.schema.settings import remember_highest
from standfast.store.v3.companions import files_beside
from standfast.store.v3.torch_names import name_whole_files, our_names


def delete_checkpoints(backend: Backend, index: Index, run: str, steps: Iterable[int]) -> None:
    """Delete checkpoints of a run, and the files that only they referred to.

    The caller holds the lock of the run's changes. A crash on the way leaves files that the next
    save into the run deletes.
    """
    folder = names.run_folder(run)
    steps = list(steps)
    _remember_highest(backend, index, run, steps)
    # A record without its V3 name gets it again; a name without a record would be taken for one.
    ours = {f"{folder}/{name}" for name in our_names(backend, run)}
    backend.delete(name for step in steps if (name := names.whole_file(run, step)) in ours)
    backend.delete(names.record_file(run, step) for step in steps)
    backend.sync(folder)  # no record may come back that refers to what is deleted next
    backend.delete(names.marks_file(run, step) for step in index.marked(run) & set(steps))
    delete_unused(backend, index, run)


def delete_run(backend: Backend, index: Index, run: str) -> None:
    """Delete all that is ours in the folder of a run, and the folder if nothing else is in it.

    The caller holds the run's locks.
    """
    folder = names.run_folder(run)
    _remember_highest(backend, index, run, index.steps(run))
    records = [names.record_file(run, step) for step in recorded(backend, run)]
    file = names.run_file(run)
    ours = {*run_files(backend, run)}.difference(records, [file])
    backend.delete([f"{folder}/{name}" for name in our_names(backend, run)])
    # A record needs the run file, and that all others: nothing may come back that lacks something.
    is_there = backend.exists(folder)  # another process may have deleted it, or been killed there
    for some in (records, [file], sorted(ours)):
        backend.delete(some)
        if is_there:
            backend.sync(folder)
    for name in (file, *files_beside(run)):
        backend.sweep(name.rpartition("/")[0])
        backend.delete_folder(name.rpartition("/")[0])


def _remember_highest(backend: Backend, index: Index, run: str, steps: Iterable[int]) -> None:
    """Let the latest number of the store stay used, if its checkpoint goes."""
    sequences = index.sequences(run)
    highest = max((sequences.get(step, 0) for step in steps), default=0)
    if names.LAST_COPIED >= highest >= index.highest() > 0:
        with suppress(DamagedFile):  # the settings cannot be read: `doctor` tells of it
            remember_highest(backend, highest)


def delete_unused(backend: Backend, index: Index, run: str) -> None:
    """Delete the data files that no record of the run refers to.

    The caller holds the lock of the run's changes, so that none is on its way in. The index says
    which may be unused; before anything is deleted, the records themselves are asked.
    """
    index.refresh()
    # The V3 name of a whole file is known to be ours by that file: first it must be right.
    name_whole_files(backend, index, run)
    left = orphans(backend, index, run)
    folder = names.run_folder(run)
    if left and not backend.in_doubt(folder):  # else the record may come that refers to them
        used = _used_files(backend, run)
        backend.delete(f"{folder}/{name}" for name in left if used is not None and name not in used)
        backend.sync(folder)


def _used_files(backend: Backend, run: str) -> set[str] | None:
    """The data files that the records of a run refer to; None if one cannot be read."""
    used: set[str] = set()
    listed = backend.list(names.run_folder(run), ".json")
    found = [named for name, _ in listed if (named := names.parse(name, run))]
    steps = [named.step for named in found if named.kind == "record"]
    ahead = ReadingAhead(backend)
    ahead.read_all((names.record_file(run, step) for step in steps), FIRST)
    for step in steps:
        try:
            used |= names_in_head(ahead, run, step)
        except StandfastError:
            return None
    return used


def orphans(backend: Backend, index: Index, run: str) -> list[str]:
    """The data files in a run's folder that no record refers to, if all records can be read."""
    if index.unreadable(run):
        return []
    used = index.files(run).keys()
    found = []
    for name, _ in backend.list(names.run_folder(run)):
        named = names.parse(name, run)
        if named is not None and named.kind == "data" and name not in used:
            found.append(name)
    return sorted(found)


def sweep(backend: Backend, index: Index, run: str) -> None:
    """Delete what crashes have left in the folder of a run; raises TooNew.

    The caller holds its locks.
    """
    folder = names.run_folder(run)
    if backend.version(folder) is None:
        return
    check_writable(backend, index, run)
    for each in (folder, f"{names.SETTINGS}/{run}", f"{names.SAMPLES}/{run}", names.DAMAGED):
        backend.sweep(each)
    backend.sweep("")  # where the manifest is
    backend.delete(_stale_marks(backend, index, run))
    delete_unused(backend, index, run)
    forget_deleted(backend)
    with suppress(StandfastError):  # what another user put into the trash is for them to empty
        if backend.folders(names.TRASH):
            Trash(backend).empty(older_than=KEPT)


def _stale_marks(backend: Backend, index: Index, run: str) -> list[str]:
    """Marks of checkpoints that were replaced or deleted; those that are too new stay."""
    stale = (step for step in index.stale_marks(run) if _is_stale(backend, run, step))
    return [names.marks_file(run, step) for step in stale]


def _is_stale(backend: Backend, run: str, step: int) -> bool:
    """Whether marks belong to no record, by the files themselves."""
    has_record = backend.exists(names.record_file(run, step))
    try:
        marks = marks_at(backend, run, step)
        return not has_record or read_head(backend, run, step).place != marks.place
    except DamagedFile:
        return not has_record
    except StandfastError:
        return False
