"""SIGKILL of one rank or of all, at every operation: the old snapshot or the new one is there."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.amr.kills.forked_ranks import KILLED, LOST, SAVED
from tests.amr.kills.stores import (
    NEW,
    OLD,
    check_next_save,
    check_whole,
    contents,
    delete_old,
    left_behind,
    listed,
)
from tests.amr.snapshot.step_states import expected, save
from tests.kit.rank_threads import on_ranks

SHORT = [(2, 0, "itself", 9), (2, 1, "all", 9)]
LONG = [
    (count, rank, who, 1)
    for count in (1, 2, 3, 4)
    for who in ("itself", "all")
    for rank in range(count)
    if rank in (0, 1, count - 1) and (count, who) != (1, "all")
]
"""How many ranks there are, at whose operations something happens, at each which of them, and who
is killed then."""


def named(case: tuple[int, int, str, int]) -> str:
    count, rank, who, stride = case
    return f"rank {rank} of {count}, {who}, {stride}"


def killed(
    what: str, folder: Path, count: int, rank: int, who: str, stride: int
) -> dict[int, list[int]]:
    """How each rank ended, by the operation at which there was a kill."""
    command = [sys.executable, "-m", "tests.amr.kills.killed"]
    command += [what, str(folder), str(count), str(rank), who, str(stride)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    ends: list[list[int]] = json.loads(done.stdout)
    assert ends.pop() == [SAVED] * count, "without a kill, all go well"
    assert all(each[rank] == KILLED for each in ends)
    return dict(zip(itertools.count(1, stride), ends, strict=False))


@pytest.mark.parametrize(
    ("count", "rank", "who", "stride"),
    [
        *(pytest.param(*case, id=named(case)) for case in SHORT),
        *(pytest.param(*case, id=named(case), marks=pytest.mark.long) for case in LONG),
    ],
)
def test_a_snapshot_killed_at_any_operation_leaves_the_old_one_or_the_new_one(
    count: int, rank: int, who: str, stride: int, folder: Path
) -> None:
    ends = killed("save", folder, count, rank, who, stride)
    is_new: list[bool] = []
    left = 0
    for at, codes in ends.items():
        path = folder / str(at)
        is_new.append(check_whole(path, count))
        others = {code for number, code in enumerate(codes) if number != rank}
        if who == "all":  # but for those who were done
            assert others <= ({KILLED, SAVED} if is_new[-1] else {KILLED}), (
                f"operation {at}: {codes}"
            )
        elif others:
            assert others == {SAVED if is_new[-1] else LOST}, f"operation {at}: {codes}"
        left += left_behind(path)
        check_next_save(path, count, is_new[-1])
    assert is_new == sorted(is_new), "the new one was there, and then it was not"
    if who == "all" or rank == 0:  # else rank 0 cleans up after the dead, if it can
        assert left > 0, "no kill left anything behind: were they early enough?"
    assert False in is_new
    assert (True in is_new) == (rank == 0), "rank 0 alone commits"
    assert check_whole(folder / str(max(ends) + stride), count)


@pytest.mark.parametrize(
    ("count", "rank", "who", "stride"),
    [
        (2, 1, "itself", 9),
        pytest.param(1, 0, "itself", 1, marks=pytest.mark.long),
        pytest.param(2, 0, "itself", 1, marks=pytest.mark.long),
        pytest.param(2, 1, "itself", 1, marks=pytest.mark.long),
        pytest.param(2, 0, "all", 1, marks=pytest.mark.long),
        pytest.param(3, 1, "all", 1, marks=pytest.mark.long),
    ],
)
def test_a_kill_in_a_load_changes_nothing_on_the_disk(
    count: int, rank: int, who: str, stride: int, folder: Path
) -> None:
    path = folder / "store"
    on_ranks(count, lambda comm: [save(path, comm, step) for step in (OLD, NEW)])
    before = listed(path)
    ends = killed("load", path, count, rank, who, stride)
    assert max(ends) > 10, "so much has to be read"
    for codes in ends.values():
        others = {code for number, code in enumerate(codes) if number != rank}
        assert others <= ({KILLED, SAVED} if who == "all" else {LOST, SAVED})
    assert listed(path) == before
    assert contents(path, count, "latest") == expected(count, NEW)
    delete_old(path)  # no dead process keeps it
    assert contents(path, count, "latest") == expected(count, NEW)
