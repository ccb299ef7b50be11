"""Deleting frees what nothing else needs, and takes nothing that is needed or not ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Run, Store
from standfast.errors import FellBack, Protected, RefNotFound, RunBusy
from tests.kit.stores import (
    MIB,
    data_files,
    data_path,
    flip,
    folder,
    random_bytes,
    record_path,
    same,
)


def _state(*seeds: int) -> dict[str, Any]:
    return {f"x{i}": random_bytes(MIB, seed) for i, seed in enumerate(seeds)}


def _steps(run: Run) -> list[int]:
    return [each.step for each in run.checkpoints()]


def test_deleting_frees_what_only_it_referred_to(run: Run) -> None:
    run.save(1, _state(1, 2))
    run.save(2, _state(3, 4))
    first = data_path(run, 1)
    run.delete(1)
    assert not first.exists()
    assert not record_path(run, 1).exists()
    assert sum(data_files(run).values()) < 2.1 * MIB
    assert _steps(run) == [2]
    assert same(run.load(), _state(3, 4))
    with pytest.raises(RefNotFound):
        run.load(1)


@pytest.mark.guarantee("G14")
def test_deleting_keeps_what_others_refer_to(run: Run) -> None:
    run.save(1, _state(1, 2))
    run.save(2, _state(1, 3))
    run.save(3, _state(1, 4))
    run.delete(1, 2)
    assert same(run.load(3), _state(1, 4))
    run.checkpoint(3).verify()
    assert len(data_files(run)) == 2


def test_a_deleted_step_can_be_saved_again(run: Run) -> None:
    run.save(1, _state(1))
    run.save(2, _state(2))
    run.delete(1)
    assert run.save(1, _state(5)).sequence == 3
    assert same(run.load(1), _state(5))


def test_deleting_the_latest_makes_the_one_before_it_the_latest(store: Store, run: Run) -> None:
    run.save(1, {"step": 1})
    run.save(2, {"step": 2})
    run.delete(2)
    assert run.load()["step"] == 1
    assert store.resolve("latest").step == 1
    assert run.save(3, {}).sequence == 3, "the number of a deleted one is not given again"


def test_what_is_not_there_is_not_deleted(run: Run) -> None:
    run.save(1, _state(1))
    run.save(2, _state(2))
    with pytest.raises(RefNotFound, match="step 7"):
        run.delete(1, 7)
    assert _steps(run) == [1, 2]


def test_the_last_checkpoint_is_kept(run: Run) -> None:
    run.save(1, _state(1))
    with pytest.raises(Protected, match="no intact checkpoint left"):
        run.delete(1)
    run.save(2, _state(2))
    with pytest.raises(Protected):
        run.delete(1, 2)
    assert _steps(run) == [1, 2]


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("damage", ["missing", "short", "record"])
def test_the_last_intact_checkpoint_is_kept(run: Run, damage: str) -> None:
    run.save(1, _state(1))
    run.save(2, _state(2))
    path = record_path(run, 2) if damage == "record" else data_path(run, 2)
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Protected, match="no intact"):
        run.delete(1)
    run.delete(2)
    assert same(run.load(), _state(1))


def test_a_checkpoint_with_a_flipped_bit_does_not_count_as_intact(run: Run) -> None:
    run.save(1, _state(1))
    run.save(2, _state(2))
    flip(data_path(run, 2))
    with pytest.raises(Protected):
        run.delete(1)


@pytest.mark.guarantee("G14")
def test_as_long_as_a_record_cannot_be_read_no_data_is_deleted(run: Run) -> None:
    run.save(1, _state(1, 2))
    run.save(2, _state(1, 3))
    run.save(3, _state(4, 5))
    good = record_path(run, 2).read_bytes()
    record_path(run, 2).unlink()
    record_path(run, 2).write_bytes(b"garbage" + good)
    run._store.index.rebuild()
    run.delete(1)
    record_path(run, 2).write_bytes(good)
    run._store.index.rebuild()
    assert same(run.load(2), _state(1, 3))


def test_other_runs_are_not_touched(store: Store, run: Run) -> None:
    other = store.run("b")
    for each in (run, other):
        each.save(1, _state(1))
        each.save(2, _state(2))
    run.delete(1)
    assert same(other.load(1), _state(1))
    run.delete_all()
    assert same(other.load(1), _state(1))
    assert same(other.load(2), _state(2))


def test_a_run_is_deleted_with_all_that_is_ours(store: Store, run: Run) -> None:
    run.save(1, _state(1))
    run.checkpoint(1).note("text")
    run.delete_all()
    assert not folder(run).exists()
    assert store.runs() == []
    with pytest.raises(RefNotFound):
        run.load()
    assert run.hash not in (Path(store.url) / "manifest.yaml").read_text()


@pytest.mark.guarantee("G14")
def test_foreign_files_stay(run: Run) -> None:
    run.save(1, _state(1))
    foreign = {
        "notes.txt": b"mine",
        f"{run.hash}_architecture.yaml": b"{}",
        f"{run.hash}_step_000001.pt": b"x",
        f"{run.hash}_step_000001.json.bak": b"x",
        ".hidden": b"x",
    }
    for name, data in foreign.items():
        (folder(run) / name).write_bytes(data)
    (folder(run) / "plots").mkdir()
    run.save(2, _state(2))
    run.delete(1)
    run.delete_all()
    left = {path.name: path.read_bytes() for path in folder(run).iterdir() if path.is_file()}
    assert left == foreign
    assert (folder(run) / "plots").is_dir()


def test_a_run_that_another_writes_into_is_not_deleted(store: Store, run: Run) -> None:
    run.save(1, _state(1))
    run.close()
    other = store.backend.lock(run.hash)
    assert other is not None
    with pytest.raises(Protected, match="writes into it"):
        run.delete_all()
    with pytest.raises(RunBusy):
        run.save(2, {})
    with pytest.raises(Protected, match="writes into it"):
        run.delete_all()
    assert same(run.load(), _state(1))
    other.release()
    run.delete_all()
    assert not folder(run).exists()


def test_a_deleted_run_can_be_saved_into_again(store: Store, run: Run) -> None:
    run.save(1, _state(1))
    run.delete_all()
    run.save(1, _state(2))
    assert same(store.run("a").load(), _state(2))


@pytest.mark.guarantee("G8")
def test_what_was_opened_before_stays_readable(run: Run) -> None:
    run.save(1, _state(1))
    run.save(2, _state(2))
    loaded = run.load(1)
    run.delete(1)
    assert same(loaded, _state(1))


def test_a_load_of_what_is_deleted_meanwhile_takes_another(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look into the index and the look into the folder, the latest is deleted."""
    run.save(1, {"step": 1})
    run.save(2, {"step": 2})
    refresh = run._store.index.refresh

    def late() -> None:
        refresh()
        monkeypatch.undo()
        Store(Path(run._store.url).parent).open_run(run.hash).delete(2)

    monkeypatch.setattr(run._store.index, "refresh", late)
    assert run.load()["step"] == 1


