"""The whole state of a simulation, section by section, and where two of them differ first."""

from collections.abc import Callable
from typing import Any

import numpy as np
from blake3 import blake3

from standfast.amr import GaugeTree, link_halo
from standfast.identity.canonical import Canonical
from standfast.tensors import randomness
from tests.amr.meshes import fields_by_key
from tests.amr.restart.simulations import Simulation
from tests.amr.tree_states import loaded, saved


def followed(
    simulation: Simulation,
    state: Callable[[Simulation], dict[str, str]],
    save: Callable[[], object] = lambda: None,
) -> dict[str, dict[str, str]]:
    """By step, as JSON has it, the state now and after each step up to the last; each is saved."""
    states = {str(simulation.step): state(simulation)}
    save()
    while simulation.step < simulation.last:
        simulation.advance()
        states[str(simulation.step)] = state(simulation)
        save()
    return states


def whole_state(simulation: Simulation) -> dict[str, str]:
    """The digest of all bytes of each section, on this rank; collective, with a shard."""
    tree, arena = simulation.tree, simulation.arena
    ghosts = tree.fill_ghosts(arena)
    file = saved(tree, arena)
    again = loaded(file, tree)
    generators = randomness.capture()
    sections: dict[str, Any] = {
        "file": file,
        "file written again": saved(again.tree, again.arena),
        "blocks": tree.blocks.view(np.uint8),
        "field_slots": tree.field_slots,
        "storage": arena.storage,
        "free_slots": arena.free_slots,
        "free_count": arena.free_count,
        "geometry": [tree.base_spacing, tree.bits_per_dim, tree.max_level],
        "random": [
            randomness.state_of(simulation.kicks),
            generators["python"],
            generators["numpy"],
        ],
        "step": simulation.step,
        "time": simulation.time,
        "values": [simulation.history, simulation.changes],
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


def digest(value: Any) -> str:
    return blake3(Canonical("state").encode(value)).hexdigest()[:16]
