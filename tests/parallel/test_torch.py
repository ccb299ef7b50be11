"""Ranks of torch.distributed, and what becomes of them when one is lost."""

import json
from pathlib import Path

import pytest

from tests.kit.cases import kept
from tests.kit.parallel_ranks import run_torch_ranks, run_torchrun

PROGRAMS = Path(__file__).with_name("programs")

pytest.importorskip("torch")


def assert_all_passed(folder: Path, count: int) -> None:
    for rank in range(count):
        outcomes = json.loads((folder / f"{rank}.json").read_text())
        failed = {name: how for name, how in outcomes.items() if how != "passed"}
        assert not failed, "\n".join(f"{name} on rank {rank}:\n{failed[name]}" for name in failed)
        assert len(outcomes) > 35


@pytest.mark.parametrize("count", kept([1, 2, 3, 4], 3))
def test_ranks_of_torch_are_a_communicator(count, tmp_path):
    program = PROGRAMS / "conformance.py"
    finished = run_torch_ranks(count, program, tmp_path, ["torch"], timeout=150)
    assert finished.exit_codes == [[0] * count]
    assert_all_passed(tmp_path / "0", count)


LOST = ["kill", "end", "raise", "message", "hang", "absent", "interrupt"]
"""How rank 1 is lost."""


@pytest.mark.parametrize(
    "hows",
    [["kill", "hang"], pytest.param(LOST, marks=pytest.mark.long)],
    ids=["killed or hanging", "in all ways"],
)
def test_the_others_of_a_lost_rank_raise(hows, tmp_path):
    program = PROGRAMS / "torch_lost.py"
    finished = run_torch_ranks(3, program, tmp_path, *([how] for how in hows), timeout=100)
    for number, how in enumerate(hows):
        folder = tmp_path / str(number)
        # Rank 2 hangs while rank 1 is interrupted.
        for rank in (0,) if how == "interrupt" else (0, 2):
            kind, text = (folder / f"{rank}.txt").read_text().split("\n", 1)
            assert (how, kind) == (how, "RankLost")
            assert "rank 1" in text
        # Whoever is left ends as it would with all the others.
        expected = [0, -9 if how == "kill" else 0, 0]
        assert (how, finished.exit_codes[number]) == (how, expected)
        if how == "interrupt":
            assert (folder / "1.txt").read_text().startswith("KeyboardInterrupt\n")


@pytest.mark.long
def test_the_ranks_of_torchrun_are_a_communicator(tmp_path):
    run_torchrun(3, PROGRAMS / "conformance.py", "torch", str(tmp_path), timeout=170)
    assert_all_passed(tmp_path, 3)


@pytest.mark.long
@pytest.mark.parametrize("how", ["none", "kill", "raise"])
def test_a_job_of_torchrun_ends_when_one_of_its_ranks_does(how, tmp_path):
    finished = run_torchrun(
        2, PROGRAMS / "torch_job.py", how, str(tmp_path), timeout=120, check=False
    )
    assert (finished.returncode == 0) == (how == "none")
    done = {path.name for path in tmp_path.iterdir()}
    assert done == ({"0", "1"} if how == "none" else set())
