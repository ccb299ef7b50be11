"""Checkpoints and runs that somebody asks to be deleted, rather than a policy."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, Literal

from standfast.errors import Protected, RefNotFound, WriteFailed
from standfast.store.retention.history import Deletion, note_deletions
from standfast.store.retention.pins import pinned_steps
from standfast.store.retention.removal import delete_checkpoints, delete_run
from standfast.store.retention.retaining import intact_before, intact_step
from standfast.store.retention.space import Space
from standfast.store.retention.trash import Trash
from standfast.store.retention.verdicts import IN_USE
from standfast.store.save.taken import changing, check_writable
from standfast.store.schema import names
from standfast.store.schema.run_file import now

if TYPE_CHECKING:
    from standfast.store.store import Store

Command = Literal["rm", "gc"]
"""The commands that put what they delete into the trash."""

_ASKED: Final = "somebody asked for it"


def check_delete(store: Store, run: str, steps: Sequence[int]) -> int:
    """Raise what `delete` would, and delete nothing; returns an intact step that is left."""
    _check(store, run, steps)
    return intact_step(store, run, set(store.index.steps(run)) - set(steps))


def delete(
    store: Store, run: str, steps: Sequence[int], trash: Command | None = None, why: str = ""
) -> None:
    """Delete checkpoints, or put them into the trash; raises RefNotFound, Protected or TooNew."""
    kept = check_delete(store, run, steps)
    with changing(store.backend, store.index, run):
        _check(store, run, steps, kept)
        if trash is not None:
            Trash(store.backend).put(run, steps, trash, why or _ASKED)
        _note(store, run, steps, trash, why)
        delete_checkpoints(store.backend, store.index, run, steps)


def collect(store: Store, run: str, steps: Collection[int], why: str) -> None:
    """Put checkpoints into the trash; raises Protected if no intact one would be left.

    The caller holds the lock of the run's changes, and chose them under it.
    """
    intact_before(store, run, set(store.index.steps(run)) - set(steps), locked=True)
    Trash(store.backend).put(run, steps, "gc", why)
    _note(store, run, [*steps], "gc", why)
    delete_checkpoints(store.backend, store.index, run, steps)
    store.index.refresh()


def _check(store: Store, run: str, steps: Sequence[int], kept: int | None = None) -> None:
    check_writable(store.backend, store.index, run)
    used = pinned_steps(store.backend, run)
    protected = dict.fromkeys(used, f"is {IN_USE}") | store.index.protected(run)
    known = set(store.index.steps(run))
    for step in steps:
        if step not in known:
            raise RefNotFound(f"run {run} has no checkpoint of step {step}")
        if step in protected:
            raise Protected(f"step {step} of run {run} {protected[step]}")
    if kept is not None and kept not in known:
        raise Protected(f"run {run}: step {kept}, which would be left, was deleted this moment")


def _note(store: Store, run: str, steps: Sequence[int], by: Command | None, why: str) -> None:
    space = Space(store.backend, store.index, [run])
    sequences = {each.step: each.head.sequence for each in store.index.newest(run)}
    deletions = [
        Deletion(
            now(),
            step,
            sequences.get(step, 0),
            by or "program",
            why or _ASKED,
            space.delete(run, step) if by is None else 0,
        )
        for step in steps
    ]
    try:
        note_deletions(store, run, deletions)
    except WriteFailed:  # a full disk is what deleting is for
        return


def delete_all(store: Store, run: str, trash: Command | None = None) -> None:
    """Delete a run with all its checkpoints; raises Protected or TooNew.

    The caller holds its lock.
    """
    with changing(store.backend, store.index, run):
        for step, why in store.index.protected(run).items():
            raise Protected(f"step {step} of run {run} {why}")
        for step in pinned_steps(store.backend, run):
            raise Protected(f"step {step} of run {run} is {IN_USE}")
        if trash is not None:
            Trash(store.backend).put(run, None, trash, _ASKED)
        delete_run(store.backend, store.index, run)


def delete_empty(store: Store, run: str) -> bool:
    """Delete a run that has no record, not even a damaged one; the caller holds its lock."""
    with changing(store.backend, store.index, run):
        listed = (names.parse(name, run) for name, _ in store.backend.list(names.run_folder(run)))
        if any(named is not None and named.kind == "record" for named in listed):
            return False
        delete_run(store.backend, store.index, run)
    return True
