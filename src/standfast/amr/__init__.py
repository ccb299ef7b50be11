"""Meshes that refine themselves, lattices with links, and their exact restart.

    from standfast.amr import AMRTree, FieldArena, OpenTopology, ScalarFrontend, TreeCheckpoint

    frontend = ScalarFrontend(2, 16, OpenTopology(2, (16.0, 16.0)))
    tree = AMRTree(frontend, base_spacing=0.5, bits_per_dim=8, max_level=4)
    arena = FieldArena(frontend, 64)
    block = tree.insert_block_with_field((0, 0), 0, arena)

    TreeCheckpoint(frontend).write_to_file(tree, arena, "run_step0.sunc")
    state = TreeCheckpoint(frontend).read_from_file("run_step0.sunc")     # the same, bit for bit

`docs/amr.md` is the page of all this.
"""

import importlib
from typing import TYPE_CHECKING, Any

from standfast.amr.mesh.arena import INVALID, FieldArena
from standfast.amr.mesh.frontends import GaugeFrontend, ScalarFrontend
from standfast.amr.mesh.gauge import GaugeTree, LinkExchangeSpec
from standfast.amr.mesh.topology import GridTopology, OpenTopology, PeriodicTopology
from standfast.amr.mesh.tree import AMRTree
from standfast.amr.sunc.checkpoint import TreeCheckpoint, TreeState
from standfast.amr.sunc.paths import broadcast_checkpoint_step, format_path, format_ranked_path
from standfast.schedule import Schedule

if TYPE_CHECKING:
    from standfast.amr.ghosts.links import link_halo
    from standfast.amr.inspect.logical import logical_digest
    from standfast.amr.mesh.apply import Patch
    from standfast.amr.migration import move_blocks, repartition
    from standfast.amr.shard import ShardContext
    from standfast.amr.snapshot.snapshot import Restored, Snapshot

_LATER = {
    "Patch": "standfast.amr.mesh.apply",
    "Restored": "standfast.amr.snapshot.snapshot",
    "ShardContext": "standfast.amr.shard",
    "Snapshot": "standfast.amr.snapshot.snapshot",
    "link_halo": "standfast.amr.ghosts.links",
    "logical_digest": "standfast.amr.inspect.logical",
    "move_blocks": "standfast.amr.migration",
    "repartition": "standfast.amr.migration",
}
"""What a program on one rank that writes files has no use for."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'standfast.amr' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value


__all__ = [
    "INVALID",
    "AMRTree",
    "FieldArena",
    "GaugeFrontend",
    "GaugeTree",
    "GridTopology",
    "LinkExchangeSpec",
    "OpenTopology",
    "Patch",
    "PeriodicTopology",
    "Restored",
    "ScalarFrontend",
    "Schedule",
    "ShardContext",
    "Snapshot",
    "TreeCheckpoint",
    "TreeState",
    "broadcast_checkpoint_step",
    "format_path",
    "format_ranked_path",
    "link_halo",
    "logical_digest",
    "move_blocks",
    "repartition",
]
