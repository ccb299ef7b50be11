"""Ranks that MPI started, and what becomes of them when one is lost."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.cases import kept
from tests.kit.parallel_ranks import run_ranks
from tests.parallel.test_torch import assert_all_passed

PROGRAMS = Path(__file__).with_name("programs")


@pytest.mark.parametrize("count", kept([1, 2, 3, 4], 3))
def test_ranks_of_mpi_are_a_communicator(count, tmp_path):
    run_ranks(count, PROGRAMS / "conformance.py", "mpi", str(tmp_path), timeout=180)
    assert_all_passed(tmp_path, count)


def raised(folder: Path, rank: int) -> list[str]:
    return (folder / f"{rank}.txt").read_text().split("\n", 1)


@pytest.mark.parametrize(
    "hows", kept([["hang"], ["kill", "hang", "absent"]], ["hang"]), ids=["hanging", "in all ways"]
)
def test_the_others_of_a_lost_rank_raise_at_the_deadline(hows, tmp_path):
    def lose(how: str) -> None:
        # In children of the ranks, or mpiexec would end them before.
        folder = tmp_path / how
        folder.mkdir()
        child = ("-m", "mpi4py", str(PROGRAMS / "lost.py"), how, str(folder))
        run_ranks(3, PROGRAMS / "apart.py", str(folder), "*.txt", *child, timeout=90, check=False)

    with ThreadPoolExecutor() as pool:  # most of the time they wait
        list(pool.map(lose, hows))
    for how in hows:
        for rank in (0, 2):
            kind, text = raised(tmp_path / how, rank)
            assert kind == "RankLost"
            assert "rank 1" in text or how == "absent"


@pytest.mark.parametrize("how", kept(["end", "kill"], "end"))
def test_a_job_with_a_lost_rank_ends(how, tmp_path):
    finished = run_ranks(2, PROGRAMS / "lost.py", how, str(tmp_path), timeout=90, check=False)
    assert finished.returncode != 0
    assert not (tmp_path / "1.txt").exists()


def test_a_rank_that_is_interrupted_while_it_waits_tells_the_others(tmp_path):
    finished = run_ranks(
        3, PROGRAMS / "lost.py", "interrupt", str(tmp_path), timeout=90, check=False
    )
    assert finished.returncode != 0
    assert raised(tmp_path, 1)[0] == "KeyboardInterrupt"
    kind, text = raised(tmp_path, 0)
    assert kind == "RankLost"
    assert "KeyboardInterrupt" in text
