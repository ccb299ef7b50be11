"""The trash: what `gc` and `rm` delete stays for some days, and can be brought back.

An entry is a folder of hard links to all files that its checkpoints need, and so complete by
itself. It exists when its `entry.json` does, which is written last and deleted first. Everything
here happens under one lock: a folder without that file is what a dead process left.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Final

from standfast.errors import MissingFile, StandfastError
from standfast.store.backends.backend import Backend
from standfast.store.retention.trash_entry import (
    FILE,
    By,
    Entry,
    Kept,
    encode,
    file_of,
    read_entry,
    run_of,
)
from standfast.store.retention.usage import Inode, freed, statuses
from standfast.store.save.changing import change_of
from standfast.store.schema import names
from standfast.store.schema.decoder import read_head
from standfast.store.schema.run_file import now as time_now
from standfast.store.schema.run_file import read_run
from standfast.store.v3.companions import files_beside

KEPT: Final = 7 * 86400.0
"""How many seconds an entry stays."""
LOCK: Final = "trash"


class Trash:
    """The trash of a store."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def entries(self, run: str | None = None) -> list[Entry]:
        """All entries, or those of a run, the oldest first; before them those that are damaged."""
        found = []
        for folder in self._folders():
            if run in (None, run_of(folder)) and self._backend.exists(file_of(folder)):
                found.append(read_entry(self._backend, folder))
        return sorted(found, key=lambda entry: (entry.time, entry.folder))

    def _folders(self) -> Iterator[str]:
        """The folders of the trash; a link to one elsewhere is none of ours."""
        for folder in self._backend.folders(names.TRASH):
            path = self._backend.path(f"{names.TRASH}/{folder}")
            if run_of(folder) and not (path is not None and path.is_symlink()):
                yield folder

    def nbytes(self) -> int:
        """The bytes that only the trash holds."""
        counts: Counter[Inode] = Counter()
        sizes: dict[Inode, int] = {}
        for folder in self._folders():
            path = f"{names.TRASH}/{folder}"
            listed = [name for name, _ in self._backend.list(path)]
            for _, status in statuses(self._backend, path, listed):
                counts[status.inode] += 1
                sizes[status.inode] = status.size if counts[status.inode] >= status.links else 0
        return sum(sizes.values())

    # Putting in

    def put(self, run: str, steps: Collection[int] | None, by: By, why: str) -> Entry | None:
        """Link the files of checkpoints, or with None of the whole run, into a new entry.

        The caller holds the lock of the run's changes, and deletes them then. An older entry that
        has nothing more is deleted: whoever was killed between the two can begin again. None where
        there are no links, or no files, as when another process has deleted the run.
        """
        with change_of(self._backend, LOCK):
            self._sweep()
            whole = steps is None
            chosen = recorded(self._backend, run) if steps is None else sorted(set(steps))
            kept, files = self._files(run, chosen)
            if whole:
                files = [*run_files(self._backend, run)]
            folder = f"{run}.{os.urandom(4).hex()}"
            entry = Entry(folder, run, self._label(run), tuple(kept), whole, time_now(), by, why)
            if not self._link_all(files, entry.path) or not self._backend.exists(entry.path):
                self._drop(entry.folder)
                return None
            self._backend.sync(entry.path)
            self._backend.create(file_of(entry.folder), encode(entry))
            for other in self.entries(run):
                if _holds(entry, other):
                    self._drop(other.folder)
            return entry

    def _files(self, run: str, steps: Iterable[int]) -> tuple[list[Kept], list[str]]:
        """The checkpoints of these steps, and all files that they need."""
        folder = names.run_folder(run)
        kept = []
        files: dict[str, None] = {}
        for step in steps:
            sequence = 0
            try:
                head = read_head(self._backend, run, step)
                sequence = head.sequence
                files |= dict.fromkeys(f"{folder}/{file.name}" for file in head.files)
            except StandfastError:
                pass  # nobody knows what it refers to, and it cannot be brought back
            kept.append(Kept(step, sequence))
            files |= {names.record_file(run, step): None, names.marks_file(run, step): None}
        return kept, [*files, names.run_file(run), *beside(run)]

    def _link_all(self, files: Iterable[str], folder: str) -> bool:
        for source in files:
            try:
                if not self._backend.link(source, f"{folder}/{source.rpartition('/')[2]}"):
                    return False
            except MissingFile:
                continue  # it has no marks, or lacks the file already
        return True

    def _label(self, run: str) -> str | None:
        try:
            return read_run(self._backend, run).name
        except StandfastError:
            return None

    # Taking out

    def empty(
        self,
        older_than: float | None = None,
        need: int | None = None,
        now: datetime | None = None,
    ) -> int:
        """Delete entries, the oldest first; returns the bytes that are free then.

        All of them, or those of at least this age, or as many as it takes to free so many bytes.
        """
        if not self._backend.folders(names.TRASH):
            return 0  # and no lock in a folder that is not ours to write into
        with change_of(self._backend, LOCK):
            total = self._sweep()
            for entry in self.entries():
                if need is not None and total >= need:
                    break
                if entry.too_new:
                    continue
                # The age of one that cannot be read is unknown: only a person deletes it.
                is_all = older_than is None and need is None
                is_due = older_than is None or entry.age(now) >= older_than
                if is_all or (is_due and entry.problem is None):
                    total += self._drop(entry.folder)
        return total

    def remove(self, entry: Entry) -> int:
        """Delete one entry, if it is there; returns the bytes that are free then."""
        with change_of(self._backend, LOCK):
            return self._drop(entry.folder)

    def shrink(self, entry: Entry, steps: Collection[int], needed: Collection[str] | None) -> None:
        """Let an entry be without some checkpoints; `needed` are the files of the others, if known.

        The caller holds the lock of the trash. With the last checkpoint the entry goes.
        """
        left = tuple(each for each in entry.checkpoints if each.step not in steps)
        if not left:
            self._drop(entry.folder)
            return
        self._backend.replace(file_of(entry.folder), encode(replace(entry, checkpoints=left)))
        if needed is not None:
            unneeded = [
                f"{entry.path}/{name}"
                for name, _ in self._backend.list(entry.path)
                if (named := names.parse(name, entry.run))
                and named.kind in ("record", "marks", "data")
                and name not in needed
            ]
            self._backend.delete(unneeded)

    def _sweep(self) -> int:
        """Delete what dead processes left; returns the bytes that are free then."""
        total = 0
        for folder in self._folders():
            if self._backend.exists(file_of(folder)):
                self._backend.sweep(f"{names.TRASH}/{folder}")
            else:
                total += self._drop(folder)
        return total

    def _drop(self, folder: str) -> int:
        """Delete a folder of the trash; returns the bytes that are free then."""
        path = f"{names.TRASH}/{folder}"
        ours = [
            f"{path}/{name}"
            for name, _ in self._backend.list(path)
            if _is_ours(name, str(run_of(folder)))
        ]
        nbytes = freed(self._backend, ours)
        file = file_of(folder)
        if file in ours:
            self._backend.delete([file])
            self._backend.sync(path)  # no entry may come back that lacks what is deleted next
        self._backend.delete(ours)
        self._backend.sweep(path)
        self._backend.delete_folder(path)
        return nbytes


