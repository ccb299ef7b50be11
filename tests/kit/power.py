"""What a disk may hold after a power cut, from a log of what was asked of it.

The model knows only what POSIX promises. Writes, size changes and names that no sync covers
may each be there or not, in any combination, and a write may be torn. A sync of a file makes
its content durable, a sync of a folder the names in that folder, and no others: a file whose
own name is durable is lost with a folder whose name is not.
"""

import itertools
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import numpy as np

from standfast.files.disk import Disk

ROOT = 0
_ALL_OF = 6
"""Of so many changes, all subsets are tried; of more, some."""
_SAMPLES = 30

T = TypeVar("T")
Folders = Mapping[int, dict[str, int]]
Paths = dict[int, list[str]]
Tree = dict[str, bytes]
"""The files below a folder by their relative paths; an empty folder is a path that ends in `/`."""


@dataclass(frozen=True)
class Operation:
    kind: str
    file: int = -1
    """Which file or folder, by the order of creation."""
    name: str = ""
    """Its path, relative to the root of the log."""
    target: str = ""
    offset: int = 0
    data: bytes = b""


_OF_NAMES = {name: name for name in ("rename", "exchange", "link", "remove", "sync_folder")}
_OF_NAMES |= {"rename_new": "rename", "remove_folder": "remove"}
"""Operations on names alone, and what the log calls them."""


class LoggingDisk(Disk):
    """The real disk, and a log of every change.

    With a root, names are paths relative to it; what lies elsewhere, or in a folder `.standfast`,
    whose content may vanish at any time, is left out. Without one, all files are in one folder.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.log: list[Operation] = []
        self._root = root
        self._files: dict[int, int] = {}
        self._count = itertools.count(1)
        for name, kind in _OF_NAMES.items():
            setattr(self, name, self._logged(getattr(self, name), kind))

    def _logged(self, operation: Callable[..., None], kind: str) -> Callable[..., None]:
        def logged(*paths: Path) -> None:
            operation(*paths)
            self._add(kind, *paths)

        return logged

    def create(self, path: Path, direct: bool = True) -> int:
        fd = super().create(path, direct)
        if (name := self._name(path)) is not None:
            self._files[fd] = next(self._count)
            self.log.append(Operation("create", self._files[fd], name))
        return fd

    def reserve(self, fd: int, size: int) -> None:
        super().reserve(fd, size)
        self._add_to(fd, "reserve", size)

    def write(self, fd: int, data: np.ndarray[Any, Any], offset: int) -> None:
        super().write(fd, data, offset)
        self._add_to(fd, "write", offset, data.tobytes())

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        self._add_to(fd, "truncate", size)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self._add_to(fd, "sync")

    def close(self, fd: int) -> None:
        self._files.pop(fd, None)  # its number may soon be another file's
        super().close(fd)

    def make_folder(self, path: Path) -> None:
        super().make_folder(path)
        self._add("make_folder", path, file=next(self._count))

    def _add(self, kind: str, *paths: Path, file: int = -1) -> None:
        names = [self._name(path) for path in paths]
        if self._root is None and kind == "sync_folder":
            names = [""]
        if None not in names:
            self.log.append(Operation(kind, file, *names))  # type: ignore[arg-type]

    def _add_to(self, fd: int, kind: str, offset: int = 0, data: bytes = b"") -> None:
        if fd in self._files:
            self.log.append(Operation(kind, self._files[fd], offset=offset, data=data))

    def _name(self, path: Path) -> str | None:
        if self._root is None:
            return path.name
        if not path.is_relative_to(self._root):
            return None
        name = path.relative_to(self._root)
        return None if ".standfast" in name.parts else "/".join(name.parts)


class _Change(NamedTuple):
    """Names in one folder that change together: each is a file's or folder's, or nobody's."""

    folder: int
    names: tuple[tuple[str, int | None], ...]


