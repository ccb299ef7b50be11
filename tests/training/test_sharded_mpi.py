"""Checkpointers of programs that mpiexec started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import standfast
from tests.kit.parallel_ranks import run_ranks

PROGRAM = Path(__file__).with_name("programs") / "mpi_walk.py"


def walked(folder: Path, store: Path, steps: int, kill_at: int = 0) -> list[Any]:
    folder.mkdir()
    arguments = (str(store), str(folder), str(steps), str(kill_at))
    run_ranks(2, PROGRAM, *arguments, timeout=300, check=not kill_at)
    return [json.loads(file.read_text()) for file in sorted(folder.iterdir())]


def test_a_program_of_mpi_that_was_killed_goes_on_exactly(tmp_path: Path) -> None:
    whole = walked(tmp_path / "whole", tmp_path / "a", 7)
    assert walked(tmp_path / "killed", tmp_path / "b", 7, kill_at=5) == []
    resumed = walked(tmp_path / "resumed", tmp_path / "b", 7)
    assert [each.pop("resumed") for each in resumed] == [4, 4]
    assert [each.pop("resumed") for each in whole] == [0, 0]
    assert resumed == whole
    assert whole[0]["here"] != whole[1]["here"]
    assert whole[0]["common"] == whole[1]["common"]
    state = standfast.Store(tmp_path / "b").resolve("walk@latest").state()
    assert state["walk"]["common"].tobytes().hex() == whole[0]["common"]
    own = [each["here"].tobytes().hex() for each in state["walk"]["position"]]
    assert own == [each["here"] for each in whole]
