"""A mesh on ranks is the mesh on one, block by block and bit by bit."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Store
from standfast.amr import Snapshot, TreeCheckpoint, format_ranked_path, logical_digest, repartition
from tests.amr.meshes import random_mesh
from tests.amr.programs.mesh_on_ranks import CHANNEL, LATTICE, MESH, channel, halos, wander
from tests.kit.cases import kept
from tests.kit.parallel_ranks import run_ranks
from tests.kit.rank_threads import on_threads

PROGRAM = Path(__file__).parent / "programs" / "mesh_on_ranks.py"


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What all ranks have; all of them have the same report, and each block is on one."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            assert key not in whole or (key == "report" and whole[key] == value)
            whole[key] = value
    return whole


MESHES: dict[str, dict[str, Any]] = {
    "2-D": {"nd": 2, "base": 3},
    "gauge": {"nd": 2, "base": 2, "topology": "periodic", "gauge": 3},
    "3-D": {"nd": 3, "base": 2, "topology": "periodic", "dtype": np.complex64, "max_level": 2},
    "mixed vector": CHANNEL,
}


@pytest.mark.parametrize(
    ("of", "size"),
    kept(
        [(name, size) for name in MESHES for size in (1, 2, 3, 4)],
        *(("2-D", 3), ("gauge", 2), ("3-D", 4), ("mixed vector", 3)),
    ),
)
def test_meshes_fields_and_ghosts_are_the_same_on_any_number_of_ranks(of, size):
    def program(comm: Any) -> Any:
        tree, arena = random_mesh(3, 4, holes=False, **MESHES[of])
        repartition(tree, arena, comm, np.random.default_rng(size).random(len(tree.live)))
        states = wander(tree, arena, comm)
        shared = [tuple(key) for key in tree.shard.owned_by(comm.rank).tolist()]
        assert sorted(tree.keys()) == shared
        return states

    ranks = on_threads(size, program)
    for step, expected in enumerate(wander(*random_mesh(3, 4, holes=False, **MESHES[of]))):
        assert joined([rank[step] for rank in ranks]) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("of", [{"nd": 2, "base": 3, "gauge": 1}, LATTICE], ids=["open", "3-D"])
def test_halos_are_the_same_on_any_number_of_ranks(of, size):
    def program(comm: Any) -> Any:
        tree, arena = random_mesh(4, 0, **of)
        repartition(tree, arena, comm, np.random.default_rng(9).random(len(tree.live)))
        return halos(tree)

    assert joined(on_threads(size, program)) == halos(random_mesh(4, 0, **of)[0])


@pytest.mark.parametrize("count", kept((2, 3, 4), 3))
def test_ranks_of_mpi_have_the_mesh_and_the_steps_of_one(count, tmp_path):
    paths = [format_ranked_path(tmp_path, "flow", 100, rank) for rank in range(3)]
    for rank, path in enumerate(paths):
        tree, arena = channel()
        for number, index in enumerate(tree.live.tolist()):
            if number % 3 != rank:
                tree.invalidate_block(index)
        TreeCheckpoint(tree.frontend).write_to_file(tree, arena, path)
    run_ranks(count, PROGRAM, str(tmp_path), *paths)
    answers = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(count)]
    mesh = wander(*random_mesh(3, 4, holes=False, **MESH))
    mesh.append(halos(random_mesh(4, 0, holes=False, **LATTICE)[0]))
    alone = channel()
    for name, states in (("mesh", mesh), ("imported", wander(*alone))):
        for step, expected in enumerate(states):
            assert joined([answer[name][step] for answer in answers]) == expected
    for answer in answers:
        assert answer["errors"] == ["RankFailed", "RanksDisagree", "BadOption", "RanksDisagree"]
        assert answer["again"]
        assert (answer["steps"], answer["agreed"]) == ([7, 8], 5)
    run = Store(tmp_path / "store").run("flow")
    assert [each.step for each in run.checkpoints()] == [100, 101]
    assert logical_digest(Snapshot(run.checkpoint(101))) == logical_digest(alone)
