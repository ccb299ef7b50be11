"""The deletion of what a run does not keep.

Of those that stay, one at least must be known to be intact, every byte of it: see
docs/decisions/0016-the-last-verified.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.errors import (
    DamagedFile,
    HoldfastError,
    Protected,
    RefNotFound,
    UnreadableFile,
    WriteFailed,
)
from holdfast.retention import Retention
from holdfast.store import names
from holdfast.store.changing import change_of
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.dropping import without_parts
from holdfast.store.history import Deletion, note_deletions
from holdfast.store.reading import read_record
from holdfast.store.record import encode
from holdfast.store.removal import delete_checkpoints, delete_unused, orphans
from holdfast.store.runfile import now
from holdfast.store.space import Space
from holdfast.store.trash import Trash
from holdfast.store.usage import freed as bytes_freed
from holdfast.store.verdicts import Verdict, judged, protections, stored

if TYPE_CHECKING:
    from holdfast.store.store import Store


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
    store.index.refresh()
    retention = retention or stored(store, run)
    try:
        if retention.budget is not None:
            _empty_trash(store, run, retention.budget)
        found = judged(store, run, retention)
        if any(_to_do(found)):
            _check_verified(store, run, found)
            with change_of(store.backend, run):
                _carry_out(store, run, list(_still_true(store, run, found)), done)
        if retention.budget is not None:
            _check_budget(store, run, retention.budget)
    except HoldfastError as error:
        done.problems.append(_said(error))
    return done


def after_save(store: Store, run: str) -> Retained:
    """Delete what a run does not keep, and what the store has no room for, after a save."""
    done = retain(store, run)
    try:
        budget = store.budget
    except HoldfastError as error:
        done.problems.append(_said(error))
        return done
    return done if budget is None else keep_within(store, budget)


def keep_within(store: Store, budget: int | None) -> Retained:
    """Delete what all runs do not keep, and the oldest until the store takes no more than that."""
    from holdfast.store.collection import carry_out, plan  # which stands on what is in here

    done = Retained()
    made = plan(store, to=budget)
    if budget is None or made.total > budget or made.lines:
        carried = carry_out(store, made)
        done.freed = carried.freed
        done.deleted = [line.step for line in carried.lines if line.kind == "checkpoint"]
        done.problems += [f"{what}: {why}" for what, why in carried.problems.items()]
    if made.short:
        done.problems.append(
            f"the store takes {made.after:,} bytes, over its budget of {budget:,}: what is left "
            "must not be deleted"
        )
    return done


def _said(error: HoldfastError) -> str:
    """An error in its own words, without a number in front."""
    return str(getattr(error, "strerror", None) or error)


def _empty_trash(store: Store, run: str, budget: int) -> None:
    """What is in the trash goes before a checkpoint does."""
    trash = Trash(store.backend)
    entries = sorted(trash.entries(run), key=lambda entry: entry.time)
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


def _to_do(found: Sequence[Verdict]) -> Iterator[Verdict]:
    return (each for each in found if not each.keep or each.drop)


def _still_true(store: Store, run: str, found: Sequence[Verdict]) -> Iterator[Verdict]:
    """The verdicts on checkpoints that are what they were; what has come into use since, stays."""
    store.index.refresh()
    sequences = store.index.sequences(run)
    protected = protections(store, run)
    for each in found:
        if sequences.get(each.step) == each.sequence:
            if each.step in protected and not each.protected:
                each = replace(each, keep=True, drop=())
            yield each


def _check_verified(store: Store, run: str, found: Sequence[Verdict]) -> None:
    """See to it that one of those that stay is known to be intact; raises Protected.

    One that was verified before will do: of the last n that are kept, one is read now and then.
    """
    staying = [each for each in found if each.keep and not each.drop]
    known = store.index.verified(run)
    for each in staying:
        if known.get(each.step) == each.sequence and _has_files(store, run, each.step):
            return
    intact_step(store, run, [each.step for each in staying])


def intact_step(store: Store, run: str, steps: Collection[int]) -> int:
    """The newest of these steps whose every byte is what was saved; raises Protected if none is."""
    damage = ""
    for listed in store.index.newest(run):
        if listed.step in steps:
            try:
                Checkpoint(store, listed.head).verify()
                store.index.set_verified(listed.head.place)
                return listed.step
            except (DamagedFile, UnreadableFile, RefNotFound) as error:
                damage = damage or f" ({error})"
    raise Protected(
        f"run {run} would have no intact checkpoint left{damage}: nothing is deleted; delete the "
        "whole run if it is not needed"
    )


def _has_files(store: Store, run: str, step: int) -> bool:
    listed = store.index.record(run, step)
    with suppress(HoldfastError):
        if listed is not None:
            Checkpoint(store, listed.head).check_files()
            return True
    return False


def _carry_out(store: Store, run: str, found: Sequence[Verdict], done: Retained) -> None:
    """Delete, with the lock of the run's changes held."""
    _check_verified(store, run, found)  # of what is there now
    space = Space(store.backend, store.index, [run])
    gone = [each for each in found if not each.keep]
    freed = {each.step: space.delete(run, each.step) for each in gone}
    try:  # before it happens: a kill in between leaves nothing that nobody can explain
        note_deletions(store, run, [_deletion(each, freed) for each in _to_do(found)])
    except WriteFailed as error:  # a full disk is what deleting is for
        done.problems.append(_said(error))
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
    store.backend.replace(names.record_file(run, verdict.step), encode(rest))
    return True
