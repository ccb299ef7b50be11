"""Checkpoints are brought back out of the trash: their files first, their records last."""

from __future__ import annotations

import errno
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field

from standfast.errors import (
    DamagedFile,
    LimitExceeded,
    MissingData,
    MissingFile,
    RefNotFound,
    RunCollision,
    StepExists,
    TooNew,
    WriteFailed,
)
from standfast.store.backends.backend import Backend
from standfast.store.index.index import Index
from standfast.store.retention.trash import LOCK, Trash, beside
from standfast.store.retention.trash_entry import Entry
from standfast.store.save.changing import change_of
from standfast.store.save.taken import changing
from standfast.store.schema import names
from standfast.store.schema.decoder import decode
from standfast.store.schema.record import MAX_RECORD, Head
from standfast.store.schema.run_file import read_run
from standfast.store.v3.torch_names import name_whole_file


@dataclass
class Restored:
    """What came back of a run, and what did not."""

    run: str
    steps: list[int] = field(default_factory=list)
    left: dict[int, str] = field(default_factory=dict)
    """The steps that stay in the trash, and why."""


def restore(
    backend: Backend, index: Index, what: Entry | str, steps: Collection[int] | None = None
) -> Restored:
    """Bring back an entry of the trash, or what the trash has of a run: these steps, or all.

    Steps that are asked for come back, all of them, or it raises: RefNotFound, StepExists if one
    was saved again meanwhile, TooNew, or a DamagedFile. Of a whole run, those that can come back
    do, and it raises if there is none.
    """
    run = what if isinstance(what, str) else what.run
    with changing(backend, index, run), change_of(backend, LOCK):
        entries = Trash(backend).entries(run)
        if isinstance(what, Entry):
            entries = [each for each in entries if each.folder == what.folder]
        chosen = _chosen(run, entries, steps)
        entries = [each for each in entries if each.problem is None]
        heads, left = _heads(backend, chosen, strict=steps is not None)
        _restore_run(backend, run, entries, heads)
        for step, head in heads.items():
            _link_files(backend, chosen[step], head)
        for step, head in heads.items():
            _commit(backend, chosen[step], head)
        for entry in entries:
            _take_out(backend, entry, heads)
    return Restored(run, list(heads), left)


def _chosen(run: str, entries: list[Entry], steps: Collection[int] | None) -> dict[int, Entry]:
    """The newest entry that has each step."""
    found = {step: entry for entry in entries for step in entry.steps}
    if not found.keys() >= set(steps or ()) or not found:
        for entry in entries:
            if entry.too_new:  # what is asked for may be in it
                raise TooNew(entry.problem)
    if steps is None:
        if not any(entry.problem is None for entry in entries):
            raise RefNotFound(f"the trash has nothing of run {run}; `standfast restore` lists it")
        return found
    for step in steps:
        if step not in found:
            there = ", ".join(map(str, sorted(found))) or "none"
            raise RefNotFound(
                f"the trash has no checkpoint of step {step} of run {run}; it has {there}"
            )
    return {step: found[step] for step in steps}


def _heads(
    backend: Backend, chosen: dict[int, Entry], strict: bool
) -> tuple[dict[int, Head], dict[int, str]]:
    """The heads of those that can come back, in order, and why the others cannot."""
    heads: dict[int, Head] = {}
    left: dict[int, str] = {}
    for number, (step, entry) in enumerate(sorted(chosen.items(), key=lambda item: item[0]), 1):
        try:
            heads[step] = _checked(backend, entry, step)
        except (DamagedFile, StepExists) as error:
            if strict or (not heads and number == len(chosen)):
                raise
            left[step] = str(getattr(error, "strerror", None) or error)
    return heads, left


def _checked(backend: Backend, entry: Entry, step: int) -> Head:
    """The head of a checkpoint that can come back."""
    name = _within(entry, names.record_file(entry.run, step))
    head = _head(backend, entry, step)
    for file in head.files:
        size = backend.size(f"{entry.path}/{file.name}")
        if size is None:
            raise MissingData(f"{name}: its file {file.name} is not in the trash")
        if size != file.size:
            raise DamagedFile(f"{entry.path}/{file.name} has {size:,} bytes, not {file.size:,}")
    target = names.record_file(entry.run, step)
    # One that is there already as the very same file was never deleted, or came back before.
    if backend.exists(target) and not backend.link(name, target):
        raise StepExists(
            errno.EEXIST,
            f"step {step} of run {entry.run} was saved again since: delete that one first, or "
            "leave this one in the trash",
        )
    return head


