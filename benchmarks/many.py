"""A store with many checkpoints: real records, made from one that was saved, and no data."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

import standfast
from standfast.store.load.reading import read_record
from standfast.store.schema import names
from standfast.store.schema.record import Record, encode
from standfast.store.schema.run_file import RunFile
from standfast.store.schema.run_file import encode as encode_run

CHECKPOINTS = 10_000
RUNS = 1_000


def fill_store(path: Path, checkpoints: int, runs: int) -> None:
    """Make a store of so many checkpoints, spread evenly over so many runs."""
    shutil.rmtree(path, ignore_errors=True)
    store = standfast.Store(path)
    state = {"model": {f"layers.{i}.weight": np.zeros(256, np.float32) for i in range(1000)}}
    with store.run("the real one") as run:
        run.save(0, state, metrics={"loss": 1.0})
        template, file = read_record(store.backend, run.hash, 0), run.file
    for number in range(runs):
        _make_run(path, template, file, number, checkpoints // runs, runs)


def _make_run(
    path: Path, template: Record, file: RunFile, number: int, steps: int, runs: int
) -> None:
    run = f"{number:08x}{'0' * 16}"
    folder = path / "checkpoints" / names.run_folder(run)
    folder.mkdir()
    named = msgspec.structs.replace(file, run=run, name=f"run {number}")
    (folder / f"{run}_run.json").write_bytes(encode_run(named))
    data = msgspec.structs.replace(template.head.files[0])
    for step in range(steps):
        name = names.data_file(run, step, "0" * 8, "model")
        head = msgspec.structs.replace(
            template.head,
            run=run,
            step=step,
            sequence=2 + step * runs + number,
            files=[msgspec.structs.replace(data, name=name)],
        )
        (folder / f"{run}_step_{step:06d}.json").write_bytes(encode(replace(template, head=head)))
        (folder / name).touch()
    newest = folder / names.data_file(run, steps - 1, "0" * 8, "model")
    with newest.open("wb") as sparse:
        sparse.truncate(data.size)
