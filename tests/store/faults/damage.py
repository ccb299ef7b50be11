"""A store whose newest checkpoint gets damaged, and what must hold of it then."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import DamagedFile, FellBack
from standfast.store import Run, Store
from standfast.store.schema import names
from tests.kit.fault_states import Contents, State, state
from tests.kit.stores import same
from tests.store.faults.changes import saved

HELD: Contents = {
    ("first", 1): state(1),
    ("second", 1): state(2, weight=1),
    ("first", 2): state(3, weight=1),
    ("first", 3): state(4),
}
NEWEST = 3


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


def load_latest(run: Run) -> tuple[State, str]:
    """The latest state, and the words of the warning that came with it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = run.load()
    assert all(each.category is FellBack for each in caught)
    return loaded, " ".join(str(each.message) for each in caught)


def check_fallback(damaged: Damaged, words: str, error: type[Exception] = DamagedFile) -> str:
    """The newest checkpoint raises, `latest` is the one before it, all others load."""
    run = damaged.run()
    with pytest.raises(error, match=words) as raised:
        run.load(NEWEST)
    loaded, warning = load_latest(run)
    assert same(loaded, HELD["first", 2])
    assert f"fell back to {run.hash}@2" in warning
    check_others(damaged)
    return str(raised.value)


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
    assert same(load_latest(run)[0], new)
    run.close()
