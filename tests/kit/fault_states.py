"""Small states, the stores that tests break, and what must hold of them afterwards."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast.errors import DamagedFile, NotAStore, RefNotFound
from standfast.files.disk import Disk
from standfast.store import Run, Store
from standfast.store.backends.new_file import is_aside
from standfast.store.retention.removal import orphans
from standfast.store.save import planning
from standfast.store.schema import names
from tests.kit.disk_faults import FaultyDisk
from tests.kit.seams import Seams
from tests.kit.stores import same

SMALL_BLOCK = 32768
SMALL_PART = 1024
DAMAGED = "damaged"
TAG = "tag "
State = dict[str, Any]
Key = tuple[str, int]
"""A run by its name, and a step."""
Contents = Mapping[Key, State | str | None]
"""What a store holds, in the order of the commits; a tag holds the name of its run."""


def state(seed: int, weight: int | None = None) -> State:
    """A state of two parts; those with one `weight` share the largest tensor."""
    chance = np.random.default_rng(seed)
    shared = np.random.default_rng(seed if weight is None else weight)
    return {
        "model": {
            "weight": shared.standard_normal((160, 128)).astype(np.float32),
            "bias": chance.standard_normal(33),
        },
        "optimizer": {"moments": chance.standard_normal(8200)},
        "seed": seed,
    }


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Let small states be written as large ones are: in several blocks, a file for each part."""
    seams = Seams(patch)
    seams.bound("blocks of the ring", SMALL_BLOCK)
    seams.bound("part of its own file", SMALL_PART)
    patch.setattr(planning, "_before", None)  # the last plan may have been made without that


class UnsyncedDisk(Disk):
    """A disk on which a sync costs nothing, where the power is known to stay on."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        os.stat(folder)


class Faulty(FaultyDisk, UnsyncedDisk):
    """A disk with one fault, on which the power stays on."""


def contents(store: Store) -> dict[Key, State | str]:
    """All states of a store, each loaded and verified."""
    try:
        runs = store.runs()
    except NotAStore:
        return {}
    found: dict[Key, State | str] = {}
    for run in runs:
        for step, tags in store.index.tags(run.hash).items():
            found |= {(TAG + tag, step): str(run.name) for tag in tags}
        for step in store.index.steps(run.hash):
            try:
                found[str(run.name), step] = run.load(step)
            except DamagedFile:
                found[str(run.name), step] = DAMAGED
    return found


def check_between(store: Store, before: Contents, after: Contents) -> bool:
    """Each checkpoint is as it was or as it should become, `latest` too; whether all are new."""
    found = contents(store)
    for key in {**before, **after, **found}:
        allowed = [before.get(key), after.get(key)]
        assert any(same(found.get(key), each) for each in allowed), (
            f"{key}: {found.get(key)!s:.200}"
        )
    is_new = same(dict(sorted(found.items())), dict(sorted(after.items())))
    present = [key for key in (after if is_new else before) if key in found]
    check_latest(store, found[present[-1]] if present else None)
    for name in run_names(found):
        of_run = [key for key in present if key[0] == name]
        check_latest(store, found[of_run[-1]], store.run(name))
    return is_new


def check_latest(store: Store, expected: State | str | None, run: Run | None = None) -> None:
    """`latest` is what it should be, whole, or nothing where there is nothing."""
    if expected is None:
        with pytest.raises((NotAStore, RefNotFound)):
            store.resolve("latest")
        return
    loaded = run.load() if run else store.resolve("latest").state()
    assert same(loaded, expected)


def check_next_save(store: Store, contents: Contents) -> None:
    """A save into each run works, comes back, and leaves nothing that is not needed."""
    for name in run_names(contents):
        run = store.run(name)
        step = max([*store.index.steps(run.hash), 99]) + 1
        new = state(step)
        run.save(step, new)
        assert same(run.load(step), new)
        assert same(store.resolve("latest").state(), new)
        run.close()
    assert leftovers(store) == []


def run_names(contents: Contents) -> list[str]:
    return sorted({name for name, _ in contents if not name.startswith(TAG)})


def leftovers(store: Store) -> list[str]:
    """Files that no checkpoint needs: written aside, without a record, marks of nothing."""
    store.index.refresh()
    found = []
    for folder, _, files in os.walk(store.url):
        found += [name for name in files if is_aside(name)]
        run = Path(folder).name
        if names.is_run(run):
            found += orphans(store.backend, store.index, run)
            steps = store.index.steps(run)
            named = [names.parse(name, run) for name in files]
            found += [str(n) for n in named if n and n.kind == "marks" and n.step not in steps]
    return found


def copy_store(source: Path, target: Path) -> None:
    """A copy of a store in which hard links are hard links again."""
    copied: dict[int, Path] = {}

    def copy(old: str, new: str) -> None:
        inode = os.stat(old).st_ino
        if inode in copied:
            os.link(copied[inode], new)
        else:
            shutil.copy2(old, new)
            copied[inode] = Path(new)

    if source.exists():
        shutil.copytree(source, target, copy_function=copy)