class _Crash:
    """A disk after some operations: what is durable, and what is still in the air."""

    def __init__(self) -> None:
        self._durable: dict[int, dict[str, int]] = {ROOT: {}}
        """The names in each folder, by the folder's number."""
        self._live: dict[int, dict[str, int]] = {ROOT: {}}
        """The same as a running program sees it."""
        self._changes: list[_Change] = []
        self._contents: dict[int, bytes] = {}
        self._writes: dict[int, list[Operation]] = {}
        self._possible: dict[int, list[bytes]] = {}

    def put(self, path: str, content: bytes) -> None:
        """Let a file be durable from the beginning."""
        folder = ROOT
        *above, name = path.split("/")
        number = -1 - len(self._contents) - len(self._durable)
        for part in above:
            if part not in self._durable[folder]:
                self._durable[folder][part] = self._live[folder][part] = number
                self._durable[number], self._live[number] = {}, {}
                number -= 1
            folder = self._durable[folder][part]
        if name:
            self._durable[folder][name] = self._live[folder][name] = number
            self._contents[number] = content

    def apply(self, operation: Operation) -> None:
        kind, file = operation.kind, operation.file
        if kind == "sync":
            writes = self._writes.pop(file, [])
            self._contents[file] = _content(self._contents.get(file, b""), writes)
            self._possible.pop(file, None)
        elif kind in ("write", "reserve", "truncate"):
            self._writes.setdefault(file, []).append(operation)
            self._possible.pop(file, None)
        elif kind == "sync_folder":
            folder = self._folder(operation.name)
            self._durable[folder] = dict(self._live[folder])
            self._changes = [each for each in self._changes if each.folder != folder]
        else:
            for change in self._renaming(operation):
                self._changes.append(change)
                _rename(self._live, change)

    def _renaming(self, operation: Operation) -> list[_Change]:
        folder, name = self._place(operation.name)
        if operation.kind == "make_folder":
            self._live[operation.file], self._durable[operation.file] = {}, {}
        if operation.kind in ("create", "make_folder"):
            return [_Change(folder, ((name, operation.file),))]
        if name not in self._live[folder]:
            return []  # somebody removed what was not there
        if operation.kind == "remove":
            return [_Change(folder, ((name, None),))]
        file = self._live[folder][name]
        target, new = self._place(operation.target)
        if operation.kind == "link":
            return [_Change(target, ((new, file),))]
        if operation.kind == "exchange":
            assert folder == target, "only places in one folder are exchanged"
            return [_Change(folder, ((name, self._live[folder][new]), (new, file)))]
        if folder == target:
            return [_Change(folder, ((name, None), (new, file)))]
        # Nothing says that both folders reach the disk together.
        return [_Change(target, ((new, file),)), _Change(folder, ((name, None),))]

    def _place(self, path: str) -> tuple[int, str]:
        above, _, name = path.rpartition("/")
        return self._folder(above), name

    def _folder(self, path: str) -> int:
        folder = ROOT
        for part in PurePosixPath(path).parts:
            folder = self._live[folder][part]
        return folder

    def folders(self) -> Iterator[dict[int, dict[str, int]]]:
        """The names that the disk may have, in each folder."""
        for kept in _subsets(self._changes):
            left = dict(self._durable)
            for folder in {change.folder for change in kept}:
                left[folder] = dict(left[folder])
            for change in kept:
                _rename(left, change)
            yield left

    def contents(self, file: int) -> list[bytes]:
        """What the file may hold, all that was written first."""
        if file not in self._possible:
            durable = self._contents.get(file, b"")
            possible = (_content(durable, kept) for kept in _torn(self._writes.get(file, [])))
            self._possible[file] = list(dict.fromkeys(possible))
        return self._possible[file]

    def trees(self) -> Iterator[Tree]:
        """All that the disk may hold."""
        for folders in self.folders():
            paths: Paths = {}
            empty: Tree = {}
            _walk(folders, ROOT, "", paths, empty)
            possible = [self.contents(file) for file in paths]
            for chosen in _combinations(possible):
                tree = dict(empty)
                for names, content in zip(paths.values(), chosen, strict=True):
                    for name in names:
                        tree[name] = content
                yield tree


def states_after_power_cut(
    log: list[Operation], names: dict[str, int], contents: dict[int, bytes], target: str
) -> Iterator[tuple[bool, bytes | None]]:
    """Every content that `target` may have when the power fails, after each prefix of the log.

    `names` and `contents` are what was durable before; yields whether the log had ended, and
    the content, None if there is no such file.
    """
    crash = _Crash()
    for name, file in names.items():
        crash.put(name, contents[file])
    for end in range(len(log) + 1):
        if end:
            crash.apply(log[end - 1])
        for folders in crash.folders():
            if target not in folders[ROOT]:
                yield end == len(log), None
            else:
                for content in crash.contents(folders[ROOT][target]):
                    yield end == len(log), content


