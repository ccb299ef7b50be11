"""A mesh on ranks is the mesh on one, block by block and bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Store
from standfast.amr import Snapshot, TreeCheckpoint, format_ranked_path, logical_digest
from standfast.amr.migration import repartition
from tests.amr.meshes import random_mesh
from tests.amr.programs.mesh_on_ranks import CHANNEL, LATTICE, MESH, channel, halos, wander
from tests.kit.parallel_ranks import run_ranks
from tests.kit.rank_threads import on_threads

PROGRAM = Path(__file__).parent / "programs" / "mesh_on_ranks.py"
LONG = [pytest.param(count, marks=pytest.mark.long) for count in (2, 4)]


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What all ranks have; all of them have the same report, and each block is on one."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            assert key not in whole or (key == "report" and whole[key] == value)
            whole[key] = value
    return whole


MESHES: list[dict[str, Any]] = [
    {"nd": 2, "base": 3},
    {"nd": 2, "base": 2, "topology": "periodic", "gauge": 3},
    {"nd": 3, "base": 2, "topology": "periodic", "dtype": np.complex64, "max_level": 2},
    CHANNEL,
]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("of", MESHES, ids=["2-D", "gauge", "3-D", "mixed vector"])
def test_meshes_fields_and_ghosts_are_the_same_on_any_number_of_ranks(of: Any, size: int) -> None:
    def program(comm: Any) -> Any:
        tree, arena = random_mesh(3, 4, holes=False, **of)
        repartition(tree, arena, comm, np.random.default_rng(size).random(len(tree.live)))
        states = wander(tree, arena, comm)
        shared = [tuple(key) for key in tree.shard.owned_by(comm.rank).tolist()]
        assert sorted(tree.keys()) == shared
        return states

    ranks = on_threads(size, program)
    for step, expected in enumerate(wander(*random_mesh(3, 4, holes=False, **of))):
        assert joined([rank[step] for rank in ranks]) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("of", [{"nd": 2, "base": 3, "gauge": 1}, LATTICE], ids=["open", "3-D"])
def test_halos_are_the_same_on_any_number_of_ranks(of: Any, size: int) -> None:
    def program(comm: Any) -> Any:
        tree, arena = random_mesh(4, 0, **of)
        repartition(tree, arena, comm, np.random.default_rng(9).random(len(tree.live)))
        first = halos(tree)
        assert halos(tree) == first
        return first

    assert joined(on_threads(size, program)) == halos(random_mesh(4, 0, **of)[0])


@pytest.mark.parametrize("count", [3, *LONG])
def test_ranks_of_mpi_have_the_mesh_and_the_steps_of_one(count: int, tmp_path: Path) -> None:
    run_ranks(count, PROGRAM, "mesh", str(tmp_path))
    answers = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(count)]
    alone = wander(*random_mesh(3, 4, holes=False, **MESH))
    alone.append(halos(random_mesh(4, 0, holes=False, **LATTICE)[0]))
    for step, expected in enumerate(alone):
        assert joined([answer["states"][step] for answer in answers]) == expected
    for answer in answers:
        told = f"rank {count - 1} of {count}: ZeroDivisionError: no way"
        assert told in answer["failure"]
        assert answer["again"]
        assert (answer["steps"], answer["agreed"]) == ([7, 8], 5)
        assert answer["strict"].startswith("RanksDisagree: ")
        assert answer["none"].startswith("BadOption: ")


@pytest.mark.parametrize("count", [2, LONG[1]])
def test_files_of_three_ranks_go_on_as_they_would_have_on_one(count: int, tmp_path: Path) -> None:
    """The seed: "Support deterministic restarts for long-running HMC and AMR pipelines"."""
    paths = [format_ranked_path(tmp_path, "flow", 100, rank) for rank in range(3)]
    for rank, path in enumerate(paths):
        tree, arena = channel()
        for number, index in enumerate(tree.live.tolist()):
            if number % 3 != rank:
                tree.invalidate_block(index)
        TreeCheckpoint(tree.frontend).write_to_file(tree, arena, path)
    run_ranks(count, PROGRAM, "imported", str(tmp_path), *paths)
    answers = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(count)]
    alone = channel()
    for step, expected in enumerate(wander(*alone)):
        assert joined([answer["states"][step] for answer in answers]) == expected
    steps = ", and ".join(f"rank {rank} has {200 + rank}" for rank in range(count))
    for answer in answers:
        assert answer["step"] == 100
        assert answer["told"].startswith("RanksDisagree: the ranks do not agree on the step: ")
        assert steps in answer["told"]
    run = Store(tmp_path / "store").run("flow")
    assert [each.step for each in run.checkpoints()] == [100, 101]
    assert logical_digest(Snapshot(run.checkpoint(101))) == logical_digest(alone)
