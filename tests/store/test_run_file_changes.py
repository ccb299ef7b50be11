"""What a run file says is changed by several objects and processes, and none undoes another."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import KeepLast, Store
from standfast.store.maintenance.doctor import examine
from standfast.store.schema import names
from tests.kit.seams import Seams
from tests.kit.stores import before_lock
from tests.store.meanwhile import again

HP = {"lr": 1}
KEEP = standfast.policies.retention(KeepLast(3), None, None, "min")


def _between(seams: Seams, act: Any) -> threading.Thread:
    """Have another thread act while the next run file to be replaced is about to be."""
    other = threading.Thread(target=act)

    def late(replace: Any, name: str, data: bytes) -> None:
        if name.endswith("_run.json") and other.ident is None:
            other.start()
            backend = replace.__self__
            lock = backend.lock(f"{name.rpartition('/')[2].removesuffix('_run.json')}.change")
            if lock is not None:  # nothing keeps the other one out
                lock.release()
                other.join()
        replace(name, data)

    seams.backend(replace=late)
    return other


def _restore(store: Store, run: str) -> None:
    store.backend.delete([names.run_file(run)])
    examine(store.backend, store.index)


@pytest.mark.parametrize(
    "change",
    [
        _restore,
        lambda store, run: store.open_run(run).rename("b"),
        lambda store, run: store.open_run(run).describe({"lr": 1, "max_steps": 5}),
        lambda store, run: store.open_run(run).set_monitor("loss", "min"),
    ],
    ids=["doctor", "rename", "describe", "monitor"],
)
def test_no_change_undoes_one_at_the_same_moment(store: Store, seams: Seams, change: Any) -> None:
    with store.run("a", HP) as made:
        made.save(1, {"x": np.ones(1)})
    run = made.hash
    _restore(store, run)
    opened = again(store).open_run(run)
    thread = _between(seams, lambda: opened.set_retention(KEEP))
    change(store, run)
    thread.join()
    assert again(store).open_run(run).retention == KEEP


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.parametrize(
    "change", [lambda run: run.rename("b"), lambda run: run.save(2, {})], ids=["rename", "save"]
)
def test_no_object_writes_what_others_changed(store: Store, change: Any, is_lost: bool) -> None:
    run = store.run("a", HP)
    run.save(1, {})
    run.close()
    again(store).open_run(run.hash).set_retention(KEEP)
    if is_lost:  # its copy, the config, is there
        Path(store.url, names.run_file(run.hash)).unlink()
    change(run)
    assert again(store).open_run(run.hash).retention == KEEP


def test_a_completed_run_file_keeps_retention(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.run("a", HP)
    run.save(1, {})
    other = again(store).open_run(run.hash)
    Path(store.url, names.run_file(run.hash)).unlink()
    before_lock(store, monkeypatch, run.hash, lambda: other.set_retention(KEEP))
    with pytest.warns(standfast.errors.FellBack):
        assert store.run("a", HP).retention == KEEP
    assert again(store).open_run(run.hash).retention == KEEP


def test_what_a_run_keeps_is_what_was_said_last_by_whichever_object(store: Store) -> None:
    run, other = store.run("a"), again(store).run("a")
    for step in (1, 2, 3):
        run.save(step, {"x": np.full(1, step)})
    other.retain(KeepLast(1))
    assert run.retention == other.retention
    run.save(4, {"x": np.ones(1)})
    assert [each.step for each in run.checkpoints()] == [4]
    run.set_retention(KEEP)
    other.set_retention(standfast.policies.retention(KeepLast(1), None, None, "min"))
    run.set_retention(KEEP)
    assert other.retention == KEEP


@pytest.mark.guarantee("G13")
def test_a_policy_loosened_in_time_counts(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run, other = store.run("a"), again(store).run("a")
    for step in (1, 2, 3):
        run.save(step, {"x": np.full(1, step)})
    looser = standfast.policies.retention(KeepLast(2), None, None, "min")
    before_lock(store, monkeypatch, run.hash, lambda: other.set_retention(looser), turn=2)
    run.retain(KeepLast(1))
    assert [each.step for each in run.checkpoints()] == [2, 3]


def test_the_best_is_by_the_metric_that_was_said_last(store: Store) -> None:
    run, other = store.run("a"), again(store).run("a")
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
        run.save(step, {"x": np.ones(1)}, metrics={"loss": loss})
    other.set_monitor("loss", "min")
    run.delete(1)
    assert run.checkpoint("best").step == 2
