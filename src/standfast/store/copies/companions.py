"""What goes along when a checkpoint is copied: what its run is, and what people wrote about it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from standfast.errors import AlreadyExists, DamagedFile, MissingFile
from standfast.store.backends.backend import Backend
from standfast.store.index.scanning import read_head
from standfast.store.save.changing import change_of
from standfast.store.schema import names
from standfast.store.schema.marks import Marks, read_marks, write_marks
from standfast.store.schema.record import Head
from standfast.store.schema.run_file import RunFile, encode, known_from, read_run
from standfast.store.schema.seal import check_sealed
from standfast.store.v3 import architectures
from standfast.store.v3.companions import files_beside

if TYPE_CHECKING:
    from standfast.store.store import Store


def copy_beside(source: Backend, target: Backend, head: Head) -> bool:
    """Write the files of a run that the target lacks; whether it has the run only now."""
    run = head.run
    described = names.architecture_file(run)
    for name in (*files_beside(run), described, names.architecture_file(run, ".pkl")):
        if target.size(name) is not None:
            continue
        with suppress(MissingFile, AlreadyExists):
            text = source.read(name)
            if name == described and not _is_sound(text):
                continue  # nothing depends on it
            target.create(name, text)
    if target.size(names.run_file(run)) is not None:
        return False
    with suppress(AlreadyExists):
        target.create(names.run_file(run), encode(_run_file(source, head)))
    return True


def _is_sound(text: bytes) -> bool:
    try:
        check_sealed(text.removesuffix(b"\n"), architectures.FORMAT)
    except DamagedFile:
        return False
    return True


def _run_file(source: Backend, head: Head) -> RunFile:
    """What the run is; what is kept of it in one store says nothing about another."""
    try:
        file = read_run(source, head.run)
    except (MissingFile, DamagedFile):
        file = known_from(head)
    return msgspec.structs.replace(file, retention=None)


def copy_marks(source: Backend, target: Store, head: Head) -> tuple[str, ...]:
    """Give the copy the tags, notes and late metrics of a checkpoint, unless it has some already.

    Returns what was left out, and why.
    """
    try:
        marks = read_marks(source, head.run, head.step)
    except DamagedFile as error:
        return (f"its tags and notes, which cannot be read ({error})",)
    if marks == Marks(head.run, head.step):
        return ()
    with change_of(target.backend, "tags"), change_of(target.backend, head.run):
        name = names.marks_file(head.run, head.step)
        if target.backend.size(name) is not None:
            return ()
        with suppress(MissingFile):
            if read_head(target.backend, head.run, head.step).place == head.place:
                target.index.refresh()
                taken = {tag: why for tag in marks.tags if (why := _taken(target, tag))}
                kept = [tag for tag in marks.tags if tag not in taken]
                write_marks(target.backend, msgspec.structs.replace(marks, tags=kept))
                return tuple(f"the tag {tag!r}: {why}" for tag, why in taken.items())
    return ()  # deleted or replaced this moment


def _taken(target: Store, tag: str) -> str:
    """Why a tag cannot be given in a store; empty if it can."""
    for run, step in target.index.tagged(tag):
        return f"it is on {run}@{step} there"
    for listed in target.index.runs(name=tag):
        return f"run {listed.run} is called so there"
    return ""
