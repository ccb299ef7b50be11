"""A mesh on real ranks is the mesh on one, block by block and bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from standfast import Store
from standfast.amr import Snapshot, TreeCheckpoint, format_ranked_path, logical_digest
from tests.amr.meshes import random_mesh
from tests.amr.programs.imported_on_ranks import channel
from tests.amr.programs.mesh_on_ranks import LATTICE, MESH, halos, wander
from tests.kit.parallel_ranks import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "mesh_on_ranks.py"
IMPORTING = PROGRAM.with_name("imported_on_ranks.py")
LONG = [pytest.param(count, marks=pytest.mark.long) for count in (2, 4)]


@pytest.mark.parametrize("count", [3, *LONG])
def test_fields_ghosts_meshes_and_halos_are_those_of_one_rank(count: int, tmp_path: Path) -> None:
    run_ranks(count, PROGRAM, str(tmp_path))
    answers = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(count)]
    alone = wander(*random_mesh(3, 4, holes=False, **MESH))
    alone.append(halos(random_mesh(4, 0, holes=False, **LATTICE)[0]))
    for step, expected in enumerate(alone):
        assert joined([answer["states"][step] for answer in answers]) == expected
    for answer in answers:
        told = f"rank {count - 1} of {count}: ZeroDivisionError: no way"
        assert told in answer["failure"]
        assert answer["again"]


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
    run_ranks(count, IMPORTING, str(tmp_path / "store"), str(tmp_path), *paths)
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


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What all ranks have; all of them have the same report, and each block is on one."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            assert key not in whole or (key == "report" and whole[key] == value)
            whole[key] = value
    return whole
