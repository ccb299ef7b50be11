"""A mesh and a lattice on several ranks: what each rank has at the end of each step.

Run as `mesh_on_ranks.py FOLDER`; each rank writes FOLDER/RANK.json.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from standfast.amr.ghosts.links import link_halo
from standfast.amr.migration import repartition
from standfast.errors import RankFailed
from tests.amr.meshes import fields_by_key, random_mesh

MESH: dict[str, Any] = {"nd": 2, "base": 3, "topology": "periodic"}
LATTICE: dict[str, Any] = {"nd": 3, "base": 2, "topology": "periodic", "gauge": 2}


def wander(tree: Any, arena: Any, comm: Any = None) -> list[dict[str, str]]:
    """Let a bump wander over the mesh, with blocks that are shared out anew in the middle."""
    states = []
    for step in range(4):

        def bump(patch: Any, centre: float = 1.0 + step) -> Any:
            squares = sum((patch.positions(d) - centre) ** 2 for d in range(patch.nd))
            around = sum(patch.shifted(d, s) for d in range(patch.nd) for s in (1, -1))
            return 4.0 * np.exp(-2.0 * squares) + 0.01 * around

        tree.apply(bump, arena)
        report = tree.adapt_mesh(arena, 1.5)
        if step == 1 and comm is not None:
            repartition(tree, arena, comm, np.arange(len(tree.live)) + 1.0)
        states.append(digests(fields_by_key(tree, arena)) | {"report": str(report)})
        ghosts = tree.fill_ghosts(arena).layers
        states.append(digests(dict(zip(tree.keys(), map(bytes, ghosts), strict=True))))
    return states


def halos(tree: Any) -> dict[str, str]:
    return digests(dict(zip(tree.keys(), map(bytes, link_halo(tree)), strict=True)))


def digests(parts: dict[Any, bytes]) -> dict[str, str]:
    return {str(key): hashlib.sha256(part).hexdigest()[:16] for key, part in parts.items()}


def failure_of(tree: Any, arena: Any, comm: Any) -> str:
    """What all ranks raise when a kernel fails on the last of them."""

    def fail(patch: Any) -> Any:
        if comm.rank == comm.size - 1:
            raise ZeroDivisionError("no way")
        return patch.field

    try:
        tree.apply(fail, arena)
    except RankFailed as error:
        return str(error)
    return "nothing"


def main(folder: Path) -> None:
    from mpi4py import MPI

    from standfast.parallel import communicator

    with communicator(MPI.COMM_WORLD) as comm:
        tree, arena = random_mesh(3, 4, holes=False, **MESH)
        repartition(tree, arena, comm)
        states = wander(tree, arena, comm)
        lattice, fields = random_mesh(4, 0, holes=False, **LATTICE)
        repartition(lattice, fields, comm)
        answer = {
            "states": [*states, halos(lattice)],
            "failure": failure_of(tree, arena, comm),
            "again": tree.fill_ghosts(arena).valid.shape[0] == len(tree.live),
        }
    (folder / f"{comm.rank}.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
