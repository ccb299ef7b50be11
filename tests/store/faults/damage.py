"""A store whose newest checkpoint gets damaged, and what must hold of it then."""

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import DamagedFile, FellBack
from standfast.store import Run, Store
from standfast.store.maintenance.doctor import examine
from standfast.store.retention.restoring import restore
from standfast.store.retention.trash import Trash
from standfast.store.schema import names
from tests.kit.fault_states import Contents, State, contents, state
from tests.kit.stores import same
from tests.store.faults.changes import saved

HELD: Contents = {
    ("first", 1): state(1),
    ("second", 1): state(2, weight=1),
    ("first", 2): state(3, weight=1),
    ("first", 3): state(4),
}
NEWEST = 3


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(change(path.read_bytes()))


def become_a_folder(path: Path) -> None:
    path.unlink()
    (path / "something").mkdir(parents=True)


def become_a_link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("no/where")


class Damaged:
    """A store of two runs; step 3 of the first run is the newest checkpoint of all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        saved(HELD)(path)

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def folder(self, name: str = "first") -> Path:
        return self.checkpoints / names.run_folder(self.run(name).hash)

    def run(self, name: str = "first") -> Run:
        return Store(self.path).run(name)

    def record(self, step: int = NEWEST, name: str = "first") -> Path:
        return self.checkpoints / names.record_file(self.run(name).hash, step)

    def data_file(self, part: str, step: int = NEWEST) -> Path:
        (found,) = self.folder().glob(f"*_step_{step:06d}.*.{part}.safetensors")
        return found

    def data_files(self) -> set[Path]:
        return set(self.folder().glob("*.safetensors"))

    def forget(self) -> None:
        """Delete the index, so that the next to come sees everything anew."""
        shutil.rmtree(self.checkpoints / ".standfast", ignore_errors=True)


def load_latest(run: Run, *names: str) -> State:
    """The latest state, with a warning in which the names stand."""
    with pytest.warns(FellBack) as caught:
        loaded: State = run.load()
    assert all(name in str(caught[0].message) for name in names)
    return loaded


def check_fallback(damaged: Damaged, name: str, error: type[Exception] = DamagedFile) -> None:
    """The newest checkpoint raises, `latest` is the one before it, all others load."""
    run = damaged.run()
    with pytest.raises(error, match=name):
        run.load(NEWEST)
    assert same(load_latest(run, f"{run.hash}@2"), HELD["first", 2])
    check_others(damaged)


def check_others(damaged: Damaged) -> None:
    for (name, step), expected in HELD.items():
        if (name, step) != ("first", NEWEST):
            assert same(damaged.run(name).load(step), expected), (name, step)


def check_saving(damaged: Damaged, weight: int | None = None) -> None:
    """The next save works, is the latest, and comes back."""
    new: Any = state(9, weight)
    run = damaged.run()
    run.save(4, new)
    assert same(run.load(4), new)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FellBack)  # of a record that may be that of a later one
        assert same(run.load(), new)
    run.close()


def check_in_store_or_trash(store: Store, held: Contents, emptied: bool) -> None:
    """All is there or in the trash, and comes back from it; the store is sound meanwhile."""
    found = contents(store)
    assert all(same(found[key], held[key]) for key in found)
    assert examine(store.backend, store.index).sound
    for run in {entry.run for entry in Trash(store.backend).entries()}:
        restore(store.backend, store.index, run)
    again = contents(store)
    assert all(same(again[key], held[key]) for key in again)
    assert {*held} - {*again} <= ({("first", 2)} if emptied else set())
    assert Trash(store.backend).entries() == []
