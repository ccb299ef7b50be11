"""What goes into the trash and comes out of it; run as a program, killed at each file operation.

`trash_changes NAME FOLDER` makes a store in the folder for each operation, and prints the exit
codes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from standfast.files import disk, ring
from standfast.store import Store
from standfast.store.retention.restoring import restore
from standfast.store.retention.trash import Trash
from standfast.store.save import planning
from tests.kit.fault_states import SMALL_BLOCK, SMALL_PART, Contents, UnsyncedDisk
from tests.store.faults import killed
from tests.store.faults.changes import CHANGES, THREE, Change, saved

SHARED: Contents = {**THREE, ("second", 1): THREE["first", 1]}
WITHOUT: Contents = {key: each for key, each in SHARED.items() if key != ("first", 2)}
SECOND: Contents = {key: each for key, each in SHARED.items() if key[0] == "second"}


def _deleted(path: Path) -> None:
    saved(SHARED)(path)
    store = Store(path)
    store.run("first").delete(2, trash="rm")
    store.index.close()


def _deleted_run(path: Path) -> None:
    saved(SHARED)(path)
    store = Store(path)
    store.run("first").delete_all(trash="rm")
    store.index.close()


def _restore(store: Store) -> None:
    run = Trash(store.backend).entries()[0].run
    restore(store.backend, store.index, run)
    store.write_manifest()


def _empty(store: Store) -> None:
    Trash(store.backend).empty()


TRASH_CHANGES = {
    "a delete through the trash": Change(
        saved(SHARED),
        lambda store: store.run("first").delete(2, trash="rm"),
        SHARED,
        WITHOUT,
    ),
    "a run through the trash": Change(
        saved(SHARED), lambda store: store.run("first").delete_all(trash="rm"), SHARED, SECOND
    ),
    "a restored checkpoint": Change(_deleted, _restore, WITHOUT, SHARED),
    "a restored run": Change(_deleted_run, _restore, SECOND, SHARED),
    "an emptied trash": Change(_deleted, _empty, WITHOUT, WITHOUT),
}

if __name__ == "__main__":
    ring.BLOCK, planning.TOGETHER = SMALL_BLOCK, SMALL_PART  # type: ignore[misc]
    disk.LOCAL = UnsyncedDisk()  # type: ignore[misc]
    CHANGES.update(TRASH_CHANGES)
    print(*killed.killed_at_each(sys.argv[1], Path(sys.argv[2])))
