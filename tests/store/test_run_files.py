"""A damaged or missing run file is said, and nothing is written or deleted on a guess."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from standfast import KeepLast, Run, Store
from standfast.errors import DamagedFile, FellBack, NotDeleted
from standfast.store.maintenance.doctor import examine
from standfast.store.retention.collection import plan
from standfast.store.schema import names
from standfast.store.schema.run_file import RunFile
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
    with pytest.warns(FellBack):
        return store.open_run(run.hash).file


@pytest.mark.guarantee("G10")
@damages
def test_a_run_is_read_from_its_config(store: Store, run: Run, damage: Damage) -> None:
    path, _ = _files(run)
    damage(path)
    assert _opened(store, run) == run.file
    with pytest.warns(FellBack):
        assert store.run("gpt", hp=HP, trial=[7, "x"]).file == run.file


def test_nothing_replaces_a_damaged_run_file_but_its_copy(store: Store, run: Run) -> None:
    path, _ = _files(run)
    _damage(path)
    before = path.read_bytes()
    for change in (lambda run: run.rename("other"), lambda run: run.retain(KeepLast(1))):
        with pytest.warns(FellBack), pytest.raises(DamagedFile):
            change(store.open_run(run.hash))
    assert path.read_bytes() == before
    assert store.index.steps(run.hash) == [1, 2, 3]


@pytest.mark.guarantee("G10")
@damages
def test_without_both_a_run_is_read_from_its_records(
    store: Store, run: Run, damage: Damage
) -> None:
    for path in _files(run):
        damage(path)
    found = _opened(store, run)
    assert (found.identity, found.hyperparameters, found.name) == (run.file.identity, None, None)
    with pytest.warns(FellBack):
        opened = store.open_run(run.hash)
    with pytest.warns(NotDeleted):
        opened.save(4, {"x": np.ones(1)})  # nothing is written for what is not known
    assert opened.load(4)["x"].size == 1
    assert _opened(store, run).name is None
    opened.close()


@damages
def test_doctor_restores_each_file_from_the_other(store: Store, run: Run, damage: Damage) -> None:
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
def test_doctor_writes_nothing_that_no_file_knows(store: Store, run: Run, damage: Damage) -> None:
    paths = _files(run)
    for path in paths:
        damage(path)
    before = [path.exists() and path.read_bytes() for path in paths]
    found = examine(store.backend, store.index)
    assert set(found.damaged) == {names.run_file(run.hash), names.config_file(run.hash)}
    assert [path.exists() and path.read_bytes() for path in paths] == before


def test_a_copy_of_a_run_without_its_file_says_so(store: Store, run: Run, tmp_path: Path) -> None:
    checkpoint, other = run.checkpoint(3), Store(tmp_path / "b")
    for path in _files(run):
        _damage(path)
    assert len(checkpoint.copy_to(other).left_out) == 1
    assert not other.backend.exists(names.run_file(run.hash))
    assert other.checkpoint(run.hash, 3).head == checkpoint.head


@pytest.mark.guarantee("G14")
@damages
def test_no_policy_deletes_without_the_run_file(store: Store, run: Run, damage: Damage) -> None:
    path, _ = _files(run)
    damage(path)
    other = again(store)
    with pytest.warns(FellBack):
        opened = other.open_run(run.hash)
    assert opened.retain().deleted == []
    assert all(each.keep and each.protected for each in opened.verdicts(KeepLast(1)))
    for retention in (None, run.retention):
        made = plan(other, retention=retention, to=0)
        assert not any(line.kind == "checkpoint" for line in made.lines)
        assert list(made.problems) == [run.hash]
    assert other.index.steps(run.hash) == [1, 2, 3]
    opened.delete(1)  # by name it may go
