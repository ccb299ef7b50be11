"""Ranks of torch.distributed, and what becomes of them when one is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.parallel_ranks import run_torch_ranks, run_torchrun

PROGRAMS = Path(__file__).with_name("programs")

pytest.importorskip("torch")


def _assert_all_passed(folder: Path, count: int) -> None:
    for rank in range(count):
        outcomes = json.loads((folder / f"{rank}.json").read_text())
        failed = {name: how for name, how in outcomes.items() if how != "passed"}
        assert not failed, "\n".join(f"{name} on rank {rank}:\n{failed[name]}" for name in failed)
        assert len(outcomes) > 40


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(1, marks=pytest.mark.long),
        pytest.param(2, marks=pytest.mark.long),
        3,
        pytest.param(4, marks=pytest.mark.long),
    ],
)
def test_ranks_of_torch_are_a_communicator(count: int, tmp_path: Path) -> None:
    program = PROGRAMS / "conformance.py"
    finished = run_torch_ranks(count, program, tmp_path, ["torch"], timeout=150)
    assert finished.exit_codes == [[0] * count]
    _assert_all_passed(tmp_path / "0", count)


ENDED = "rank 1 of 3 has closed its connection: it has ended, or was ended"
ABSENT = "rank 1 of 3 did not come to make a communicator, within 4 seconds"
HANGING = "rank 1 of 3 did not come to exchange, its call 2, within 4 seconds"
INTERRUPTED = "rank 1 gave up: KeyboardInterrupt"

LOST = {
    "kill": ENDED,
    "end": ENDED,
    "raise": ENDED,
    "message": ENDED,
    "hang": HANGING,
    "absent": ABSENT,
    "interrupt": INTERRUPTED,
}
"""How rank 1 is lost, and what the others say."""


@pytest.mark.parametrize(
    "hows",
    [
        pytest.param(["kill", "message", "hang", "absent", "interrupt"], id="in some ways"),
        pytest.param([*LOST], id="in all ways", marks=pytest.mark.long),
    ],
)
def test_the_others_of_a_lost_rank_raise(hows: list[str], tmp_path: Path) -> None:
    program = PROGRAMS / "torch_lost.py"
    finished = run_torch_ranks(3, program, tmp_path, *([how] for how in hows), timeout=100)
    for number, how in enumerate(hows):
        folder = tmp_path / str(number)
        # Rank 2 hangs while rank 1 is interrupted.
        for rank in (0,) if how == "interrupt" else (0, 2):
            kind, seconds, text = _raised(folder, rank)
            assert (how, kind) == (how, "RankLost")
            assert LOST[how] in text
            assert seconds < 30, how  # half of the time that they wait for one that lives
            assert seconds > 4 or how not in ("hang", "absent")
        # Whoever is left ends as it would with all the others.
        expected = [0, -9 if how == "kill" else 0, 0]
        assert (how, finished.exit_codes[number]) == (how, expected)
    assert _raised(tmp_path / str(hows.index("interrupt")), 1)[0] == "KeyboardInterrupt"


def _raised(folder: Path, rank: int) -> tuple[str, float, str]:
    kind, seconds, text = (folder / f"{rank}.txt").read_text().split("\n", 2)
    return kind, float(seconds), text


@pytest.mark.long
def test_the_ranks_of_torchrun_are_a_communicator(tmp_path: Path) -> None:
    run_torchrun(3, PROGRAMS / "conformance.py", "torch", str(tmp_path), timeout=170)
    _assert_all_passed(tmp_path, 3)


@pytest.mark.long
@pytest.mark.parametrize("how", ["none", "kill", "raise"])
def test_a_job_of_torchrun_ends_when_one_of_its_ranks_does(how: str, tmp_path: Path) -> None:
    finished = run_torchrun(
        2, PROGRAMS / "torch_job.py", how, str(tmp_path), timeout=120, check=False
    )
    assert (finished.returncode == 0) == (how == "none")
    done = {path.name for path in tmp_path.iterdir()}
    assert done == ({"0", "1"} if how == "none" else set())
