"""SIGKILL of one rank or of all at every operation, and power cuts: the old snapshot or the new."""

import functools
import itertools
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from standfast import Store
from standfast.store.load.reading import read_record
from standfast.store.maintenance.doctor import examine
from tests import ROOT
from tests.amr.kills.forked_ranks import KILLED, LOST, SAVED
from tests.amr.snapshot.step_states import RUN, content, expected, load, save
from tests.kit.disk_faults import OPERATIONS
from tests.kit.fault_states import UnsyncedDisk, leftovers, make_small
from tests.kit.power import LoggingDisk, trees_after_power_cut
from tests.kit.rank_threads import on_ranks
from tests.kit.seams import Seams

MEMORY = Path("/dev/shm")
OLD, NEW = 1, 2
"""The step that was saved before, and the one whose save was killed."""
_expected = functools.cache(expected)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is such a thing: the loops here would wear out a disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def _quick(seams: Seams, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the killed programs do too; the power stays on."""
    make_small(monkeypatch)
    seams.disk(UnsyncedDisk())
    seams.no_manifest()


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
    for step in steps:
        assert contents(path, count, step) == _expected(count, step)
    return steps[-1] == NEW


def contents(path: Path, count: int, ref: int | str) -> list[Any]:
    """What each of as many ranks gets back."""
    return [content(each) for each in on_ranks(count, lambda comm: load(path, comm, ref))]


def check_next_save(path: Path, count: int, is_new: bool) -> None:
    """The step that was being saved can be, and no file stays that no record refers to."""
    on_ranks(count, lambda comm: save(path, comm, NEW, replace=is_new))
    assert contents(path, count, "latest") == _expected(count, NEW)
    with Store(path) as store:
        assert leftovers(store) == []
        found = examine(store.backend, store.index)  # every byte of both
        assert found.sound
        assert found.checkpoints == len((OLD, NEW))
        assert (found.orphans, found.foreign, found.restored) == ({}, [], {})


CASES = [
    *((2, 0, "itself", 20), (2, 1, "all", 20)),
    *(
        pytest.param(count, rank, who, 1, marks=pytest.mark.long)
        for count in (1, 2, 3, 4)
        for who in ("itself", "all")
        for rank in {0, min(1, count - 1), count - 1}
        if (count, who) != (1, "all")
    ),
]
"""How many ranks there are, of which of them each how-many-th operation, and who is killed."""


@pytest.mark.parametrize(("count", "rank", "who", "stride"), CASES)
def test_a_snapshot_killed_at_any_operation_leaves_the_old_one_or_the_new_one(
    count, rank, who, stride, folder
):
    command = [sys.executable, "-m", "tests.amr.kills.killed"]
    command += [str(folder), str(count), str(rank), who, str(stride)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    ends: list[list[int]] = json.loads(done.stdout)
    assert ends.pop() == [SAVED] * count, "without a kill, all go well"
    is_new: list[bool] = []
    left = 0
    operations = range(1, 1 + stride * len(ends), stride)
    for at, codes in zip(operations, ends, strict=True):
        path, others = folder / str(at), {*codes[:rank], *codes[rank + 1 :]}
        is_new.append(check_whole(path, count))
        assert codes[rank] == KILLED
        if who == "all":  # but for those who were done
            assert others <= ({KILLED, SAVED} if is_new[-1] else {KILLED}), (at, codes)
        elif others:
            assert others == {SAVED if is_new[-1] else LOST}, (at, codes)
        with Store(path) as store:
            left += len(leftovers(store))
        check_next_save(path, count, is_new[-1])
    assert is_new == sorted(is_new), "the new one was there, and then it was not"
    assert False in is_new
    if stride == 1:
        # Else rank 0 cleans up after the dead, if it can.
        assert left > 0 or (who == "itself" and rank > 0), "no kill left anything behind"
        assert (True in is_new) == (rank == 0), "rank 0 alone commits"
    assert check_whole(folder / str(operations[-1] + stride), count)


# Power cuts

LOGGED = tuple(name for name in OPERATIONS if name in vars(LoggingDisk))


@pytest.mark.guarantee("G2")
def test_a_record_that_outlives_a_power_cut_has_all_that_it_refers_to(folder, seams):
    on_ranks(2, lambda comm: save(folder, comm, OLD))
    before, turn = listed(folder), threading.RLock()

    def in_turn(operation: Any, *args: Any, **options: Any) -> Any:
        with turn:  # the log has the operations of all ranks in the order in which they were done
            return operation(*args, **options)

    logging = seams.disk(LoggingDisk(folder), **dict.fromkeys(LOGGED, in_turn))
    on_ranks(2, lambda comm: save(folder, comm, NEW))
    after = listed(folder)
    with Store(folder) as store:
        run = store.run(RUN).hash
        records = {step: read_record(store.backend, run, step).head for step in (OLD, NEW)}

    found = set()
    for (is_over, left), (step, head) in itertools.product(
        trees_after_power_cut(logging.log, before), records.items()
    ):
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


def listed(path: Path) -> dict[str, bytes]:
    """All files of a store but what is made again at any time."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and ".standfast" not in file.parts
    }
