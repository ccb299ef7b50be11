"""Meshes and lattices on several ranks: what each rank has at the end of each step.

    mesh_on_ranks.py FOLDER FILE…    also lets files of some ranks go on as a simulation on others

Each rank writes FOLDER/RANK.json.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3]))

from standfast import Store
from standfast.amr import Snapshot, broadcast_checkpoint_step, link_halo, repartition
from standfast.errors import StandfastError
from standfast.parallel import communicator
from tests.amr.meshes import fields_by_key, random_mesh

MESH: dict[str, Any] = {"nd": 2, "base": 3, "topology": "periodic"}
LATTICE: dict[str, Any] = {"nd": 3, "base": 2, "topology": "periodic", "gauge": 2}
CHANNEL: dict[str, Any] = {"nd": 2, "base": 3, "topology": "mixed", "components": 3}


def channel() -> Any:
    return random_mesh(3, 4, holes=False, **CHANNEL)


def wander(tree: Any, arena: Any, comm: Any = None) -> list[dict[str, str]]:
    """Let a bump wander over the mesh, with blocks that are shared out anew in the middle."""
    states = []
    for step in range(4):

        def bump(patch: Any, centre: float = 1.0 + step) -> Any:
            squares = sum((patch.positions(d) - centre) ** 2 for d in range(patch.nd))
            around = sum(patch.shifted(d, s) for d in range(patch.nd) for s in (1, -1))
            field = 4.0 * np.exp(-2.0 * squares) + 0.01 * around
            return field.astype(patch.field.dtype)

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


def error_of(call: Callable[[], object]) -> str | None:
    """The class of what a call raises that cannot succeed."""
    try:
        call()
    except StandfastError as error:
        return type(error).__name__
    return None


def seen(comm: Any, world: Any, store: Store, paths: list[str]) -> dict[str, Any]:
    tree, arena = random_mesh(3, 4, holes=False, **MESH)
    lattice, fields = random_mesh(4, 0, holes=False, **LATTICE)
    repartition(tree, arena, comm)
    states = wander(tree, arena, comm)
    repartition(lattice, fields, comm)

    def fail(patch: Any) -> Any:
        if comm.rank == comm.size - 1:
            raise ZeroDivisionError
        return patch.field

    run, own = store.run("flow"), 7 + comm.rank
    frontend = channel()[0].frontend
    Snapshot.import_files(run, paths, frontend=frontend, comm=comm)
    found = Snapshot.load(run, frontend=frontend, comm=comm, reshard=True)
    imported = wander(found.tree, found.arena, comm)
    Snapshot.save(run, 101, found.tree, found.arena)
    return {
        "mesh": [*states, halos(lattice)],
        "imported": imported,
        "steps": [broadcast_checkpoint_step(world, root, own) for root in (0, 1)],
        "agreed": broadcast_checkpoint_step(world, 0, 5, strict=True),
        "errors": [
            error_of(lambda: tree.apply(fail, arena)),
            error_of(lambda: broadcast_checkpoint_step(world, 0, own, strict=True)),
            error_of(lambda: broadcast_checkpoint_step(world, 1, -comm.rank)),
            error_of(lambda: Snapshot.save(run, 200 + comm.rank, found.tree, found.arena)),
        ],
        "again": tree.fill_ghosts(arena).valid.shape[0] == len(tree.live),
    }


if __name__ == "__main__":
    from mpi4py import MPI

    folder, *paths = sys.argv[1:]
    world = MPI.COMM_WORLD
    with communicator(world) as comm, Store(Path(folder, "store")) as store:
        answer = seen(comm, world, store, paths)
    Path(folder, f"{world.rank}.json").write_text(json.dumps(answer))