def _holds(new: Entry, old: Entry) -> bool:
    """Whether an entry has all that an older one has."""
    return (
        new.folder != old.folder
        and old.problem is None
        and (new.whole or not old.whole)
        and set(old.checkpoints) <= set(new.checkpoints)
    )


def recorded(backend: Backend, run: str) -> list[int]:
    """The steps of which a run has a record."""
    listed = backend.list(names.run_folder(run), ".json")
    found = (names.parse(name, run) for name, _ in listed)
    return sorted(named.step for named in found if named and named.kind == "record")


def run_files(backend: Backend, run: str) -> Iterator[str]:
    """All files of a run, but for the second names of whole files."""
    folder = names.run_folder(run)
    for name, _ in backend.list(folder):
        named = names.parse(name, run)
        if named is not None and named.kind != "name":
            yield f"{folder}/{name}"
    yield from files_beside(run)


def beside(run: str) -> list[str]:
    """What a run is made again from, if it is gone when its checkpoint comes back."""
    suffixes = (".json", ".pkl")
    return [*(names.architecture_file(run, suffix) for suffix in suffixes), *files_beside(run)]


def _is_ours(name: str, run: str) -> bool:
    others = {path.rpartition("/")[2] for path in files_beside(run)}
    return name == FILE or name in others or names.parse(name, run) is not None
