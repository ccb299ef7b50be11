"""Trees in states that are worth saving, made by the operations of the tree and the arena."""

import io
from typing import Any

import numpy as np

from standfast import amr
from tests import GOLDEN

SCALAR = amr.ScalarFrontend(2, 4, amr.OpenTopology(2, (16.0, 16.0)))
U1 = amr.GaugeFrontend(1, 1, 2, 4, amr.PeriodicTopology(2, (4.0, 4.0)))
SU2 = amr.GaugeFrontend(2, 1, 2, 4, amr.PeriodicTopology(2, (4.0, 4.0)))

CHANNEL = amr.GridTopology(2, ("periodic", "open"), (8.0, 8.0))
"""A box that wraps in x and has walls in y."""
MIXED = amr.ScalarFrontend(2, 4, CHANNEL)
VECTOR = amr.ScalarFrontend(2, 4, CHANNEL, components=3)


def golden(name: str) -> bytes:
    """A file that the first implementation wrote."""
    return (GOLDEN / f"{name}.sunc").read_bytes()


def golden_scalar() -> tuple[amr.AMRTree, amr.FieldArena]:
    """The state of sunc_scalar_2d."""
    tree, arena = amr.AMRTree(SCALAR, 0.5, 4, 6), amr.FieldArena(SCALAR, 8)
    for origin, level in (((0, 0), 0), ((4, 0), 1), ((8, 0), 1)):
        block = tree.insert_block_with_field(origin, level, arena)
        arena.storage[tree.field_slots[block]] = (1000 * block + np.arange(16)) * 0.1
    tree.invalidate_block(1)
    slot = arena.alloc()
    arena.storage[slot] = np.arange(16) * 0.25
    arena.free(slot)
    return tree, arena


def golden_u1() -> tuple[amr.GaugeTree, amr.FieldArena]:
    """The state of sunc_u1_2d; its links were drawn at random, and are taken from the file."""
    tree, arena = amr.GaugeTree(U1, 0.25, 4, 8), amr.FieldArena(U1, 4)
    for origin in ((0, 0), (4, 0)):
        block = tree.insert_block_with_field(origin, 0, arena)
        arena.storage[tree.field_slots[block]] = np.arange(16)[:, np.newaxis] - 0.5j
    tree.links[:] = np.frombuffer(golden("sunc_u1_2d")[-1024:], "<c16").reshape(2, 32, 1, 1)
    return tree, arena


def golden_channel(
    frontend: amr.ScalarFrontend, refine: bool
) -> tuple[amr.AMRTree, amr.FieldArena]:
    """The state of sunc_mixed_2d, and with `refine` of sunc_vector_2d."""
    tree, arena = amr.AMRTree(frontend, 1.0, 4, 4), amr.FieldArena(frontend, 16)

    def fill(slot: int, first: float) -> None:
        numbers = arena.storage[slot].reshape(16, -1)
        numbers[:] = first + np.arange(16.0)[:, np.newaxis] * 0.1
        numbers += np.arange(numbers.shape[1]) * 1e6

    for origin in ((0, 0), (4, 0), (0, 4), (4, 4)):
        block = tree.insert_block_with_field(origin, 0, arena)
        fill(int(tree.field_slots[block]), 1000 * block)
    for child in tree.refine_block(3) if refine else ():
        tree.field_slots[child] = arena.alloc()
        fill(int(tree.field_slots[child]), 1000 * child)
    dead = tree.insert_block_with_field((16, 16), 1, arena)
    fill(int(tree.field_slots[dead]), -5.0)
    tree.invalidate_block(dead)
    slot = arena.alloc()
    fill(slot, 0.25)
    arena.free(slot)
    return tree, arena


def worn(kind: str = "scalar") -> tuple[Any, amr.FieldArena]:
    """A tree with dead blocks that name slots, free ones and reused ones, and stale free words."""
    frontend = {"scalar": SCALAR, "vector": VECTOR, "u1": U1, "su2": SU2}[kind]
    tree: amr.AMRTree = (amr.GaugeTree if kind in ("u1", "su2") else amr.AMRTree)(
        frontend, 0.5, 6, 4
    )  # type: ignore[arg-type]
    arena = amr.FieldArena(frontend, 12)
    random = np.random.default_rng(7)
    blocks = [tree.insert_block_with_field((4 * x, 4 * x), 0, arena) for x in range(4)]
    arena.storage[:] = random.standard_normal(arena.storage.shape)
    arena.storage[0].reshape(-1)[:3] = np.nan, -0.0, np.inf
    tree.invalidate_block(blocks[1])
    arena.free(int(tree.field_slots[blocks[1]]))
    tree.insert_block_with_field((8, 0), 1, arena)  # which takes that slot
    children = tree.refine_block(blocks[2])
    for child in children:
        tree.field_slots[child] = arena.alloc()
        arena.storage[tree.field_slots[child]] = random.standard_normal(arena.storage.shape[1:])
    tree.coarsen_blocks(children, arena)
    tree.invalidate_block(blocks[3])  # which keeps its slot
    arena.grow(15)
    arena.alloc()  # a slot that nobody names, and stale words
    if isinstance(tree, amr.GaugeTree):
        shape = tree.links.shape
        tree.links[:] = random.standard_normal(shape) + 1j * random.standard_normal(shape)
    return tree, arena


def saved(tree: amr.AMRTree, arena: amr.FieldArena) -> bytes:
    """The bytes of a checkpoint."""
    stream = io.BytesIO()
    if isinstance(tree, amr.GaugeTree):
        tree.write_checkpoint(arena, stream)
    else:
        amr.TreeCheckpoint(tree.frontend).write(tree, arena, stream)
    return stream.getvalue()


def loaded(data: bytes, like: amr.AMRTree) -> Any:
    """The state in a checkpoint of such a tree."""
    stream = io.BytesIO(data)
    if isinstance(like, amr.GaugeTree):
        return amr.GaugeTree.read_checkpoint(stream, frontend=like.frontend)
    return amr.TreeCheckpoint(like.frontend).read(stream)
