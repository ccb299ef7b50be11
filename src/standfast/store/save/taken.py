"""Whether a step may be saved: it is free, or its checkpoint may be replaced."""

from __future__ import annotations

import errno

from standfast.errors import DamagedFile, Protected, StandfastError, StepExists, TooNew
from standfast.store.backends.backend import Backend
from standfast.store.index.index import Index
from standfast.store.load.reading import Data, read_record
from standfast.store.schema import names


def check_writable(index: Index, run: str) -> None:
    """Raise TooNew for a run that a newer version has written to: what it needs is unknown."""
    for _, step, problem in index.too_new(run):
        raise TooNew(f"{names.record_file(run, step)}: {problem}; nothing is written to this run")


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
