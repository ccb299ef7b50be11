"""The whole state of a simulation, section by section, and where two of them differ first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from blake3 import blake3

from standfast.amr import GaugeTree
from standfast.amr.ghosts.links import link_halo
from standfast.tensors import randomness
from tests.amr.meshes import fields_by_key
from tests.amr.restart.simulation import Simulation
from tests.amr.tree_states import loaded, saved

States = Mapping[str, Mapping[str, str]]
"""By step, as JSON has it, the digest of each section."""


def whole_state(simulation: Simulation) -> dict[str, str]:
    """The digest of all bytes of each section, on this rank; collective, with a shard."""
    tree, arena = simulation.tree, simulation.arena
    ghosts = tree.fill_ghosts(arena)
    file = saved(tree, arena)
    again = loaded(file, tree)
    random = [randomness.state_of(simulation.kicks), randomness.capture()]
    sections: dict[str, Any] = {
        "file": file,
        "file written again": saved(again.tree, again.arena),
        "blocks": tree.blocks,
        "field_slots": tree.field_slots,
        "storage": arena.storage,
        "free_slots": arena.free_slots,
        "free_count": arena.free_count,
        "geometry": [tree.base_spacing.hex(), tree.bits_per_dim, tree.max_level],
        "random": random,
        "step": simulation.step,
        "time": simulation.time.hex(),
        "values": [[each.hex() for each in simulation.history], simulation.changes],
        "fields": sorted(fields_by_key(tree, arena).items()),
        "ghosts": [ghosts.blocks, ghosts.layers, ghosts.valid, ghosts.coarser],
    }
    if isinstance(tree, GaugeTree):
        sections["links"] = tree.links
        sections["links around"] = link_halo(tree)
    if tree.shard is not None:
        sections["owners"] = [tree.shard.kind, tree.shard.keys, tree.shard.owners]
    return {name: digest(value) for name, value in sections.items()}


def blocks_by_place(simulation: Simulation) -> dict[str, str]:
    """The digest of the field and the links of each live block on this rank, by its key."""
    found = fields_by_key(simulation.tree, simulation.arena)
    return {f"{number} {level}": digest(data) for (number, level), data in found.items()}


def first_difference(one: States, other: States) -> tuple[int, list[str]] | None:
    """The first step that both have and at which they differ, and in which sections."""
    for step in sorted(map(int, one.keys() & other.keys())):
        found = different(one[str(step)], other[str(step)])
        if found:
            return step, found
    return None


def different(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The sections that are not the same."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def digest(value: Any) -> str:
    """A few hexadecimal digits for bytes, arrays, numbers, texts, and collections of them."""
    return blake3(_bytes(value)).hexdigest()[:16]


def _bytes(value: Any) -> bytes:
    """Bytes that tell values of different types, shapes or contents apart."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} ".encode() + value.tobytes()
    if isinstance(value, Mapping):
        value = sorted(value.items())
    if isinstance(value, list | tuple):
        parts = [_bytes(each) for each in value]
        return b"".join(b"%d:%s" % (len(part), part) for part in parts)
    return repr(value).encode()
