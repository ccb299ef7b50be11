"""What a store takes, and what is listed of it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

import standfast
from standfast.store.backends.memory import MemoryBackend
from standfast.store.query.listing import checkpoints, short_hashes, written
from standfast.store.retention.space import Space
from standfast.store.retention.usage import measure

WEIGHT = np.random.default_rng(0).random((128, 256))


def filled(store: standfast.Store) -> standfast.Store:
    for name in ("one", "two"):
        with store.run(name) as run:
            for step in (1, 2):
                run.save(step, {"w": WEIGHT, "step": np.array(step)})
    store.index.refresh()
    return store


def test_data_files_that_no_record_refers_to_are_orphans(tmp_path: Path) -> None:
    store = filled(standfast.Store(tmp_path))
    run = store.find_run("one").hash
    orphan = Path(store.url, "models", run, f"{run}_step_000009.00000000.w.safetensors")
    orphan.write_bytes(bytes(10))
    (orphan.parent / "notes.txt").write_bytes(bytes(100))
    before = measure(store.backend, store.index)
    assert before.orphans == {f"models/{run}/{orphan.name}": 10}
    orphan.unlink()
    after = measure(store.backend, store.index)
    assert before.runs[run].on_disk - after.runs[run].on_disk == 10
    orphan.write_bytes(bytes(10))
    (orphan.parent / f"{run}_step_000005.json").write_bytes(b"who knows what it refers to")
    store.index.refresh()
    assert measure(store.backend, store.index).orphans == {}


def test_a_store_that_is_no_folder_is_measured_too() -> None:
    store = filled(standfast.Store(MemoryBackend()))
    usage = measure(store.backend, store.index)
    assert usage.total.checkpoints == 4
    assert usage.total.logical == 4 * (WEIGHT.nbytes + 8)
    run = store.find_run("one").hash
    space = Space(store.backend, store.index, [run])
    assert space.total == space.delete_run(run) == usage.runs[run].on_disk > 0


def test_whole_files_of_weights_that_differ_save_nothing(tmp_path: Path) -> None:
    store = standfast.Store(tmp_path)
    weights = [WEIGHT, WEIGHT + 1]
    with store.run("whole") as run:
        for step, weight in enumerate(weights):
            run.save(step, {"w": weight}, format="torch")
    store.index.refresh()
    usage = measure(store.backend, store.index)
    assert usage.total.held == usage.runs[run.hash].held == usage.total.logical
    assert usage.total.saved == 0
    files = {file.st_ino: file.st_size for file in _statuses(store)}
    assert usage.total.on_disk == sum(files.values())


def _statuses(store: standfast.Store) -> list[os.stat_result]:
    tops = (Path(store.url, top) for top in ("models", "HP", "data"))
    return [path.stat() for top in tops for path in top.rglob("*") if path.is_file()]


def test_what_was_written_for_a_checkpoint(tmp_path: Path) -> None:
    store = filled(standfast.Store(tmp_path))
    entries = checkpoints(store.index)
    sizes = [written(entry.head) for entry in entries if entry.head]
    files = [path.stat() for path in Path(store.url, "models").rglob("*.safetensors")]
    assert sum(sizes) == sum({file.st_ino: file.st_size for file in files}.values())
    assert [size > WEIGHT.nbytes for size in sizes] == [False, False, False, True]


def test_hashes_are_shortened_as_far_as_they_stay_apart() -> None:
    runs = ["a" * 24, "a" * 8 + "b" * 16, "c" * 24, "a" * 23 + "d"]
    assert short_hashes(runs) == {
        "a" * 24: "a" * 24,
        "a" * 23 + "d": "a" * 23 + "d",
        "a" * 8 + "b" * 16: "a" * 8 + "b",
        "c" * 24: "c" * 8,
    }