@pytest.mark.guarantee("G16")
def test_what_a_crash_left_is_deleted_with_the_next_writer(store: Store, run: Run) -> None:
    run.save(1, _state(1))
    run.close()
    orphan = folder(run) / f"{run.hash}_step_000009.0123abcd.model.safetensors"
    aside = folder(run) / ".0123abcd.standfast"
    for path in (orphan, aside):
        path.write_bytes(b"x" * 1000)
    Store(Path(store.url).parent).run("a").save(2, {})
    assert not orphan.exists()
    assert not aside.exists()
    assert same(run.load(1), _state(1))


def test_as_long_as_a_record_cannot_be_read_what_a_crash_left_stays(run: Run) -> None:
    run.save(1, _state(1))
    run.save(2, _state(2))
    run.close()
    record_path(run, 1).unlink()
    record_path(run, 1).write_bytes(b"garbage")
    run._store.index.rebuild()
    kept = data_path(run, 1)
    run.save(3, {"n": np.ones(1)})
    assert kept.exists(), "the record that cannot be read may refer to it"
    record_path(run, 3).unlink()
    with pytest.warns(FellBack):
        assert same(run.load(), _state(2))


def test_files_that_a_tool_has_turned_into_links_are_read_and_not_swept(
    store: Store, run: Run, tmp_path: Path
) -> None:
    run.save(1, _state(1))
    run.save(2, _state(2))
    run.close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in [*folder(run).glob("*step_000001*")]:
        path.rename(elsewhere / path.name)
        path.symlink_to(elsewhere / path.name)
    assert same(run.load(1), _state(1))
    moved = record_path(run, 1).readlink()
    moved.rename(tmp_path / "lost")  # the link leads nowhere for a while
    store.index.rebuild()
    with pytest.warns(FellBack, match="step_000001"):
        assert same(run.load(), _state(2))
    run.save(3, _state(3))
    (tmp_path / "lost").rename(moved)
    store.index.rebuild()
    assert same(run.load(1), _state(1))
