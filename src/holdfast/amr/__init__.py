"""Meshes that refine themselves, lattices with links, and their exact restart.

    from holdfast.amr import AMRTree, FieldArena, OpenTopology, ScalarFrontend, TreeCheckpoint

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

from holdfast.amr.arena import INVALID, FieldArena
from holdfast.amr.checkpoint import TreeCheckpoint, TreeState
from holdfast.amr.frontends import GaugeFrontend, ScalarFrontend
from holdfast.amr.gauge import GaugeTree, LinkExchangeSpec
from holdfast.amr.paths import broadcast_checkpoint_step, format_path, format_ranked_path
from holdfast.amr.topology import OpenTopology, PeriodicTopology
from holdfast.amr.tree import AMRTree
from holdfast.schedule import Schedule

if TYPE_CHECKING:
    from holdfast.amr.link_ghosts import link_halo
    from holdfast.amr.logical import logical_digest
    from holdfast.amr.moving import move_blocks, repartition
    from holdfast.amr.patch import Patch
    from holdfast.amr.shard import ShardContext
    from holdfast.amr.snapshot import Restored, Snapshot

_LATER = {
    "Patch": "holdfast.amr.patch",
    "Restored": "holdfast.amr.snapshot",
    "ShardContext": "holdfast.amr.shard",
    "Snapshot": "holdfast.amr.snapshot",
    "link_halo": "holdfast.amr.link_ghosts",
    "logical_digest": "holdfast.amr.logical",
    "move_blocks": "holdfast.amr.moving",
    "repartition": "holdfast.amr.moving",
}
"""What a program on one rank that writes files has no use for."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'holdfast.amr' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value


__all__ = [
    "INVALID",
    "AMRTree",
    "FieldArena",
    "GaugeFrontend",
    "GaugeTree",
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
