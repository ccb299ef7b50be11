"""A small simulation on several ranks: what each of them has at each step, saved and compared.

No two ranks and no two steps have a section in common, and all have sections of the same sizes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from standfast import Store
from standfast.amr import (
    FieldArena,
    GaugeFrontend,
    GaugeTree,
    PeriodicTopology,
    Restored,
    ShardContext,
    Snapshot,
)
from standfast.tensors import randomness
from tests.amr.tree_states import saved

FRONTEND = GaugeFrontend(2, 1, 2, 4, PeriodicTopology(2, (16.0, 16.0)))
RUN = "lattice"
SLOTS = 48
TABLE = np.random.default_rng(0).standard_normal(10_000)
"""Larger than what is always written: each step but the first refers to it."""


@dataclass(frozen=True)
class Part:
    """What one rank has at one step."""

    tree: GaugeTree
    arena: FieldArena
    kicks: np.random.Generator


def part(rank: int, step: int) -> Part:
    """A row of blocks, one of them refined; dead blocks, stale words, slots in some order."""
    random = np.random.Generator(np.random.MT19937([rank, step]))
    tree, arena = GaugeTree(FRONTEND, 1.0, 6, 4), FieldArena(FRONTEND, SLOTS)
    for _ in range((rank + step) % 4):
        arena.alloc()  # slots that nobody names
    held = [arena.alloc() for _ in range(1 + rank + 2 * step)]
    row = [tree.insert_block_with_field((4 * x, 4 * rank), 0, arena) for x in range(4)]
    for slot in held:
        arena.free(slot)
    refined = row[step % 4]
    arena.free(int(tree.field_slots[refined]))
    for child in tree.refine_block(refined):
        tree.field_slots[child] = arena.alloc()
    arena.storage[:] = _numbers(random, arena.storage.shape)
    tree.links[:] = _numbers(random, tree.links.shape)
    return Part(tree, arena, random)


def _numbers(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return random.standard_normal(shape) + 1j * random.standard_normal(shape)


def values(step: int) -> dict[str, Any]:
    """What all ranks have in common."""
    return {"beta": 2.5 + step, "table": TABLE, "trace": np.arange(step, step + 5)}


def save(path: Path, comm: Any, step: int, *, replace: bool = False) -> Snapshot:
    """Collective: the snapshot of a step, in a store that this rank opens for it."""
    state = part(comm.rank, step)
    state.tree.attach_shard(ShardContext.from_tree(state.tree, comm, "manual"))
    with Store(path) as store:
        return Snapshot.save(
            store.run(RUN),
            step,
            state.tree,
            state.arena,
            time=0.25 * step,
            random={"kicks": state.kicks},
            values=values(step),
            comm=comm,
            replace=replace,
        )


def load(path: Path, comm: Any, ref: int | str = "latest") -> Restored[Any]:
    """Collective: a snapshot, out of a store that this rank opens for it."""
    with Store(path) as store:
        return Snapshot.load(store.run(RUN), ref, frontend=FRONTEND, comm=comm)


def content(restored: Restored[Any]) -> list[Any]:
    """All that a rank got back, to be compared; the global generators are left as they are."""
    kicks, before = np.random.Generator(np.random.MT19937()), randomness.capture()
    try:
        restored.restore_random(kicks=kicks)
    finally:
        randomness.restore(before)
    state, shard = Part(restored.tree, restored.arena, kicks), restored.shard
    assert shard is not None
    owners = shard.kind, shard.owners.tolist(), shard.keys.tolist()
    return _content(restored.step, restored.time, restored.values, state, owners)


def expected(count: int, step: int) -> list[list[Any]]:
    """What each rank must get back."""
    ranks = [part(rank, step) for rank in range(count)]
    keys = np.concatenate([each.tree.keys() for each in ranks])
    owners = np.repeat(np.arange(count), [len(each.tree.live) for each in ranks])
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    shard = ("manual", owners[order].tolist(), keys[order].tolist())
    return [_content(step, 0.25 * step, values(step), each, shard) for each in ranks]


def _content(step: int, time: float, values: Any, state: Part, shard: Any) -> list[Any]:
    arrays = {name: np.asarray(value).tobytes() for name, value in values.items()}
    return [step, time, arrays, saved(state.tree, state.arena), state.kicks.bytes(64), shard]