def _head(backend: Backend, entry: Entry, step: int) -> Head:
    name = _within(entry, names.record_file(entry.run, step))
    try:
        size = backend.size(name)
        if size is not None and size > MAX_RECORD:
            raise LimitExceeded(f"{size:,} bytes, over {MAX_RECORD:,}")
        return decode(backend.read(name), entry.run, step).head
    except MissingFile as error:
        raise MissingData(f"{name} is not there: the entry is not whole any more") from error
    except (DamagedFile, TooNew) as error:
        error.args = (f"{name}: {error}", *error.args[1:])
        raise


def _restore_run(backend: Backend, run: str, entries: list[Entry], heads: dict[int, Head]) -> None:
    """Make a run again that is gone; one that is there must be the same."""
    try:
        identity = read_run(backend, run).identity
        for step, head in heads.items():
            if head.identity != identity:
                raise RunCollision(
                    f"step {step} in the trash is of another run with the same short hash {run}"
                )
        return
    except MissingFile:
        pass
    except DamagedFile:
        return  # doctor makes it again from a record
    for entry in reversed(entries):
        for name in (*beside(run), names.run_file(run)):  # which makes it exist, and so comes last
            with suppress(MissingFile):
                _bring(backend, _within(entry, name), name)
                backend.sync(name.rpartition("/")[0])
        if backend.exists(names.run_file(run)):
            return


def _link_files(backend: Backend, entry: Entry, head: Head) -> None:
    """Bring all files of a checkpoint into the folder of its run, but for its record."""
    folder = names.run_folder(entry.run)
    for file in head.files:
        _bring(backend, f"{entry.path}/{file.name}", f"{folder}/{file.name}")
    if backend.exists(names.record_file(entry.run, head.step)):
        return  # it was never deleted, and has marks of its own
    marks = names.marks_file(entry.run, head.step)
    with suppress(MissingFile):
        backend.link(_within(entry, marks), marks, over=True)


def _commit(backend: Backend, entry: Entry, head: Head) -> None:
    """Bring back the record, which makes the checkpoint exist, and the name that V3 has for it."""
    folder, target = names.run_folder(entry.run), names.record_file(entry.run, head.step)
    backend.sync(folder)  # all that it refers to must be there before it
    if not backend.link(_within(entry, target), target):
        raise _no_link(target)
    backend.sync(folder)
    name_whole_file(backend, head)


def _bring(backend: Backend, source: str, target: str) -> None:
    """Link a file back; one of the same name and size is the same, for no name is used twice."""
    if backend.link(source, target) or backend.size(target) == backend.size(source):
        return
    if not backend.link(source, target, over=True):
        raise _no_link(target)


def _no_link(target: str) -> WriteFailed:
    return WriteFailed(
        errno.EXDEV, f"cannot link {target} out of the trash: this file system has no hard links"
    )


def _take_out(backend: Backend, entry: Entry, heads: dict[int, Head]) -> None:
    """Let an entry be without what came back, be it from there or from another."""
    back = {
        each.step
        for each in entry.checkpoints
        if each.step in heads and heads[each.step].sequence == each.sequence
    }
    if back or not entry.checkpoints:
        left = [step for step in entry.steps if step not in back]
        Trash(backend).shrink(entry, back, _needed(backend, entry, left))


def _needed(backend: Backend, entry: Entry, steps: list[int]) -> set[str] | None:
    """The files that some checkpoints of an entry need; None if that cannot be said."""
    needed: set[str] = set()
    try:
        for step in steps:
            needed |= {file.name for file in _head(backend, entry, step).files}
            for name in (names.record_file, names.marks_file):
                needed.add(name(entry.run, step).rpartition("/")[2])
    except (DamagedFile, TooNew):
        return None
    return needed


def _within(entry: Entry, name: str) -> str:
    """Where the trash has a file of a run."""
    return f"{entry.path}/{name.rpartition('/')[2]}"
