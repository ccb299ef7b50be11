"""What the tests of retention share: states with a large tensor in common, and what they take."""

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from standfast import Run, Store
from standfast.store.schema import names
from standfast.store.schema.decoder import decode_head
from standfast.store.schema.record import encode_head
from tests.kit.stores import data_path, folder, overwrite, record_path

SHARED = np.random.default_rng(0).random((128, 256))
OWN = 96 * 100 * 8
"""The bytes that no other state has."""


def state(step: int, weight: Any = SHARED) -> dict[str, Any]:
    own = np.random.default_rng(step).random((96, 100))
    return {"base": {"w": weight}, "head": {"own": own, "step": step}}


def steps(run: Run) -> list[int]:
    return [each.step for each in run.checkpoints()]


def on_disk(store: Store) -> int:
    """The bytes of all files of runs and of the trash, each once."""
    found = {}
    for top in (names.MODELS, names.SETTINGS, names.SAMPLES, names.TRASH):
        for path in Path(store.url, top).rglob("*"):
            if path.is_file() and path.suffix != ".txt":
                found[path.stat().st_ino] = path.stat().st_size
    return sum(found.values())


def make_whole(run: Run, step: int) -> Path:
    """Let the data file of a step be a whole file, which has a second name; only heads tell."""
    data, record = data_path(run, step), record_path(run, step)
    whole = folder(run) / names.data_file(run.hash, step, "0" * 8, "state", ".pth")
    os.rename(data, whole)
    os.link(whole, folder(run) / f"{run.hash}_step_{step:06d}.pt")
    line, _, rest = record.read_bytes().partition(b"\n")
    head = decode_head(line, run.hash, step)
    files = [
        msgspec.structs.replace(file, name=whole.name) if file.name == data.name else file
        for file in head.files
    ]
    overwrite(record, encode_head(msgspec.structs.replace(head, files=files)) + b"\n" + rest)
    return whole
