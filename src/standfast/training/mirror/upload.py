"""What a mirror lacks of a run, and how it gets there: the newest checkpoint first."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Final

import msgspec

from standfast.errors import (
    AlreadyExists,
    DamagedFile,
    FileError,
    MissingFile,
    NotAStore,
    RefNotFound,
    RunCollision,
    StandfastError,
)
from standfast.policies import Candidate, KeepBest, Retention, judge
from standfast.store import Checkpoint, Run, Store
from standfast.store.copies.copy import copy_checkpoint
from standfast.store.copies.files import UnreadableSource
from standfast.store.query.listing import metrics_of
from standfast.store.query.mirrors import another_run, is_another_run, is_same, open_mirror
from standfast.store.retention.budgets import after_save
from standfast.store.retention.retaining import said
from standfast.store.save.taken import change_run, check_writable
from standfast.store.schema import names
from standfast.store.schema.record import Head
from standfast.store.schema.run_file import RunFile, encode, read_run
from standfast.store.v3.foreign import is_foreign_store
from standfast.training.mirror.marks import CopiedMarks

_REST: Final = 3600.0
"""So many seconds a checkpoint that is damaged here is let be, before it is tried again."""

Key = tuple[int, int, str]
Moved = Callable[[int], None]


class Uploader:
    """Copies the checkpoints of a run that its mirror lacks, and deletes what that does not keep.

    Which they are is found out by comparing the two stores, each time: nothing has to be
    remembered, and so nothing is forgotten, whatever was killed when.
    """

    def __init__(self, local: Store, run: str, place: str, keep: Retention | None) -> None:
        self._local = local
        self._run = run
        self._place = place
        self._keep = keep
        self._mirror: Store | None = None
        self._done: set[Key] = set()
        """What this object has copied: the mirror may have deleted it since."""
        self._resting: dict[Key, tuple[float, str]] = {}
        """Those that cannot be read here: until when they are let be, and why."""
        self._conflicts: dict[Key, str] = {}
        self._problems: list[str] = []
        self._marks = CopiedMarks(local, run)
        self._is_untidy = True

    @property
    def problem(self) -> str | None:
        """What is wrong with single checkpoints, or with the deletion of old ones."""
        resting = [text for _, text in self._resting.values()]
        found = [*self._conflicts.values(), *resting, *self._problems, *self._marks.problems]
        return found[0] if found else None

    @property
    def step(self) -> int | None:
        """The newest step that is in the mirror."""
        newest = None if self._mirror is None else next(self._mirror.index.newest(self._run), None)
        return newest.step if newest else None

    def forget_mirror(self) -> None:
        """Open it anew next time: what went wrong may be in the line to it."""
        mirror, self._mirror = self._mirror, None
        if mirror is not None:
            with suppress(StandfastError):
                mirror.close()

    def open(self) -> Store:
        """The mirror, with the run in it; raises what keeps it from being reached."""
        if self._mirror is None:
            mirror = open_mirror(self._place)
            self._prepare(mirror)
            mirror.index.refresh()
            self._mirror = mirror
        return self._mirror

    def _prepare(self, mirror: Store) -> None:
        """Make the run there, with a retention of its own; that of the store here stays here."""
        here = read_run(self._local.backend, self._run)
        try:
            there = read_run(mirror.backend, self._run)
        except MissingFile:
            if is_foreign_store(mirror.backend):
                raise NotAStore(
                    errno.EPERM, f"{mirror.url} was written by another program, and is no mirror"
                ) from None
            check_writable(mirror.backend, mirror.index, self._run)
            text = encode(msgspec.structs.replace(here, retention=self._keep))
            with suppress(AlreadyExists):
                mirror.backend.create(names.run_file(self._run), text)
            return
        if there.identity != here.identity:
            raise RunCollision(
                f"the mirror {self._place} has another run that goes by {self._run}: choose "
                "another place, or give a `trial`"
            )
        if there.created != here.created:
            self._take_over(mirror, here)
        if here.name is not None and there.name != here.name:
            Run(mirror, there).rename(here.name)
        if self._keep is not None:
            Run(mirror, there).set_retention(self._keep)

    def _take_over(self, mirror: Store, here: RunFile) -> None:
        """Let the run there be this one if it has no checkpoint; raise if it is another."""
        self._local.index.refresh()

        def take_over(there: RunFile) -> RunFile:
            mirror.index.refresh()
            if not mirror.index.steps(self._run):
                return msgspec.structs.replace(here, retention=there.retention)
            if is_another_run(here, there):
                raise another_run(f"the mirror {self._place}", there)
            return there

        change_run(mirror.backend, mirror.index, self._run, take_over)

    # What is missing

    def missing(self) -> list[Head]:
        """The checkpoints that the mirror should have and has not, the newest first."""
        return self._missing_in(self.open())

    def count_missing(self) -> int:
        """How many those are, by what was last known of a mirror that cannot be reached."""
        with suppress(StandfastError):
            return len(self._missing_in(self._mirror or open_mirror(self._place)))
        return 0

    def _missing_in(self, mirror: Store) -> list[Head]:
        self._local.index.refresh()
        here = [each.head for each in self._local.index.newest(self._run)]
        there = {each.step: each.head for each in mirror.index.newest(self._run)}
        kept = mirror.index.protected(self._run)
        self._conflicts = {}
        known = set(map(_key, here))
        self._resting = {key: rest for key, rest in self._resting.items() if key in known}
        missing = [h for h in here if self._is_missing(h, there.get(h.step), kept.get(h.step))]
        wanted = self._wanted(mirror, here, there.values()) if missing else set()
        now = time.monotonic()
        return [
            head
            for head in missing
            if head.step in wanted and self._resting.get(_key(head), (0.0, ""))[0] <= now
        ]

    def _is_missing(self, head: Head, other: Head | None, kept: str | None) -> bool:
        if _key(head) in self._done or (other is not None and is_same(head, other)):
            return False
        if other is None:
            return True
        if other.sequence < head.sequence and other.time < head.time and kept is None:
            return True
        why = kept or "is not replaced by an older one"
        self._conflicts[_key(head)] = (
            f"the mirror {self._place} has another checkpoint of step {head.step}, saved on "
            f"{other.time[:19].replace('T', ' ')}, and it {why}: bring it here by `standfast "
            "pull`, or choose another place"
        )
        return False

    def _wanted(self, mirror: Store, here: list[Head], there: Iterable[Head]) -> set[int]:
        """The steps that the mirror keeps: all others would be deleted as soon as they arrive."""
        local = self._local.index
        steps = {head.step for head in here}
        file = mirror.index.run_file(self._run)
        retention = (file.retention if file else None) or Retention()
        if not retention.keep:
            return steps
        only_there = [head for head in there if head.step not in steps]
        candidates = [*_candidates(self._local, here), *_candidates(mirror, only_there)]
        candidates.sort(key=lambda pair: pair[0])
        known = {name for _, each in candidates for name in each.metrics}
        for policy in retention.keep:
            if isinstance(policy, KeepBest) and policy.metric not in known:
                return steps  # nobody knows which is the best
        wishes = judge(retention.keep, [each for _, each in candidates])
        best = local.best(self._run)
        always = {head.step for head in here[:1]} | ({best.step} if best else set())
        tagged = {step for step, tags in local.tags(self._run).items() if tags}
        return {step for step, wish in wishes.items() if wish.reasons} | always | tagged

    # What is done about it

    def copy(self, head: Head, moved: Moved) -> None:
        """Copy one; raises what is wrong with the mirror. One that was deleted here is skipped."""
        mirror = self.open()
        try:
            copied = copy_checkpoint(Checkpoint(self._local, head), mirror, moved, replace=True)
        except (RefNotFound, FileError, DamagedFile) as error:
            if self._is_gone(head):
                return
            if not isinstance(error, DamagedFile | UnreadableSource):
                raise
            text = f"step {head.step} cannot be copied: {said(error)}"
            self._resting[_key(head)] = time.monotonic() + _REST, text
            return
        self._done.add(_key(head))
        self._is_untidy = True
        self._resting.pop(_key(head), None)
        mirror.index.refresh()
        if not copied.shared:  # every byte was read, and compared with its digest, on its way
            Checkpoint(mirror, head).mark_verified()

    def _is_gone(self, head: Head) -> bool:
        """Whether a checkpoint was deleted here, or replaced, by now."""
        self._local.index.refresh()
        listed = self._local.index.record(self._run, head.step)
        return listed is None or not is_same(listed.head, head)

    def tidy(self) -> None:
        """When nothing is missing: let marks be the same, and delete what the mirror drops."""
        mirror = self.open()
        if not self._marks.copy(mirror) and not self._is_untidy:
            return
        run = mirror.open_run(self._run)
        self._problems = []
        if run.is_limited():
            done = after_save(mirror, self._run)
            self._problems = [f"old checkpoints of the mirror: {each}" for each in done.problems]
        mirror.close()  # nobody may be left to tell others of it later
        self._is_untidy = False


def _key(head: Head) -> Key:
    return head.step, head.sequence, head.time


def _candidates(store: Store, heads: list[Head]) -> Iterator[tuple[int, Candidate]]:
    """What policies judge by, each with its number in the history."""
    for run in {head.run for head in heads}:
        late, tags = store.index.late_metrics(run), store.index.tags(run)
        for head in heads:
            metrics = metrics_of(head, late.get(head.step))
            tagged = bool(tags.get(head.step))
            yield head.sequence, Candidate(head.step, _seconds(head.time), metrics, tagged)


def _seconds(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # text out of a file
        return 0.0
