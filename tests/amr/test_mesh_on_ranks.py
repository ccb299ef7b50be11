"""A mesh on real ranks is the mesh on one, block by block and bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.amr.meshes import random_mesh
from tests.amr.programs.mesh_on_ranks import LATTICE, MESH, halos, wander
from tests.parallel.ranks import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "mesh_on_ranks.py"


@pytest.mark.parametrize("count", [2, 3, 4])
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


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """What all ranks have; all of them have the same report, and each block is on one."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            assert key not in whole or (key == "report" and whole[key] == value)
            whole[key] = value
    return whole
