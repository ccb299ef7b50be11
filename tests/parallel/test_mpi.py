"""Ranks that MPI started, and what becomes of them when one is lost."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.parallel_ranks import run_ranks

PROGRAMS = Path(__file__).with_name("programs")


@pytest.mark.parametrize(
    "count", [3, *(pytest.param(count, marks=pytest.mark.long) for count in (1, 2, 4))]
)
def test_ranks_of_mpi_are_a_communicator(count: int, tmp_path: Path) -> None:
    run_ranks(count, PROGRAMS / "conformance.py", "mpi", str(tmp_path), timeout=180)
    for rank in range(count):
        outcomes = json.loads((tmp_path / f"{rank}.json").read_text())
        failed = {name: how for name, how in outcomes.items() if how != "passed"}
        assert not failed, "\n".join(f"{name} on rank {rank}:\n{failed[name]}" for name in failed)
        assert len(outcomes) > 30


def _raised(folder: Path, rank: int) -> tuple[str, float, str]:
    kind, seconds, text = (folder / f"{rank}.txt").read_text().split("\n", 2)
    return kind, float(seconds), text


SILENT = "rank 1 of 3 did not come to exchange, its call 2, within 4 seconds"
ABSENT = "not all 3 ranks came to duplicate their communicator, within 4 seconds"


def test_the_others_of_a_lost_rank_raise_at_the_deadline(tmp_path: Path) -> None:
    def lose(how: str) -> None:
        # In children of the ranks, or mpiexec would end them before.
        folder = tmp_path / how
        folder.mkdir()
        child = ("-m", "mpi4py", str(PROGRAMS / "lost.py"), how, str(folder))
        run_ranks(3, PROGRAMS / "apart.py", str(folder), "*.txt", *child, timeout=90, check=False)

    told = {"kill": SILENT, "hang": SILENT, "absent": ABSENT}
    with ThreadPoolExecutor() as pool:  # most of the time they wait
        list(pool.map(lose, told))
    for how, expected in told.items():
        outcomes = [_raised(tmp_path / how, rank) for rank in (0, 2)]
        for kind, seconds, text in outcomes:
            assert kind == "RankLost"
            assert seconds < 60
            assert expected in text
        assert max(seconds for _, seconds, _ in outcomes) > 4


@pytest.mark.parametrize("how", ["end", pytest.param("kill", marks=pytest.mark.long)])
def test_a_job_with_a_lost_rank_ends(how: str, tmp_path: Path) -> None:
    finished = run_ranks(2, PROGRAMS / "lost.py", how, str(tmp_path), timeout=90, check=False)
    assert finished.returncode != 0
    assert not (tmp_path / "1.txt").exists()


def test_a_rank_that_is_interrupted_while_it_waits_tells_the_others(tmp_path: Path) -> None:
    finished = run_ranks(
        3, PROGRAMS / "lost.py", "interrupt", str(tmp_path), timeout=90, check=False
    )
    assert finished.returncode != 0
    assert _raised(tmp_path, 1)[0] == "KeyboardInterrupt"
    kind, seconds, text = _raised(tmp_path, 0)
    assert (kind, seconds < 60) == ("RankLost", True)
    assert text.startswith("rank 1 gave up: KeyboardInterrupt;")
