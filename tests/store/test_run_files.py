"""Run files: nothing is written or deleted on a guess, and no change undoes another."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import standfast
from standfast import KeepLast, Run, Store, errors
from standfast.policies import Retention
from standfast.store.maintenance.doctor import examine
from standfast.store.retention.collection import plan
from standfast.store.schema import names
from standfast.store.schema.run_file import RunFile
from tests.kit.seams import Seams
from tests.kit.stores import before_lock
from tests.store.meanwhile import again

HP = {"lr": 0.1, "text": "é\x7f\u2028😀"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "a")


@pytest.fixture
def run(store: Store) -> Run:
    run = store.run("gpt", hp=HP, trial=[7, "x"])
    for step in (1, 2, 3):
        run.save(step, {"x": np.full(3, step)})
    run.retain(KeepLast(3))
    run.set_monitor("loss", "max")
    run.rename("gpt-2")
    run.close()
    return run


def _files(run: Run) -> tuple[Path, Path]:
    root = Path(run.store.url)
    return root / names.run_file(run.hash), root / names.config_file(run.hash)


def _damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2] + b"!\n")


Damage = Callable[[Path], Any]
DAMAGE: dict[str, Damage] = {"damaged": _damage, "missing": Path.unlink}
damages = pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)


def _opened(store: Store, run: Run) -> RunFile:
    with pytest.warns(errors.FellBack):
        return store.open_run(run.hash).file


@pytest.mark.guarantee("G10")
@damages
def test_a_run_is_read_from_its_config(store, run, damage):
    path, _ = _files(run)
    damage(path)
    assert _opened(store, run) == run.file
    with pytest.warns(errors.FellBack):
        assert store.run("gpt", hp=HP, trial=[7, "x"]).file == run.file


def test_nothing_replaces_a_damaged_run_file_but_its_copy(store, run):
    path, _ = _files(run)
    _damage(path)
    before = path.read_bytes()
    for change in (lambda run: run.rename("other"), lambda run: run.retain(KeepLast(1))):
        with pytest.warns(errors.FellBack), pytest.raises(errors.DamagedFile):
            change(store.open_run(run.hash))
    assert path.read_bytes() == before
    assert store.index.steps(run.hash) == [1, 2, 3]


@pytest.mark.guarantee("G10")
@damages
def test_without_both_a_run_is_read_from_its_records(store, run, damage):
    for path in _files(run):
        damage(path)
    found = _opened(store, run)
    assert (found.identity, found.hyperparameters, found.name) == (run.file.identity, None, None)
    with pytest.warns(errors.FellBack):
        opened = store.open_run(run.hash)
    with pytest.warns(errors.NotDeleted):
        opened.save(4, {"x": np.ones(1)})  # nothing is written for what is not known
    assert opened.load(4)["x"].size == 1
    assert _opened(store, run).name is None
    opened.close()


@damages
def test_doctor_restores_each_file_from_the_other(store, run, damage):
    path, config = _files(run)
    before = path.read_bytes()
    damage(path)
    found = examine(store.backend, store.index)
    assert (found.sound, list(found.restored)) == (True, [names.run_file(run.hash)])
    assert path.read_bytes() == before
    damage(config)
    found = examine(store.backend, store.index)
    assert (found.sound, list(found.restored)) == (True, [names.config_file(run.hash)])
    assert yaml.safe_load(config.read_bytes())["hyperparameters"] == HP
    path.unlink()
    assert _opened(store, run) == run.file


@damages
def test_doctor_writes_nothing_that_no_file_knows(store, run, damage):
    paths = _files(run)
    for path in paths:
        damage(path)
    before = [path.exists() and path.read_bytes() for path in paths]
    found = examine(store.backend, store.index)
    assert set(found.damaged) == {names.run_file(run.hash), names.config_file(run.hash)}
    assert [path.exists() and path.read_bytes() for path in paths] == before


def test_a_copy_of_a_run_without_its_file_says_so(store, run, tmp_path):
    checkpoint, other = run.checkpoint(3), Store(tmp_path / "b")
    for path in _files(run):
        _damage(path)
    assert len(checkpoint.copy_to(other).left_out) == 1
    assert not other.backend.exists(names.run_file(run.hash))
    assert other.checkpoint(run.hash, 3).head == checkpoint.head


@pytest.mark.guarantee("G14")
@damages
def test_no_policy_deletes_without_the_run_file(store, run, damage):
    path, _ = _files(run)
    damage(path)
    other = again(store)
    with pytest.warns(errors.FellBack):
        opened = other.open_run(run.hash)
    assert opened.retain().deleted == []
    assert all(each.keep and each.protected for each in opened.verdicts(KeepLast(1)))
    for retention in (None, run.retention):
        made = plan(other, retention=retention, to=0)
        assert not any(line.kind == "checkpoint" for line in made.lines)
        assert list(made.problems) == [run.hash]
    assert other.index.steps(run.hash) == [1, 2, 3]
    opened.delete(1)  # by name it may go


def _keeping(last: int) -> Retention:
    return Retention((KeepLast(last),))


KEEP = _keeping(3)


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
def test_no_change_undoes_one_at_the_same_moment(store, seams, change):
    with store.run("a", {"lr": 1}) as made:
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
def test_no_object_writes_what_others_changed(store, change, is_lost):
    run = store.run("a", {"lr": 1})
    run.save(1, {})
    run.close()
    again(store).open_run(run.hash).set_retention(KEEP)
    if is_lost:  # its copy, the config, is there
        Path(store.url, names.run_file(run.hash)).unlink()
    change(run)
    assert again(store).open_run(run.hash).retention == KEEP


def test_a_completed_run_file_keeps_retention(store, monkeypatch):
    run = store.run("a", {"lr": 1})
    run.save(1, {})
    other = again(store).open_run(run.hash)
    Path(store.url, names.run_file(run.hash)).unlink()
    before_lock(store, monkeypatch, run.hash, lambda: other.set_retention(KEEP))
    with pytest.warns(standfast.errors.FellBack):
        assert store.run("a", {"lr": 1}).retention == KEEP
    assert again(store).open_run(run.hash).retention == KEEP


def test_what_a_run_keeps_is_what_was_said_last_by_whichever_object(store):
    run, other = store.run("a"), again(store).run("a")
    for step in (1, 2, 3):
        run.save(step, {"x": np.full(1, step)})
    other.retain(KeepLast(1))
    assert run.retention == other.retention
    run.save(4, {"x": np.ones(1)})
    assert [each.step for each in run.checkpoints()] == [4]
    run.set_retention(KEEP)
    other.set_retention(_keeping(1))
    run.set_retention(KEEP)
    assert other.retention == KEEP


@pytest.mark.guarantee("G13")
def test_a_policy_loosened_in_time_counts(store, monkeypatch):
    run, other = store.run("a"), again(store).run("a")
    for step in (1, 2, 3):
        run.save(step, {"x": np.full(1, step)})
    loosen = lambda: other.set_retention(_keeping(2))  # noqa: E731
    before_lock(store, monkeypatch, run.hash, loosen, turn=2)
    run.retain(KeepLast(1))
    assert [each.step for each in run.checkpoints()] == [2, 3]


def test_the_best_is_by_the_metric_that_was_said_last(store):
    run, other = store.run("a"), again(store).run("a")
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0)):
        run.save(step, {"x": np.ones(1)}, metrics={"loss": loss})
    other.set_monitor("loss", "min")
    run.delete(1)
    assert run.checkpoint("best").step == 2
