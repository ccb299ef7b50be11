"""Small states of trees: in memory, as files, and as snapshots of several ranks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import standfast
from standfast import amr
from standfast.amr.mesh.frontends import Frontend
from standfast.amr.snapshot.parts import slabs

SCALAR = amr.ScalarFrontend(2, 4, amr.OpenTopology(2, (8.0, 8.0)))
VECTOR = amr.ScalarFrontend(
    2, 4, amr.GridTopology(2, ("periodic", "open"), (8.0, 8.0)), components=3
)
GAUGE = amr.GaugeFrontend(2, 1, 2, 4, amr.PeriodicTopology(2, (8.0, 8.0)))
State = tuple[amr.AMRTree, amr.FieldArena]


def field_of(frontend: Frontend, level: int, origin: Any, seed: int = 0) -> Any:
    """The field of a block, which its place decides on."""
    random = np.random.default_rng([seed, level, *origin])
    shape = (frontend.block_volume, *frontend.field_shape)
    values = random.standard_normal((*shape, 2))
    return values[..., 0] + 1j * values[..., 1] if frontend.dtype.kind == "c" else values[..., 0]


def links_of(frontend: amr.GaugeFrontend, level: int, origin: Any) -> Any:
    """Unitary links of a block, which its place decides on."""
    random = np.random.default_rng([7, level, *origin])
    shape = frontend.link_shape
    found, _ = np.linalg.qr(random.standard_normal(shape) + 1j * random.standard_normal(shape))
    return found


def fill(state: State) -> None:
    """Give all live blocks the fields and links of their places."""
    tree, arena = state
    for index in tree.live.tolist():
        level, origin = int(tree.blocks[index]["level"]), tree.blocks[index]["origin"].tolist()
        slot = int(tree.field_slots[index])
        if slot < arena.max_blocks:
            arena.storage[slot] = field_of(tree.frontend, level, origin)
        if isinstance(tree, amr.GaugeTree):
            tree.links[index] = links_of(tree.frontend, level, origin)


def empty(frontend: Frontend = SCALAR, max_blocks: int = 16) -> State:
    kind = amr.GaugeTree if isinstance(frontend, amr.GaugeFrontend) else amr.AMRTree
    return kind(frontend, 1.0, 6, 4), amr.FieldArena(frontend, max_blocks)  # type: ignore[arg-type]


def refined(frontend: Frontend = SCALAR, max_blocks: int = 16) -> State:
    """Four blocks, one of them refined: 3 + 4 live ones, and a dead one that names its slot."""
    tree, arena = state = empty(frontend, max_blocks)
    for origin in ((0, 0), (4, 0), (0, 4), (4, 4)):
        tree.insert_block_with_field(origin, 0, arena)
    tree.invalidate_block(0)
    for origin in tree.child_origins((0, 0)):
        tree.insert_block_with_field(origin, 1, arena)
    fill(state)
    return state


def sections(state: State) -> dict[str, Any]:
    tree, arena = state
    found = {
        "blocks": tree.blocks,
        "field_slots": tree.field_slots,
        "storage": arena.storage,
        "free_slots": arena.free_slots,
    }
    return found | ({"links": tree.links} if isinstance(tree, amr.GaugeTree) else {})


def metadata(state: State, **changes: Any) -> dict[str, Any]:
    tree, arena = state
    return {
        "nd": tree.frontend.nd,
        "block_size": tree.frontend.block_size,
        "field_bytes": tree.frontend.field_bytes,
        "arena_free_count": arena.free_count,
        "base_spacing": tree.base_spacing,
        "bits_per_dim": tree.bits_per_dim,
        "max_level": tree.max_level,
        **changes,
    }


def save(path: Path, state: State, extras: bool = True, **changed: Any) -> Path:
    """A `.sunc` file of a state; sections that are given replace its own."""
    standfast.save(path, sections(state) | changed, metadata(state), extras=extras)
    return path


def snapshot(*ranks: State, time: float = 0.5, **changes: Any) -> dict[str, Any]:
    """What a snapshot has in a store."""
    frontend = ranks[0][0].frontend
    saved: dict[str, Any] = {
        "simulation": {
            "format": "standfast snapshot 1",
            "time": time,
            "ranks": len(ranks),
            "frontend": frontend.describe(),
            "tree": "gauge" if isinstance(ranks[0][0], amr.GaugeTree) else "amr",
            "sharding": "manual" if len(ranks) > 1 else None,
            "owners": owners(ranks) if len(ranks) > 1 else None,
            "values": {"beta": 2.5},
            **changes,
        }
    }
    for number, (tree, arena) in enumerate(ranks):
        saved[f"rank{number}"] = {
            "header": {
                "base_spacing": tree.base_spacing,
                "bits_per_dim": tree.bits_per_dim,
                "max_level": tree.max_level,
                "free_count": arena.free_count,
                "max_blocks": arena.max_blocks,
            },
            "blocks": tree.blocks.view(np.uint8).reshape(len(tree), tree.blocks.itemsize),
            "field_slots": tree.field_slots,
            "free_slots": arena.free_slots,
            "storage": slabs(arena.storage),
            "random": {"own": {"kicks": np.arange(4, dtype=np.uint64)}, "global": {"numpy": 5}},
        }
        if isinstance(tree, amr.GaugeTree):
            saved[f"rank{number}"]["links"] = slabs(tree.links)
    return saved


def owners(ranks: Sequence[State]) -> dict[str, Any]:
    """Which rank has which live block."""
    live = [tree.blocks[tree.live] for tree, _ in ranks]
    return {
        "origins": np.concatenate([blocks["origin"] for blocks in live]),
        "levels": np.concatenate([blocks["level"] for blocks in live]),
        "owners": np.repeat(np.arange(len(ranks), dtype=np.uint32), [len(b) for b in live]),
    }


def divided(whole: State, count: int, max_blocks: int = 16) -> list[State]:
    """The live blocks of a tree dealt out to ranks in turn, in another order and in other slots."""
    tree, _ = whole
    ranks = [empty(tree.frontend, max_blocks) for _ in range(count)]
    for n, index in enumerate(reversed(tree.live.tolist())):
        part, arena = ranks[n % count]
        record = tree.blocks[index]
        origin, level = record["origin"].tolist(), int(record["level"])
        part.insert_block_with_field(origin, level, arena)
    for rank in ranks:
        fill(rank)
    return ranks


def swap(words: Any) -> None:
    """Let two blocks of the finer level change their places in an array."""
    words[[6, 7]] = words[[7, 6]]