def trees_after_power_cut(log: Sequence[Operation], before: Tree) -> Iterator[tuple[bool, Tree]]:
    """Every tree that may be on the disk when the power fails, after each prefix of the log.

    `before` is what was durable at the beginning; yields whether the log had ended, and the
    tree: each once while the log goes on, and once more when it has ended.
    """
    crash = _Crash()
    for path, content in before.items():
        crash.put(path, content)
    seen: set[tuple[bool, frozenset[tuple[str, bytes]]]] = set()
    for end in range(len(log) + 1):
        if end:
            crash.apply(log[end - 1])
        for tree in crash.trees():
            state = (end == len(log), frozenset(tree.items()))
            if state not in seen:
                seen.add(state)
                yield end == len(log), tree


def _walk(folders: Folders, folder: int, prefix: str, paths: Paths, empty: Tree) -> None:
    """Collect the paths of each file, and the folders that have nothing in them."""
    if prefix and not folders[folder]:
        empty[prefix] = b""
    for name, number in folders[folder].items():
        if number in folders:
            _walk(folders, number, f"{prefix}{name}/", paths, empty)
        else:
            paths.setdefault(number, []).append(prefix + name)


def _rename(folders: dict[int, dict[str, int]], change: _Change) -> None:
    names = folders[change.folder]
    for name, number in change.names:
        if number is None:
            names.pop(name, None)
        else:
            names[name] = number


def _content(durable: bytes, operations: list[Operation]) -> bytes:
    content = bytearray(durable)
    for operation in operations:
        end = operation.offset + len(operation.data)
        if operation.kind == "truncate":
            del content[end:]
        content.extend(bytes(max(0, end - len(content))))
        if operation.kind == "write":
            content[operation.offset : end] = operation.data
    return bytes(content)


def _subsets(items: list[T]) -> Iterator[list[T]]:
    """All subsets, if they are few; else none, all, each alone, all but each, and some more."""
    if len(items) <= _ALL_OF:
        for keep in itertools.product((True, False), repeat=len(items)):
            yield list(itertools.compress(items, keep))
        return
    yield items
    yield []
    for i, item in enumerate(items):
        yield [item]
        yield items[:i] + items[i + 1 :]
    chance = random.Random(0)
    for _ in range(_SAMPLES):
        yield [item for item in items if chance.random() < 0.5]


def _combinations(possible: list[list[bytes]]) -> Iterator[list[bytes]]:
    """A content for each file: one file after the other in all its ways, and some mixtures."""
    whole = [contents[0] for contents in possible]
    yield whole
    torn = [i for i, contents in enumerate(possible) if len(contents) > 1]
    for i in torn:
        for content in possible[i][1:]:
            yield [*whole[:i], content, *whole[i + 1 :]]
    if len(torn) > 1:
        chance = random.Random(0)
        for _ in range(_SAMPLES):
            yield [chance.choice(contents) for contents in possible]


def _torn(operations: list[Operation]) -> Iterator[list[Operation]]:
    """Ways in which unsynced operations may have reached the disk: all of them if they are few."""
    yield operations
    for i, operation in enumerate(operations):
        without = operations[:i] + operations[i + 1 :]
        yield without
        yield [operation]
        if operation.kind == "write":
            half = operation.data[: len(operation.data) // 2 // 512 * 512]
            torn = Operation("write", operation.file, offset=operation.offset, data=half)
            yield [*operations[:i], torn, *operations[i + 1 :]]
    chance = random.Random(0)
    for _ in range(_SAMPLES if len(operations) > 1 else 0):
        yield [operation for operation in operations if chance.random() < 0.5]


def folder_state(folder: Path) -> tuple[dict[str, int], dict[int, bytes]]:
    """The files of a folder as the durable state to start from, numbered from below zero."""
    names = {name: -i for i, name in enumerate(sorted(os.listdir(folder)), 1)}
    return names, {number: (folder / name).read_bytes() for name, number in names.items()}


def read_tree(root: Path) -> Tree:
    """What lies below a folder, as the durable state to start from."""
    tree: Tree = {}
    for folder, folders, files in os.walk(root):
        above = Path(folder).relative_to(root)
        if not files and not folders and above.parts:
            tree[f"{above.as_posix()}/"] = b""
        for name in files:
            tree[(above / name).as_posix()] = (Path(folder) / name).read_bytes()
    return tree


def write_tree(tree: Tree, root: Path) -> None:
    """Lay a tree out below a folder, as a machine finds it after the power cut."""
    for name, content in tree.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
