"""Single files: save, load, slice, convert, compare and verify tensors.

pip install .
python examples/files.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import standfast
from standfast.errors import DamagedFile


def main(folder: Path) -> None:
    """Go through the functions for one file."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(0)
    weights = {
        name: generator.standard_normal((1000, 64), np.float32) for name in ("embedding", "head")
    }
    standfast.save(folder / "model.safetensors", weights, {"step": 100, "loss": 0.25})

    loaded = standfast.load(folder / "model.safetensors")  # mapped, every byte verified
    assert all(np.array_equal(loaded[name], weights[name]) for name in weights)

    with standfast.open(folder / "model.safetensors") as file:  # reads only the header
        rows = file.slice("embedding")[10:20]
        print(f"step {file.metadata['step']}, {list(file)}, rows {rows.shape}")

    standfast.convert(folder / "model.safetensors", folder / "model.npz")
    weights["head"][0, 0] += 1
    standfast.save(folder / "next.safetensors", weights)
    changed = standfast.diff(folder / "model.npz", folder / "next.safetensors").changed
    print(f"changed: {[change.name for change in changed]}")

    with (folder / "next.safetensors").open("r+b") as damaged:
        damaged.seek(-1, 2)
        damaged.write(b"?")
    try:
        standfast.verify(folder / "next.safetensors")
    except DamagedFile as error:
        print(error)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
