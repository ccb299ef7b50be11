"""Ranks of MPI that are killed while they save a snapshot: no hang, and never a mixture."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import ROOT
from tests.amr.kills.on_mpi import PATIENCE
from tests.amr.kills.stores import check_next_save, check_whole
from tests.kit.parallel_ranks import Finished, run_ranks

KILLED = Path(__file__).with_name("on_mpi.py")
APART = ROOT / "tests" / "parallel" / "programs" / "apart.py"
LONGEST = 40.0
"""A job that takes more seconds hangs."""


class Report(NamedTuple):
    """What a rank says that outlived the save."""

    outcome: str
    seconds: float
    operations: int


def run(count: int, folder: Path, rank: int, at: int, *who: str) -> Finished:
    arguments = [str(folder), str(rank), str(at), *who]
    return run_ranks(count, KILLED, *arguments, timeout=LONGEST, check=False)


def reports(folder: Path) -> dict[int, Report]:
    return {int(file.stem): Report(*json.loads(file.read_text())) for file in folder.glob("*.json")}


Operations = Callable[[int], list[int]]


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> Operations:
    """How many file operations each rank of so many makes in a save that nobody is killed in."""

    @functools.cache
    def counted(count: int) -> list[int]:
        folder = tmp_path_factory.mktemp("counted")
        assert run(count, folder, 0, 0, "itself").returncode == 0
        assert check_whole(folder / "store", count)
        told = reports(folder)
        assert {each.outcome for each in told.values()} == {"saved"}
        return [told[rank].operations for rank in range(count)]

    return counted


def test_a_rank_killed_in_a_snapshot_ends_the_job_and_leaves_a_whole_one(
    folder: Path, operations: Operations
) -> None:
    done = run(2, folder, 0, math.ceil(0.8 * operations(2)[0]), "itself")
    assert done.returncode != 0
    assert 0 not in reports(folder)
    assert check_whole(folder / "store", 2), "rank 0 has committed by then"
    check_next_save(folder / "store", 2, is_new=True)


@pytest.mark.long
@pytest.mark.parametrize("who", ["itself", "all"])
@pytest.mark.parametrize(
    ("count", "rank"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 0), (4, 3)]
)
def test_a_rank_killed_at_each_operation_leaves_a_whole_snapshot(
    count: int, rank: int, who: str, folder: Path, operations: Operations
) -> None:
    is_new = []
    for at in range(1, operations(count)[rank] + 1):
        path = folder / str(at)
        path.mkdir()
        assert run(count, path, rank, at, who).returncode != 0
        is_new.append(check_whole(path / "store", count))
        check_next_save(path / "store", count, is_new[-1])
    assert is_new == sorted(is_new)
    assert False in is_new
    assert (True in is_new) == (rank == 0)


@pytest.mark.parametrize(
    ("count", "rank", "part", "outcome"),
    [
        pytest.param(2, 1, 0.6, "lost", id="another rank, while it writes"),
        pytest.param(
            2, 0, 0.8, "saved", id="rank 0, once it has committed", marks=pytest.mark.long
        ),
        pytest.param(3, 0, 0.3, "lost", id="rank 0 of 3, while it writes", marks=pytest.mark.long),
        pytest.param(3, 2, 0.6, "lost", id="rank 2 of 3, while it writes", marks=pytest.mark.long),
    ],
)
def test_ranks_that_outlive_another_raise_in_time_and_the_store_is_sound(
    count: int, rank: int, part: float, outcome: str, folder: Path, operations: Operations
) -> None:
    at = math.ceil(part * operations(count)[rank])
    killed = (str(KILLED), str(folder), str(rank), str(at), "silently")
    run_ranks(count, APART, str(folder), "*.json", *killed, timeout=LONGEST, check=False)
    told = reports(folder)
    assert told.keys() == {*range(count)} - {rank}
    assert {each.outcome for each in told.values()} == {outcome}
    assert all(each.seconds < 3 * PATIENCE + 5 for each in told.values())
    is_new = check_whole(folder / "store", count)
    assert is_new == (outcome == "saved")
    check_next_save(folder / "store", count, is_new)
