"""What must hold of a store in which the save of a snapshot was killed."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from standfast import Store
from standfast.store.maintenance.doctor import examine
from tests.amr.snapshot.step_states import RUN, content, expected, load, save
from tests.kit.fault_states import leftovers
from tests.kit.rank_threads import on_ranks

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


def left_behind(path: Path) -> int:
    """How many files the kill has left that nobody needs."""
    with Store(path) as store:
        return len(leftovers(store))


def listed(path: Path) -> dict[str, bytes]:
    """All files of a store but what is made again at any time."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and ".standfast" not in file.parts
    }


def delete_old(path: Path) -> None:
    """Delete the old snapshot, which nobody may have in use."""
    with Store(path) as store:
        store.run(RUN).delete(OLD)
