"""The deletion of what a run does not keep.

Of those that stay, one at least must be known to be intact, every byte of it: see
docs/decisions/0016-the-last-verified.md.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from standfast.errors import (
    DamagedFile,
    Protected,
    RefNotFound,
    StandfastError,
    UnreadableFile,
    WriteFailed,
)
from standfast.policies import Retention, parts_of
from standfast.store.checkpoint import Checkpoint
from standfast.store.load.reading import read_record
from standfast.store.retention.dropping import without_parts
from standfast.store.retention.history import Deletion, note_deletions
from standfast.store.retention.removal import delete_checkpoints, delete_unused, orphans
from standfast.store.retention.space import Space
from standfast.store.retention.trash import Trash
from standfast.store.retention.usage import freed as bytes_freed
from standfast.store.retention.verdicts import (
    NOBODY_KNOWS,
    UNKNOWN,
    Verdict,
    judged,
    protections,
    stored,
)
from standfast.store.save.taken import changing, check_writable
from standfast.store.schema import names
from standfast.store.schema.decoder import encode_checked
from standfast.store.schema.run_file import now

if TYPE_CHECKING:
    from standfast.store.store import Store


@dataclass
class Retained:
    """What was deleted, and what could not be."""

    deleted: list[int] = field(default_factory=list)
    """Steps."""
    dropped: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """By step, the parts that were deleted."""
    freed: int = 0
    problems: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.deleted or self.dropped)


def retain(store: Store, run: str, retention: Retention | None = None) -> Retained:
    """Delete what is not kept, at once; what goes wrong is reported and does no harm."""
    done = Retained()
    try:
        check_writable(store.backend, store.index, run)
        wanted = retention or stored(store, run)
        _refuse_unreadable(store, run, wanted)
        if wanted.budget is not None:
            _empty_trash(store, run, wanted.budget)
        seen = _seen(store, run)
        found = judged(store, run, wanted)
        done.problems += _doubts(store, run, wanted, found)
        if any(_to_do(found)):
            _check_intact(store, run, found)
            with changing(store.backend, store.index, run):
                wanted = retention or stored(store, run)
                _refuse_unreadable(store, run, wanted)
                if _seen(store, run) != seen:  # saves, tags, readers or another retention
                    found = judged(store, run, wanted)
                _carry_out(store, run, found, done)
        if wanted.budget is not None:
            _check_budget(store, run, wanted.budget)
    except StandfastError as error:
        done.problems.append(said(error))
    return done


def _seen(store: Store, run: str) -> tuple[object, ...]:
    """All that a verdict depends on, and that may change."""
    index = store.index
    dropped = {each.step: each.head.dropped for each in index.newest(run)}
    now = index.sequences(run), index.late_metrics(run), protections(store, run)
    return *now, dropped, stored(store, run)


def _refuse_unreadable(store: Store, run: str, retention: Retention) -> None:
    """Raise Protected if what a run keeps, or what its records refer to, cannot be read."""
    if not store.index.has_run_file(run):
        raise Protected(
            f"run {run}: {UNKNOWN}; nothing of it is deleted; `standfast doctor` looks into it"
        )
    for _, step, problem in store.index.unreadable(run):
        if retention != Retention():
            raise Protected(
                f"run {run}: its record of step {step} cannot be read ({problem}), and nothing of "
                "the run is deleted; `standfast doctor` looks into it"
            )


def said(error: StandfastError) -> str:
    """An error in its own words, without a number in front."""
    return str(getattr(error, "strerror", None) or error)


def _empty_trash(store: Store, run: str, budget: int) -> None:
    """What is in the trash goes before a checkpoint does."""
    trash = Trash(store.backend)
    entries = [entry for entry in trash.entries(run) if entry.problem is None]
    while entries and Space(store.backend, store.index, [run]).total > budget:
        trash.remove(entries.pop(0))


def _check_budget(store: Store, run: str, budget: int) -> None:
    store.index.refresh()
    total = Space(store.backend, store.index, [run]).total
    if total > budget:
        raise Protected(
            f"run {run} takes {total:,} bytes, over its budget of {budget:,}: what is left must "
            "not be deleted"
        )


def _doubts(
    store: Store, run: str, retention: Retention, found: Sequence[Verdict]
) -> Iterator[str]:
    """What of the retention cannot be meant: a metric, or a part, that no checkpoint has."""
    unknown = (why for each in found for why in each.why if why.startswith(NOBODY_KNOWS))
    yield from (f"{why}; nothing is deleted" for why in itertools.islice(unknown, 1))
    newest = next(store.index.newest(run), None)
    if newest is not None:
        there = {part.key for part in newest.head.parts if part.key}
        for part in sorted({part for policy in retention.keep for part in parts_of(policy)}):
            if part not in there:
                known = ", ".join(sorted(map(str, there)))
                yield f"no part of the latest checkpoint is called {part!r}; there are {known}"


def _to_do(found: Sequence[Verdict]) -> Iterator[Verdict]:
    return (each for each in found if not each.keep or each.drop)


def _check_intact(
    store: Store, run: str, found: Sequence[Verdict], *, locked: bool = False
) -> None:
    """Make sure that one of those that stay, whole, is known to be intact; raises Protected."""
    steps = {each.step for each in found if each.keep and not each.drop}
    intact_before(store, run, steps, locked=locked)


def intact_before(store: Store, run: str, steps: Collection[int], *, locked: bool = False) -> int:
    """One of these steps that was verified before, or else is verified now; raises Protected.

    So one of the last n that are kept is read from time to time. `locked` says that the caller
    holds the lock of the run's changes.
    """
    for step in store.index.verified(run):
        if step in steps and _is_trusted(store, run, step):
            return step
    return intact_step(store, run, steps, locked=locked)


def intact_step(store: Store, run: str, steps: Collection[int], *, locked: bool = False) -> int:
    """The newest of these steps whose every byte is what was saved; raises Protected if none is."""
    damage = ""
    for listed in store.index.newest(run):
        if listed.step in steps:
            try:
                checkpoint = Checkpoint(store, listed.head)
                checkpoint.verify()
                if locked:
                    checkpoint.mark_verified(locked=True)
                return listed.step
            except (DamagedFile, UnreadableFile, RefNotFound) as error:
                damage = damage or f" ({error})"
    raise Protected(
        f"run {run} would have no intact checkpoint left{damage}: nothing is deleted; delete the "
        "whole run if it is not needed"
    )


def _is_trusted(store: Store, run: str, step: int) -> bool:
    """Whether nothing speaks against a checkpoint that was intact once."""
    listed = store.index.record(run, step)
    if listed is None or store.index.damaged_files() & {file.name for file in listed.head.files}:
        return False
    with suppress(StandfastError):
        Checkpoint(store, listed.head).check_files()
        return True
    return False


def _carry_out(store: Store, run: str, found: Sequence[Verdict], done: Retained) -> None:
    """Delete, with the lock of the run's changes held."""
    _check_intact(store, run, found, locked=True)  # of what is there now
    freed = _freed(store, run, [each.step for each in found if not each.keep])
    try:  # before it happens: a kill in between leaves nothing that nobody can explain
        note_deletions(store, run, [_deletion(each, freed) for each in _to_do(found)])
    except WriteFailed as error:  # a full disk is what deleting is for
        done.problems.append(said(error))
    delete_checkpoints(store.backend, store.index, run, freed)
    done.deleted += freed
    done.freed += sum(freed.values())
    for each in found:
        if each.keep and each.drop and _drop(store, run, each):
            done.dropped[each.step] = each.drop
    if done.dropped:
        store.index.refresh()
        folder = names.run_folder(run)
        unused = orphans(store.backend, store.index, run)
        done.freed += bytes_freed(store.backend, [f"{folder}/{name}" for name in unused])
        delete_unused(store.backend, store.index, run)


