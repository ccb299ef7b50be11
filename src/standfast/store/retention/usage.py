"""What a store takes on the disk, and what deleting something would free."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from standfast.errors import UnreadableFile
from standfast.store.backends.backend import Backend
from standfast.store.index.index import Index
from standfast.store.schema import names
from standfast.store.v3.torch_names import our_names

Inode = tuple[int | str, ...]
"""What a file is known by, whatever it is called."""


class Status(NamedTuple):
    """What the disk says of a file."""

    inode: Inode
    size: int
    links: int
    """How many names it has, in the store and elsewhere."""


@dataclass
class Usage:
    """What checkpoints take: those of a run, or of a store."""

    checkpoints: int = 0
    logical: int = 0
    """The bytes of all tensors, as if each checkpoint were on its own."""
    on_disk: int = 0
    """The bytes of all files, each counted once whatever its number of names."""
    held: int = 0
    """The bytes of tensors in these files."""

    @property
    def saved(self) -> int:
        """The bytes of tensors that were referred to, and not written again."""
        return max(0, self.logical - self.held)


@dataclass
class StoreUsage:
    """What a store takes, all in all and run by run."""

    total: Usage = field(default_factory=Usage)
    runs: dict[str, Usage] = field(default_factory=dict)
    """By hash; a file that several runs refer to is counted in each."""
    orphans: dict[str, int] = field(default_factory=dict)
    """Data files that no record refers to, with their sizes."""


def measure(backend: Backend, index: Index) -> StoreUsage:
    """What the store takes, as far as its records can be read."""
    usage = StoreUsage()
    for listed in index.runs():
        usage.runs[listed.run] = Usage()
    for record in index.newest():
        for each in (usage.runs.setdefault(record.run, Usage()), usage.total):
            each.checkpoints += 1
            each.logical += record.head.nbytes
    seen: set[Inode] = set()
    unknown = {run for run, _, _ in index.unreadable()}
    for run, own in usage.runs.items():
        orphans = _measure_run(backend, index, run, own, usage.total, seen)
        if run not in unknown:  # else nobody knows what its damaged records refer to
            usage.orphans |= orphans
    return usage


def measure_run(backend: Backend, index: Index, run: str) -> Usage:
    """What one run takes, as far as its records can be read."""
    own = Usage()
    for record in index.newest(run):
        own.checkpoints += 1
        own.logical += record.head.nbytes
    _measure_run(backend, index, run, own, Usage(), set())
    return own


def _measure_run(
    backend: Backend, index: Index, run: str, own: Usage, total: Usage, seen: set[Inode]
) -> dict[str, int]:
    """Add the files of a run to what it and the store take; returns those without a record."""
    used = index.files(run)
    orphans = {}
    here: set[Inode] = set()
    kinds = dict(_our_files(backend, run))
    for path, status in all_statuses(backend, kinds):
        kind, name = kinds[path], path.rpartition("/")[2]
        held = used[name].held if name in used else 0
        for each, known in ((own, here), (total, seen)):
            if status.inode not in known:
                known.add(status.inode)
                each.on_disk += status.size
                each.held += held
        if kind == "data" and name not in used:
            orphans[path] = status.size
    return orphans


def freed(backend: Backend, deleted: Iterable[str]) -> int:
    """How many bytes are free once these are deleted: those of files with no name left."""
    found: dict[Inode, tuple[Status, int]] = {}
    for _, status in all_statuses(backend, set(deleted)):
        _, count = found.get(status.inode, (status, 0))
        found[status.inode] = status, count + 1
    return sum(status.size for status, count in found.values() if count >= status.links)


def status_of(backend: Backend, name: str) -> Status | None:
    """The file of this name; None if there is none."""
    folder, _, last = name.rpartition("/")
    return next((status for _, status in statuses(backend, folder, [last])), None)


def all_statuses(backend: Backend, files: Iterable[str]) -> Iterator[tuple[str, Status]]:
    """Those of some files in any folders that are there, in their order within each folder."""
    folders: dict[str, list[str]] = {}
    for name in files:
        folder, _, last = name.rpartition("/")
        folders.setdefault(folder, []).append(last)
    for folder, those in folders.items():
        yield from statuses(backend, folder, those)


def statuses(backend: Backend, folder: str, files: Iterable[str]) -> Iterator[tuple[str, Status]]:
    """Those of some files in a folder that are there, each with its whole name."""
    above = backend.path(folder)
    sizes = backend.sizes(folder) if above is None else {}
    for file in files:
        name = f"{folder}/{file}"
        if above is None:
            status = Status((name,), sizes[file], 1) if file in sizes else None
        else:
            status = _status_at(f"{above}/{file}")
        if status is not None:
            yield name, status


def _status_at(path: str) -> Status | None:
    try:
        status = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableFile(error.errno, f"cannot look at {path}: {error.strerror}") from error
    return Status((status.st_dev, status.st_ino), status.st_size, status.st_nlink)


def _our_files(backend: Backend, run: str) -> Iterator[tuple[str, str]]:
    """The files of a run, with their kinds; second names of whole files come last.

    Where there are links, these are data files, about which more is known by their first names.
    """
    folder = names.run_folder(run)
    for name, _ in backend.list(folder):
        named = names.parse(name, run)
        if named is not None and named.kind != "name":
            yield f"{folder}/{name}", named.kind
    yield from ((f"{folder}/{name}", "name") for name in our_names(backend, run))
    yield from ((name, "view") for name in (names.config_file(run), names.data_state_file(run)))
