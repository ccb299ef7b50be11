"""What the files of a store take, and what deleting checkpoints frees, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from standfast.store.backends.backend import Backend
from standfast.store.index.index import Index
from standfast.store.retention.trash_entry import run_of
from standfast.store.retention.usage import Inode, Status, status_of, statuses
from standfast.store.schema import names
from standfast.store.v3.torch_names import our_names


class Space:
    """The files of some runs, or of all, in the trash too, as they were when it was made.

    Deletions are played through here and nowhere else: each answer knows of those before it.
    """

    def __init__(self, backend: Backend, index: Index, runs: Collection[str] | None = None) -> None:
        """Of the runs of these hashes; the index is as fresh as the caller wants it."""
        self._backend = backend
        self._files: dict[str, Status] = {}
        self._left: dict[Inode, int] = {}
        """How many names each file still has, here and elsewhere."""
        self._here: Counter[Inode] = Counter()
        """How many of these are in what is looked at."""
        self._put_links: Counter[Inode] = Counter()
        """How many it would have in the trash by what `put_in_trash` has put there."""
        self._put_files: list[Status] = []
        self._data: dict[str, set[str]] = {}
        """The data files in the folder of each run."""
        self._entries: dict[str, list[str]] = {}
        """The files of each folder in the trash."""
        self._refers: dict[tuple[str, int], list[str]] = {}
        self._users: Counter[str] = Counter()
        """How many records of its run refer to a data file."""
        self._unreadable: dict[str, set[int]] = {}
        self.total = 0
        """The bytes of all these files, each counted once whatever its number of names."""
        self.put = 0
        """The bytes that `put_in_trash` has put there; they are still in the total."""
        for run in [each.run for each in index.runs(empty=True)] if runs is None else runs:
            self._take_run(run)
        for entry in backend.folders(names.TRASH):
            if runs is None or run_of(entry) in runs:
                self._take_entry(entry)
        self._take_records(index, runs)

    def _take_run(self, run: str) -> None:
        folder = names.run_folder(run)
        kinds = {
            f"{folder}/{name}": named.kind
            for name, _ in self._backend.list(folder)
            if (named := names.parse(name, run)) is not None
        }
        listed = (path.removeprefix(f"{folder}/") for path in kinds)
        found = dict(statuses(self._backend, folder, listed))
        self._data[run] = {path for path in found if kinds[path] == "data"}
        ours = {f"{folder}/{name}" for name in our_names(self._backend, run)}
        for path, status in found.items():
            if kinds[path] != "name" or path in ours:  # else somebody else wrote it
                self._take(path, status)
        for path in (names.config_file(run), names.data_state_file(run)):
            if (beside := status_of(self._backend, path)) is not None:
                self._take(path, beside)

    def _take_entry(self, entry: str) -> None:
        folder = f"{names.TRASH}/{entry}"
        listed = [name for name, _ in self._backend.list(folder)]
        found = dict(statuses(self._backend, folder, listed))
        self._entries[entry] = list(found)
        for path, status in found.items():
            self._take(path, status)

    def _take(self, path: str, status: Status) -> None:
        self._files[path] = status
        self._here[status.inode] += 1
        if status.inode not in self._left:
            self._left[status.inode] = status.links
            self.total += status.size

    def _take_records(self, index: Index, runs: Collection[str] | None) -> None:
        for chosen in (None,) if runs is None else runs:
            for run, step, name in index.references(chosen):
                path = f"{names.run_folder(run)}/{name}"
                self._refers.setdefault((run, step), []).append(path)
                self._users[path] += 1
            for damaged, step, _ in index.unreadable(chosen):
                self._unreadable.setdefault(damaged, set()).add(step)

    # Asking

    def frees(self, run: str, step: int) -> int:
        """The bytes that deleting a checkpoint now would free, for good."""
        return self._freed(self._gone(run, step))

    def orphans(self, run: str) -> int:
        """The bytes of a run's data files that no record refers to, if all can be read."""
        return self._freed(self._unused(run))

    def trashed(self, entry: str) -> int:
        """The bytes that deleting a folder of the trash now would free."""
        return self._freed(self._entries.get(entry, ()))

    # Playing through

    def delete(self, run: str, step: int) -> int:
        """Delete a checkpoint; returns the bytes that are free then."""
        return self._delete(self._forget(run, step))

    def put_in_trash(self, run: str, step: int) -> int:
        """Put a checkpoint into the trash; returns what is free once that is emptied."""
        if not self._backend.links:  # then there is no trash
            return self.delete(run, step)
        needed = [names.record_file(run, step), names.marks_file(run, step)]
        needed += self._refers.get((run, step), ())
        linked = [self._files[path] for path in needed if path in self._files]
        gone = self._forget(run, step)
        freed = self._freed(gone, links=False)
        for status in linked:
            self._put_links[status.inode] += 1
        self._put_files += linked
        self._remove(gone)
        self.put += freed
        return freed

    def empty_put(self) -> int:
        """Delete all that was put into the trash here; returns what that frees."""
        linked = {status.inode: status.size for status in self._put_files}
        self._put_links.clear()
        self._put_files.clear()
        self.put = 0
        self.total -= sum(size for inode, size in linked.items() if not self._here[inode])
        return sum(size for inode, size in linked.items() if not self._left[inode])

    def _forget(self, run: str, step: int) -> list[str]:
        """The files that go with a checkpoint, which nothing refers to any more."""
        gone = list(self._gone(run, step))
        self._users.subtract(self._refers.pop((run, step), ()))
        self._unreadable.get(run, set()).discard(step)
        return gone

    def sweep(self, run: str) -> int:
        """Delete the data files of a run that no record refers to; returns what that frees."""
        return self._delete(list(self._unused(run)))

    def delete_run(self, run: str) -> int:
        """Delete all that is ours of a run; returns the bytes that are free then."""
        own = {names.config_file(run), names.data_state_file(run)}
        folder = f"{names.run_folder(run)}/"
        gone = [path for path in self._files if path.startswith(folder) or path in own]
        for of_run, step in [key for key in self._refers if key[0] == run]:
            self._users.subtract(self._refers.pop((of_run, step)))
        return self._delete(gone)

    def empty(self, entry: str) -> int:
        """Delete a folder of the trash; returns what that frees."""
        return self._delete(self._entries.pop(entry, []))

    # Names

    def _gone(self, run: str, step: int) -> Iterator[str]:
        """The files that go with a checkpoint."""
        for name in (names.record_file, names.marks_file, names.whole_file):
            if name(run, step) in self._files:
                yield name(run, step)
        unreadable = self._unreadable.get(run, set())
        if unreadable == {step}:  # what only it may have referred to goes too
            yield from (path for path in self._data[run] if not self._users[path])
        elif not unreadable:  # else nobody knows what such a record refers to
            for path in self._refers.get((run, step), ()):
                if self._users[path] == 1 and path in self._files:
                    yield path

    def _unused(self, run: str) -> Iterator[str]:
        if not self._unreadable.get(run):
            yield from (path for path in self._data.get(run, ()) if not self._users[path])

    def _freed(self, gone: Iterable[str], links: bool = True) -> int:
        """The bytes that are free on the disk without these names; with `links`, those besides
        that were put into the trash count as names too."""
        found = [self._files[path] for path in gone]
        names_gone = Counter(status.inode for status in found)
        sizes = {status.inode: status.size for status in found}
        return sum(
            sizes[inode]
            for inode, count in names_gone.items()
            if count >= self._left[inode] and not (links and self._put_links[inode])
        )

    def _delete(self, gone: Collection[str]) -> int:
        freed = self._freed(gone)
        sizes = {self._files[path].inode: self._files[path].size for path in gone}
        self._remove(gone)
        # What other names elsewhere keep on the disk is no more taken by what is looked at.
        self.total -= sum(
            size
            for inode, size in sizes.items()
            if not self._here[inode] and not self._put_links[inode]
        )
        return freed

    def _remove(self, gone: Collection[str]) -> None:
        for path in gone:
            inode = self._files.pop(path).inode
            self._left[inode] -= 1
            self._here[inode] -= 1
            folder, _, _ = path.rpartition("/")
            self._data.get(folder.rpartition("/")[2], set()).discard(path)
