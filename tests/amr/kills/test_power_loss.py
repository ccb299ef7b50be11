"""The power fails at any moment of a snapshot of two ranks: where its record is, all of it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast import Store
from standfast.files import disk
from standfast.store.load.reading import read_record
from tests.amr.kills.stores import NEW, OLD
from tests.amr.snapshot.step_states import RUN, save
from tests.kit.power import LoggingDisk, trees_after_power_cut
from tests.kit.rank_threads import on_ranks

OPERATIONS = ("create", "reserve", "write", "truncate", "sync", "close", "rename", "link")
FOLDERS = ("make_folder", "remove_folder", "sync_folder", "remove")


class OneAtATime(LoggingDisk):
    """A disk whose log has the operations of all ranks in the order in which they were done."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._turn = threading.RLock()
        for name in (*OPERATIONS, *FOLDERS):
            setattr(self, name, self._in_turn(getattr(self, name)))

    def _in_turn(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def done(*args: Any, **options: Any) -> Any:
            with self._turn:
                return operation(*args, **options)

        return done


def files(path: Path) -> dict[str, bytes]:
    """What a store consists of, but for what is made again at any time."""
    return {
        "/".join(file.relative_to(path).parts): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and ".standfast" not in file.parts
    }


@pytest.mark.guarantee("G2")
def test_a_record_that_outlives_a_power_cut_has_all_that_it_refers_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_ranks(2, lambda comm: save(folder, comm, OLD))
    before = files(folder)
    logging = OneAtATime(folder)
    monkeypatch.setattr(disk, "LOCAL", logging)
    on_ranks(2, lambda comm: save(folder, comm, NEW))
    after = files(folder)
    with Store(folder) as store:
        run = store.run(RUN).hash
        records = {step: read_record(store.backend, run, step).head for step in (OLD, NEW)}

    found = set()
    for is_over, left in trees_after_power_cut(logging.log, before):
        for step, head in records.items():
            (record,) = (name for name in after if name.endswith(f"_step_{step:06d}.json"))
            is_there = record in left
            found.add((step, is_there))
            assert is_there or (step == NEW and not is_over)
            if is_there:
                assert left[record] == after[record]
                for file in head.files:
                    name = f"{record.rpartition('/')[0]}/{file.name}"
                    assert left.get(name) == after[name], f"{name}, of which step {step} is made"
    assert found == {(OLD, True), (NEW, False), (NEW, True)}