def _freed(store: Store, run: str, steps: Sequence[int]) -> dict[int, int]:
    """What deleting these frees, one after the other; only their own files are looked at."""
    folder = names.run_folder(run)
    refers: dict[int, list[str]] = {}
    users: Counter[str] = Counter()
    for _, step, name in store.index.references(run):
        refers.setdefault(step, []).append(name)
        users[name] += 1
    freed = {}
    for step in steps:
        users.subtract(refers.get(step, ()))
        gone = [f"{folder}/{name}" for name in refers.get(step, ()) if not users[name]]
        own = (names.record_file, names.marks_file, names.whole_file)
        freed[step] = bytes_freed(store.backend, [*gone, *(name(run, step) for name in own)])
    return freed


def _deletion(verdict: Verdict, freed: Mapping[int, int]) -> Deletion:
    return Deletion(
        now(),
        verdict.step,
        verdict.sequence,
        verdict.by,
        "; ".join(verdict.why),
        freed.get(verdict.step, 0),
        verdict.drop,
    )


def _drop(store: Store, run: str, verdict: Verdict) -> bool:
    """Commit a checkpoint again without some parts; False if it cannot be without them."""
    record = read_record(store.backend, run, verdict.step)
    if record.head.sequence != verdict.sequence:
        return False  # replaced meanwhile
    rest = without_parts(record, verdict.drop)
    if rest is None:
        return False
    store.backend.replace(names.record_file(run, verdict.step), encode_checked(rest))
    return True
