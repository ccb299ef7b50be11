"""Meshes: a `.sunc` file of an arena of 1 GiB, and snapshots of one of which 5 % changed."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

import standfast
from benchmarks import raw
from benchmarks.files import ROUNDS, gone, nothing
from benchmarks.report import Figure, Section
from benchmarks.rounds import Contender, run_rounds
from standfast.amr import (
    AMRTree,
    FieldArena,
    PeriodicTopology,
    ScalarFrontend,
    Snapshot,
    TreeCheckpoint,
)

SIZE = 128
"""Sites of a block along each of two dimensions: 128 KiB a block."""
BLOCKS = 8192
CHANGED = 0.05
FLOOR = "raw: direct writes"


def sections(folder: Path) -> Iterator[Section]:
    tree, arena = mesh()
    yield write(folder, tree, arena)
    yield read(folder, tree)
    yield snapshots(folder, tree, arena)


def mesh() -> tuple[AMRTree, FieldArena]:
    """128 × 64 blocks, which fill the arena."""
    frontend = ScalarFrontend(2, SIZE, PeriodicTopology(2, (128.0, 64.0)))
    tree = AMRTree(frontend, 1.0 / SIZE, bits_per_dim=8, max_level=4)
    arena = FieldArena(frontend, BLOCKS)
    for block in range(BLOCKS):
        tree.insert_block_with_field((SIZE * (block % 128), SIZE * (block // 128)), 0, arena)
    generator = np.random.default_rng(0)
    for slot in range(BLOCKS):
        arena.storage[slot] = generator.random(frontend.block_volume)
    return tree, arena


def write(folder: Path, tree: AMRTree, arena: FieldArena) -> Section:
    floor, plain, sealed = (folder / name for name in ("floor", "plain.sunc", "sealed.sunc"))
    staged = raw.fresh_memory(arena.storage.nbytes)
    staged[:] = arena.storage.reshape(-1).view(np.uint8)
    checkpoint = TreeCheckpoint(tree.frontend)
    contenders: dict[str, Contender] = {
        FLOOR: (partial(gone, floor), partial(raw.write_direct, floor, staged)),
        "write_to_file": (
            partial(gone, plain),
            partial(checkpoint.write_to_file, tree, arena, plain),
        ),
        "write_to_file, with digests": (
            partial(gone, sealed),
            partial(checkpoint.write_to_file, tree, arena, sealed, extras=True),
        ),
    }
    rounds = run_rounds(contenders, ROUNDS)
    floor.unlink()
    plain.unlink()
    return Section(
        "durable write of a .sunc file",
        rounds,
        staged.size,
        [
            Figure(f"{name}, of the raw floor", rounds.speed_ratio(name, FLOOR), 0.85)
            for name in contenders
            if name != FLOOR
        ],
    )


def read(folder: Path, tree: AMRTree) -> Section:
    sealed = folder / "sealed.sunc"
    cold = partial(raw.make_cold, sealed)
    restored = "read_from_file, verified"
    contenders: dict[str, Contender] = {
        name: (cold, partial(way, sealed)) for name, way in raw.READS.items()
    }
    contenders[restored] = (cold, partial(TreeCheckpoint(tree.frontend).read_from_file, sealed))
    rounds = run_rounds(contenders, ROUNDS)
    size = sealed.stat().st_size
    sealed.unlink()
    # No number in the file is aligned: whoever computes with them needs memory of their own.
    own, mapped = (
        rounds.fastest([name for name in raw.READS if ("mapped" in name) == is_mapped])
        for is_mapped in (False, True)
    )
    return Section(
        "cold restart from a .sunc file",
        rounds,
        size,
        [
            Figure(
                f"of the fastest raw way into memory of one's own ({own.removeprefix('raw: ')})",
                rounds.speed_ratio(restored, own),
                0.7,
            ),
            Figure(
                f"of the fastest raw way to see it ({mapped.removeprefix('raw: ')})",
                rounds.speed_ratio(restored, mapped),
            ),
        ],
    )


def snapshots(folder: Path, tree: AMRTree, arena: FieldArena) -> Section:
    """Snapshots of all of it, each into a run of its own, and of 5 % of the blocks."""
    store = standfast.Store(folder / "store")
    run, trial, steps = store.run("mesh"), itertools.count(), itertools.count(1)
    generator = np.random.default_rng(1)
    sizes: list[int] = []
    whole = arena.storage.nbytes

    def change() -> None:
        """Neighbours in slot order, from anywhere."""
        count = int(CHANGED * BLOCKS)
        first = int(generator.integers(BLOCKS - count))
        arena.storage[first : first + count] += 1.0
        sizes.append(_data_size(folder))

    def fresh() -> None:
        shutil.rmtree(folder / "fresh", ignore_errors=True)

    def save_whole() -> None:
        other = standfast.Store(folder / "fresh").run("mesh", trial=str(next(trial)))
        Snapshot.save(other, 1, tree, arena)

    def save_changed() -> None:
        Snapshot.save(run, next(steps), tree, arena)

    Snapshot.save(run, 0, tree, arena)
    contenders: dict[str, Contender] = {
        "Snapshot.save, all of it": (fresh, save_whole),
        "Snapshot.save, 5 % changed": (change, save_changed),
        "Snapshot.load, verified": (nothing, partial(Snapshot.load, run)),
    }
    rounds = run_rounds(contenders, ROUNDS)
    sizes.append(_data_size(folder))
    written = max(after - before for before, after in itertools.pairwise(sizes)) / whole
    # Blocks, slots and the list of free ones are written anew each time.
    small = (tree.blocks.nbytes + tree.field_slots.nbytes + arena.free_slots.nbytes) / whole
    shutil.rmtree(folder / "store")
    fresh()
    return Section(
        "snapshots of an arena of 1 GiB",
        rounds,
        whole,
        [
            Figure("% of the arena written, 5 % changed", 100 * written, at_most=True),
            Figure("… without the small sections", 100 * (written - small), 6, at_most=True),
        ],
    )


def _data_size(folder: Path) -> int:
    files = (folder / "store").rglob("*.safetensors")
    return sum(file.stat().st_size for file in files)
