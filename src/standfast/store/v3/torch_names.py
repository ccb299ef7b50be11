"""The names that layout V3 has for whole torch files: second names of data files of ours.

A data file is never changed and its name never used twice, so `{run}_step_000100.pt` is a hard
link to it, which is made after the commit and replaced at once when the step is. Where a file
system has no hard links, it is a copy.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import Final

from standfast.errors import AlreadyExists, DigestMismatch
from standfast.files.ring import BLOCK, Ring
from standfast.formats.seal import ZEROS
from standfast.store.backends.backend import Backend
from standfast.store.index.index import Index
from standfast.store.schema import names
from standfast.store.schema.record import DataFile, Head

SUFFIX: Final = ".pth"
"""Of the data files; V3 looks for `*.pt`, and is to see each checkpoint once."""
_NAME: Final = ".pt"


def whole_of(head: Head) -> DataFile | None:
    """The data file that is all of a checkpoint, if it was saved as one torch file.

    Later checkpoints may refer to it too: it bears the step that it was saved for.
    """
    for file in head.files:
        if file.name.endswith(SUFFIX):
            named = names.parse(file.name, head.run)
            if named is not None and (named.run, named.step) == (head.run, head.step):
                return file
    return None


def our_names(backend: Backend, run: str) -> dict[str, str]:
    """The V3 names in a run's folder that are ours, each with the data file that it is.

    One is ours if it is the same file as a data file of that step; any other is foreign.
    """
    folder = names.run_folder(run)
    files = {
        name: stamp
        for name, stamp in backend.list(folder, SUFFIX)
        if (named := names.parse(name, run)) and named.run == run
    }
    if not files:
        return {}
    of_stamp = {stamp: name for name, stamp in files.items()}
    found = {}
    for name, stamp in backend.list(folder, _NAME):
        if (named := names.parse(name, run)) is None:
            continue
        file = of_stamp.get(stamp)
        if file is None:
            beginning = f"{run}_step_{named.step:06d}."
            same_step = (each for each in files if each.startswith(beginning))
            file = next((each for each in same_step if _is_copy(backend, folder, name, each)), None)
        if file is not None:
            found[name] = file
    return found


def is_our_name(backend: Backend, run: str, name: str) -> bool:
    """Whether a V3 name in a run's folder, such as `{run}_step_000100.pt`, is one of ours."""
    return name in our_names(backend, run)


def check_name(backend: Backend, head: Head) -> None:
    """Raise DigestMismatch if the V3 name of a sound whole file is a copy of it, and damaged.

    A file of another size is foreign, and so is any that is no link where there are links. A
    missing one is made again by the next writer.
    """
    file = whole_of(head)
    if file is None:
        return
    name = names.whole_file(head.run, head.step)
    path = f"{names.run_folder(head.run)}/{file.name}"
    if backend.size(name) != file.size or not _may_be_copy(backend, path):
        return
    with closing(backend.open(path)) as one, closing(backend.open(name)) as other:
        for start in range(0, file.size, BLOCK):
            length = min(BLOCK, file.size - start)
            if one.read(start, length) != other.read(start, length):
                raise DigestMismatch(f"{name}: it is not the copy of {file.name} that it was", ())


def name_whole_files(backend: Backend, index: Index, run: str) -> list[str]:
    """Make the V3 names that are missing, and correct or remove those that are wrong.

    The caller holds the lock of the run's changes, and has refreshed the index. Names that are
    foreign stay. Returns those that were changed.
    """
    folder = names.run_folder(run)
    if not backend.links or not backend.list(folder, SUFFIX):
        return []  # where there are no links, a second name would be a second copy
    wanted = {
        names.whole_file(run, listed.step): whole.name
        for listed in index.newest(run)
        if (whole := whole_of(listed.head))
    }
    unknown = {names.whole_file(run, step) for _, step, _ in index.unreadable(run)}
    ours = {f"{folder}/{name}": file for name, file in our_names(backend, run).items()}
    changed = []
    for name in ours.keys() - wanted.keys() - unknown:
        backend.delete([name])
        changed.append(name)
    for name, file in wanted.items():
        is_ours = name in ours
        if ours.get(name) != file and (is_ours or backend.size(name) is None):
            changed += [name] if _give_name(backend, f"{folder}/{file}", name, is_ours) else []
    if changed:
        backend.sync(folder)
    return sorted(changed)


def name_whole_file(backend: Backend, head: Head) -> None:
    """Let a checkpoint that was committed just now have its V3 name, or none if it is not whole.

    The caller holds the lock of the run's changes.
    """
    if not backend.links:
        return
    folder, name = names.run_folder(head.run), names.whole_file(head.run, head.step)
    file = whole_of(head)
    is_there = backend.size(name) is not None
    if not is_there and file is None:
        return
    is_ours = is_there and is_our_name(backend, head.run, name.rpartition("/")[2])
    if is_there and not is_ours:
        return
    if file is None:
        backend.delete([name])
    else:
        _give_name(backend, f"{folder}/{file.name}", name, over=is_ours)
    backend.sync(folder)


def _give_name(backend: Backend, file: str, name: str, over: bool) -> bool:
    """Link a data file to its V3 name, or copy it; False if somebody else took the name."""
    if backend.link(file, name, over=over):
        return True
    if backend.size(name) is not None:
        if not over:
            return False
        backend.delete([name])
    try:
        _copy(backend, file, name)
    except AlreadyExists:
        return False
    return True


def _copy(backend: Backend, file: str, name: str) -> None:
    with closing(backend.open(file)) as source, backend.new(name) as new:
        new.reserve(source.size)
        with Ring(new.write) as ring:
            for start in range(0, source.size, BLOCK):
                ring.put_bytes(source.read(start, min(BLOCK, source.size - start)))
        new.finish(source.size)
        new.place()


def _is_copy(backend: Backend, folder: str, name: str, file: str) -> bool:
    """Whether a V3 name is a copy of a data file, made where there are no links."""
    if not _may_be_copy(backend, f"{folder}/{file}"):
        return False
    if backend.size(f"{folder}/{name}") != backend.size(f"{folder}/{file}"):
        return False
    return _seal(backend, f"{folder}/{name}") == _seal(backend, f"{folder}/{file}")


def _may_be_copy(backend: Backend, file: str) -> bool:
    """Whether a second name of a data file is a copy: not where the file has links."""
    path = backend.path(file)
    try:
        return path is None or os.stat(path, follow_symlinks=False).st_nlink == 1
    except OSError:  # deleted just now
        return False


def _seal(backend: Backend, name: str) -> bytes:
    """The digest with which a torch file of ours ends."""
    with closing(backend.open(name)) as file:
        length = min(file.size, len(ZEROS))
        return file.read(file.size - length, length)
