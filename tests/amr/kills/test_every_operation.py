"""SIGKILL of one rank or of all at every operation, and power cuts: the old snapshot or the new."""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from standfast import Store
from standfast.files import disk
from standfast.store.index.manifest import Manifest
from standfast.store.load.reading import read_record
from standfast.store.maintenance.doctor import examine
from tests.amr.kills.forked_ranks import KILLED, LOST, SAVED
from tests.amr.snapshot.step_states import RUN, content, expected, load, save
from tests.kit.disk_faults import OPERATIONS
from tests.kit.fault_states import UnsyncedDisk, leftovers, make_small
from tests.kit.power import LoggingDisk, trees_after_power_cut
from tests.kit.rank_threads import on_ranks

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is such a thing: the loops here would wear out a disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the killed programs do too; the power stays on."""
    make_small(monkeypatch)
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    monkeypatch.setattr(Manifest, "refresh", Manifest.mark)


OLD, NEW = 1, 2
"""The step that was saved before, and the one whose save was killed."""

_expected = functools.cache(expected)


def check_whole(path: Path, count: int) -> bool:
    """The old snapshot, or the old one and the new one, and nothing else; whether it is there."""
    with Store(path) as store:
        (run,) = store.runs()
        found = run.checkpoints()
        steps = [each.step for each in found]
        assert steps in ([OLD], [OLD, NEW])
        assert store.resolve("latest").step == steps[-1]
        for each in found:
            each.verify()
    assert contents(path, count, "latest") == _expected(count, steps[-1])
    if steps[-1] != OLD:
        assert contents(path, count, OLD) == _expected(count, OLD)
    return steps[-1] == NEW


def contents(path: Path, count: int, ref: int | str) -> list[Any]:
    """What each of as many ranks gets back."""
    return [content(each) for each in on_ranks(count, lambda comm: load(path, comm, ref))]


def check_next_save(path: Path, count: int, is_new: bool) -> None:
    """The step that was being saved can be, and no file stays that nobody needs."""
    on_ranks(count, lambda comm: save(path, comm, NEW, replace=is_new))
    assert contents(path, count, "latest") == _expected(count, NEW)
    with Store(path) as store:
        assert leftovers(store) == []
        found = examine(store.backend, store.index)  # every byte of both
        assert found.sound
        assert found.checkpoints == len((OLD, NEW))
        assert (found.orphans, found.foreign, found.restored) == ({}, [], {})


def listed(path: Path) -> dict[str, bytes]:
    """All files of a store but what is made again at any time."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and ".standfast" not in file.parts
    }


SHORT = [(2, 0, "itself", 12), (2, 1, "all", 12)]
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


def killed(folder: Path, count: int, rank: int, who: str, stride: int) -> dict[int, list[int]]:
    """How each rank ended, by the operation at which there was a kill."""
    command = [sys.executable, "-m", "tests.amr.kills.killed"]
    command += [str(folder), str(count), str(rank), who, str(stride)]
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
    ends = killed(folder, count, rank, who, stride)
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
        with Store(path) as store:
            left += len(leftovers(store))
        check_next_save(path, count, is_new[-1])
    assert is_new == sorted(is_new), "the new one was there, and then it was not"
    if who == "all" or rank == 0:  # else rank 0 cleans up after the dead, if it can
        assert left > 0, "no kill left anything behind: were they early enough?"
    assert False in is_new
    assert (True in is_new) == (rank == 0), "rank 0 alone commits"
    assert check_whole(folder / str(max(ends) + stride), count)


# Power cuts

LOGGED = tuple(name for name in OPERATIONS if name in vars(LoggingDisk))


class OneAtATime(LoggingDisk):
    """A disk whose log has the operations of all ranks in the order in which they were done."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._turn = threading.RLock()
        for name in LOGGED:
            setattr(self, name, self._in_turn(getattr(self, name)))

    def _in_turn(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def done(*args: Any, **options: Any) -> Any:
            with self._turn:
                return operation(*args, **options)

        return done


@pytest.mark.guarantee("G2")
def test_a_record_that_outlives_a_power_cut_has_all_that_it_refers_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_ranks(2, lambda comm: save(folder, comm, OLD))
    before = listed(folder)
    logging = OneAtATime(folder)
    monkeypatch.setattr(disk, "LOCAL", logging)
    on_ranks(2, lambda comm: save(folder, comm, NEW))
    after = listed(folder)
    with Store(folder) as store:
        run = store.run(RUN).hash
        records = {step: read_record(store.backend, run, step).head for step in (OLD, NEW)}

    found = set()
    for is_over, left in trees_after_power_cut(logging.log, before):
        for step, head in records.items():
            (record,) = (name for name in after if name.endswith(f"_step_{step:06d}.json"))
            is_there = record in left
            found.add((step, is_there))
            assert is_there or (step == NEW and not is_over)
            if is_there:
                assert left[record] == after[record]
                for file in head.files:
                    name = f"{record.rpartition('/')[0]}/{file.name}"
                    assert left.get(name) == after[name], f"{name}, of which step {step} is made"
    assert found == {(OLD, True), (NEW, False), (NEW, True)}
