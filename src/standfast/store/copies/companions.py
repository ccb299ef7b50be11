"""What goes along when a checkpoint is copied: what its run is, and what people wrote about it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from standfast.errors import AlreadyExists, DamagedFile, MissingFile, RefNotFound, TooNew
from standfast.store.backends.backend import Backend
from standfast.store.save.changing import change_of
from standfast.store.save.taken import changing
from standfast.store.schema import names
from standfast.store.schema.marks import Marks, change_marks, read_marks
from standfast.store.schema.record import Head
from standfast.store.schema.run_file import RunFile, encode, read_run
from standfast.store.v3 import architectures
from standfast.store.v3.companions import check_data_state, recover_run, write_config

if TYPE_CHECKING:
    from standfast.store.store import Store


class Beside(NamedTuple):
    """What became of the files of a run."""

    is_new: bool
    """Whether the target has the run only now."""
    left_out: tuple[str, ...]
    """What could not go along, and why."""


def copy_beside(source: Backend, target: Backend, run: str) -> Beside:
    """Write the files of a run that the target lacks, but none that is damaged."""
    left_out: list[str] = []
    for name, check in (
        (names.data_state_file(run), check_data_state),
        (names.architecture_file(run), architectures.read_architecture),
        (names.architecture_file(run, ".pkl"), None),
    ):
        if target.size(name) is None:
            try:
                if check is not None:
                    check(source, run)
                target.create(name, source.read(name))
            except (MissingFile, AlreadyExists):
                pass
            except DamagedFile as error:
                left_out.append(f"{name.rpartition('/')[2]}, which cannot be read ({error})")
    is_new = target.size(names.run_file(run)) is None
    try:
        file = _run_file(source, target, run, is_new)
    except (MissingFile, DamagedFile) as error:
        why = getattr(error, "strerror", None) or error
        return Beside(is_new, (*left_out, f"its run file, which cannot be read ({why})"))
    config = names.config_file(run)
    if target.size(config) is None:
        if recover_run(source, run) == file:
            target.replace(config, source.read(config))
        else:
            write_config(target, file)
    if is_new:
        with suppress(AlreadyExists):
            target.create(names.run_file(run), encode(file))
    return Beside(is_new, tuple(left_out))


def _run_file(source: Backend, target: Backend, run: str, is_new: bool) -> RunFile:
    """What the run is; what is kept of it in one store says nothing about another."""
    if not is_new:
        return read_run(target, run)
    try:
        file = read_run(source, run)
    except (MissingFile, DamagedFile):
        found = recover_run(source, run)
        if found is None:
            raise
        file = found
    return msgspec.structs.replace(file, retention=None)


def copy_marks(source: Backend, target: Store, head: Head) -> tuple[str, ...]:
    """Give the copy the tags, notes and late metrics of a checkpoint, unless it has some already.

    Returns what was left out, and why.
    """
    none = Marks(head.run, head.step, head.sequence, head.token)
    try:
        marks = msgspec.structs.replace(read_marks(source, head.place), verified=None)
    except (DamagedFile, TooNew) as error:
        return (f"its tags and notes, which cannot be read ({error})",)
    if marks.best is not None and marks.best > names.LAST_COPIED:
        return (f"its tags and notes, whose field best is {marks.best:,}: no store counts so far",)
    if marks == none:
        return ()
    backend = target.backend
    with change_of(backend, "tags"), changing(backend, target.index, head.run):
        taken = {tag: why for tag in marks.tags if (why := _taken(target, tag))}
        kept = [tag for tag in marks.tags if tag not in taken]

        def added(there: Marks) -> Marks:
            new = msgspec.structs.replace(marks, tags=kept, verified=there.verified)
            return new if msgspec.structs.replace(there, verified=None) == none else there

        with suppress(RefNotFound):  # deleted or replaced by another process
            change_marks(backend, head.place, added)
    return tuple(f"the tag {tag!r}: {why}" for tag, why in taken.items())


def _taken(target: Store, tag: str) -> str:
    """Why a tag cannot be given in a store; empty if it can."""
    for run, step in target.index.tagged(tag):
        return f"it is on {run}@{step} there"
    if newer := target.index.newer_marks():
        return f"it may be on a checkpoint there: {newer}"
    for listed in target.index.runs(name=tag):
        return f"run {listed.run} is called so there"
    return ""
