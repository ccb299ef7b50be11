"""Files of three ranks go on as a simulation on others: vectors in a box of mixed borders.

Run as `imported_on_ranks.py STORE FOLDER FILE…`; each rank writes FOLDER/RANK.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from standfast import Store
from standfast.amr import Snapshot
from standfast.errors import StandfastError
from tests.amr.meshes import random_mesh
from tests.amr.programs.mesh_on_ranks import wander

CHANNEL: dict[str, Any] = {"nd": 2, "base": 3, "topology": "mixed", "components": 3}


def channel() -> Any:
    return random_mesh(3, 4, holes=False, **CHANNEL)


def refusal(run: Any, comm: Any, tree: Any, arena: Any) -> str:
    """What each rank is told when every rank saves a step of its own."""
    try:
        Snapshot.save(run, 200 + comm.rank, tree, arena, time=0.5 * comm.rank)
    except StandfastError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def main(store: Path, folder: Path, paths: list[str]) -> None:
    from mpi4py import MPI

    from standfast.parallel import communicator

    frontend = channel()[0].frontend
    with communicator(MPI.COMM_WORLD) as comm, Store(store) as opened:
        run = opened.run("flow")
        Snapshot.import_files(run, paths, frontend=frontend, comm=comm)
        found = Snapshot.load(run, frontend=frontend, comm=comm, reshard=True)
        states = wander(found.tree, found.arena, comm)
        Snapshot.save(run, 101, found.tree, found.arena)
        told = refusal(run, comm, found.tree, found.arena)
    answer = {"step": found.step, "states": states, "told": told}
    (folder / f"{comm.rank}.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
