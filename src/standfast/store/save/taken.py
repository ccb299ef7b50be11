"""Whether a run may be changed, and whether one of its steps may be saved."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from standfast.errors import (
    DamagedFile,
    MissingFile,
    Protected,
    StandfastError,
    StepExists,
    TooNew,
)
from standfast.store.backends.backend import Backend
from standfast.store.index.index import Index
from standfast.store.load.reading import Data, read_record
from standfast.store.save.changing import PATIENCE, change_of
from standfast.store.schema import names
from standfast.store.schema.run_file import RunFile, read_run
from standfast.store.schema.settings import read_settings
from standfast.store.v3.companions import recover_run, write_data_state, write_run


def check_writable(backend: Backend, index: Index, run: str) -> None:
    """Refresh the index; raise TooNew if a record of the run, its run file or `store.json` is.

    What that file needs is unknown, so nothing may be added to the run or deleted from it.
    """
    index.refresh()
    newer = index.newer(run)
    if newer is not None:
        raise TooNew(f"{newer}; nothing is changed in run {run}")
    with suppress(DamagedFile):  # `doctor` reports it
        read_settings(backend)


@contextmanager
def changing(backend: Backend, index: Index, run: str, wait: float = PATIENCE) -> Iterator[None]:
    """Hold the lock of a run's changes, with a fresh index; raises RunBusy or TooNew."""
    with change_of(backend, run, wait):
        check_writable(backend, index, run)
        yield


def change_run(
    backend: Backend,
    index: Index,
    run: str,
    change: Callable[[RunFile], RunFile],
    known: RunFile | None = None,
    wait: float = PATIENCE,
) -> RunFile:
    """Replace what a run file says by what `change` makes of it; returns that.

    Every change of a run file is made here, under a lock, so that none undoes another. A file
    that is not there is made from its config, or from what is `known`, which may be old, as that
    of a run which another process has deleted; raises MissingFile if nothing is known, and TooNew.
    """
    with suppress(MissingFile):
        file = read_run(backend, run)
        if change(file) == file:
            return file
    with changing(backend, index, run, wait):
        before = None
        try:
            file = before = read_run(backend, run)
        except MissingFile:
            if known is None:
                raise
            file = _made_again(backend, recover_run(backend, run) or known)
        new = change(file)
        write_run(backend, new, before)
    return new


def _made_again(backend: Backend, file: RunFile) -> RunFile:
    """The run file of a run that was deleted; of its model and its data it has but the digests."""
    if file.identity["data"] is None:
        write_data_state(backend, file.run, None)
    needed = [names.data_state_file(file.run)]
    if file.identity["model"] is not None:
        needed.append(names.architecture_file(file.run))
    return msgspec.structs.replace(file, incomplete=not all(map(backend.exists, needed)))


def is_taken(backend: Backend, index: Index, run: str, step: int, replace: bool) -> bool:
    """Whether the step has a record, which may be replaced; raises StepExists, Protected.

    One that is damaged may be: whoever fell back to an older step comes by here again.
    """
    if not backend.exists(names.record_file(run, step)):
        return False
    if not replace and not _is_damaged(backend, index, run, step):
        raise StepExists(
            errno.EEXIST,
            f"run {run} has a checkpoint of step {step} already: load it and go on, save "
            "another step, or pass replace=True",
        )
    why = index.protected(run).get(step)
    if why is not None:
        raise Protected(f"step {step} of run {run} {why}")
    return True


def _is_damaged(backend: Backend, index: Index, run: str, step: int) -> bool:
    """Whether a checkpoint cannot be loaded; it is read if a file of it is under suspicion."""
    try:
        record = read_record(backend, run, step)
        with Data(backend, record) as data:
            if index.damaged_files() & {file.name for file in record.head.files}:
                data.check()
    except DamagedFile:
        return True
    except StandfastError:
        return False
    return False
