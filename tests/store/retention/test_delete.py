"""Deleting frees what nothing else needs, and takes nothing that is needed or not ours."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Run, Store
from standfast.errors import FellBack, Protected, RefNotFound, RunBusy
from standfast.store.backends.local import LocalBackend
from standfast.store.retention.pins import pin, pinned, pinned_steps
from tests.kit.stores import (
    MIB,
    data_files,
    data_path,
    flip,
    folder,
    overwrite,
    random_bytes,
    record_path,
    same,
)
from tests.store.retention.states import steps

RUN = "0123456789abcdef01234567"


def state(*seeds: int) -> dict[str, Any]:
    return {f"x{i}": random_bytes(MIB, seed) for i, seed in enumerate(seeds)}


def saved(run: Run, *states: dict[str, Any]) -> Run:
    for step, each in enumerate(states, 1):
        run.save(step, each)
    return run


def test_deleting_frees_what_only_it_referred_to(run):
    saved(run, state(1, 2), state(3, 4))
    first = data_path(run, 1)
    run.delete(1)
    assert not first.exists()
    assert not record_path(run, 1).exists()
    assert sum(data_files(run).values()) < 2.1 * MIB
    assert steps(run) == [2]
    assert same(run.load(), state(3, 4))
    with pytest.raises(RefNotFound):
        run.load(1)
    assert run.save(1, state(5)).sequence == 3
    assert same(run.load(1), state(5)), "it can be saved again"


@pytest.mark.guarantee("G14")
def test_deleting_keeps_what_others_refer_to(run):
    saved(run, state(1, 2), state(1, 3), state(1, 4))
    run.delete(1, 2)
    assert same(run.load(3), state(1, 4))
    run.checkpoint(3).verify()
    assert len(data_files(run)) == 2


def test_deleting_the_latest_makes_the_one_before_it_the_latest(store, run):
    saved(run, {"step": 1}, {"step": 2})
    run.delete(2)
    assert run.load()["step"] == 1
    assert store.resolve("latest").step == 1
    assert run.save(3, {}).sequence == 3, "the number of a deleted one is not given again"


def test_what_is_not_there_and_the_last_are_not_deleted(run):
    run.save(1, state(1))
    with pytest.raises(Protected):
        run.delete(1)
    run.save(2, state(2))
    with pytest.raises(Protected):
        run.delete(1, 2)
    with pytest.raises(RefNotFound, match="7"):
        run.delete(1, 7)
    assert steps(run) == [1, 2]


@pytest.mark.guarantee("G13")
@pytest.mark.parametrize("damage", ["missing", "short", "record", "flipped"])
def test_the_last_intact_checkpoint_is_kept(run, damage):
    saved(run, state(1), state(2))
    path = record_path(run, 2) if damage == "record" else data_path(run, 2)
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        flip(path)
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Protected):
        run.delete(1)
    run.delete(2)
    assert same(run.load(), state(1))


@pytest.mark.guarantee("G14")
def test_as_long_as_a_record_cannot_be_read_no_data_is_deleted(run):
    saved(run, state(1, 2), state(1, 3), state(4, 5))
    good = record_path(run, 2).read_bytes()
    overwrite(record_path(run, 2), b"garbage" + good)
    run._store.index.rebuild()
    run.delete(1)
    record_path(run, 2).write_bytes(good)
    run._store.index.rebuild()
    assert same(run.load(2), state(1, 3))


def test_other_runs_are_not_touched(store, run):
    other = saved(store.run("b"), state(1), state(2))
    saved(run, state(1), state(2)).delete(1)
    assert same(other.load(1), state(1))
    run.delete_all()
    assert same(other.load(1), state(1))
    assert same(other.load(2), state(2))


def test_a_run_is_deleted_with_all_that_is_ours_and_can_be_saved_into_again(store, run):
    saved(run, state(1)).checkpoint(1).note("text")
    run.delete_all()
    assert not folder(run).exists()
    assert store.runs() == []
    with pytest.raises(RefNotFound):
        run.load()
    assert run.hash not in (Path(store.url) / "manifest.yaml").read_text()
    run.save(1, state(2))
    assert same(store.run("a").load(), state(2))


@pytest.mark.guarantee("G14")
def test_foreign_files_stay(run):
    run.save(1, state(1))
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
    run.save(2, state(2))
    run.delete(1)
    run.delete_all()
    left = {path.name: path.read_bytes() for path in folder(run).iterdir() if path.is_file()}
    assert left == foreign
    assert (folder(run) / "plots").is_dir()


def test_a_run_that_another_writes_into_is_not_deleted(store, run):
    run.save(1, state(1))
    run.close()
    other = store.backend.lock(run.hash)
    assert other is not None
    with pytest.raises(Protected):
        run.delete_all()
    with pytest.raises(RunBusy):
        run.save(2, {})
    with pytest.raises(Protected):
        run.delete_all()
    assert same(run.load(), state(1))
    other.release()
    run.delete_all()
    assert not folder(run).exists()


@pytest.mark.guarantee("G8")
def test_what_was_loaded_before_stays_readable(run):
    loaded = saved(run, state(1), state(2)).load(1)
    run.delete(1)
    assert same(loaded, state(1))


def test_a_load_of_what_is_deleted_meanwhile_takes_another(run, seams):
    path = record_path(saved(run, {"step": 1}, {"step": 2}), 2)

    def late(read: Callable[..., Any], name: str, *given: Any) -> Any:
        if name.endswith(path.name) and path.exists():
            Store(Path(run._store.url).parent).open_run(run.hash).delete(2)
        return read(name, *given)

    seams.backend(run._store.backend, read=late, open=late)
    assert run.load()["step"] == 1
    assert not path.exists()


@pytest.mark.guarantee("G16")
def test_what_a_crash_left_is_deleted_with_the_next_writer(store, run):
    run.save(1, state(1))
    run.close()
    orphan = folder(run) / f"{run.hash}_step_000009.0123abcd.model.safetensors"
    aside = folder(run) / ".0123abcd.standfast"
    for path in (orphan, aside):
        path.write_bytes(b"x" * 1000)
    Store(Path(store.url).parent).run("a").save(2, {})
    assert not orphan.exists()
    assert not aside.exists()
    assert same(run.load(1), state(1))


def test_as_long_as_a_record_cannot_be_read_what_a_crash_left_stays(run):
    saved(run, state(1), state(2)).close()
    overwrite(record_path(run, 1), b"garbage")
    run._store.index.rebuild()
    kept = data_path(run, 1)
    run.save(3, {"n": np.ones(1)})
    assert kept.exists(), "the record that cannot be read may refer to it"
    record_path(run, 3).unlink()
    with pytest.warns(FellBack):
        assert same(run.load(), state(2))


def test_files_that_a_tool_has_turned_into_links_are_read_and_not_swept(store, run, tmp_path):
    saved(run, state(1), state(2)).close()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for path in [*folder(run).glob("*step_000001*")]:
        path.rename(elsewhere / path.name)
        path.symlink_to(elsewhere / path.name)
    assert same(run.load(1), state(1))
    moved = record_path(run, 1).readlink()
    moved.rename(tmp_path / "lost")  # the link leads nowhere for a while
    store.index.rebuild()
    with pytest.warns(FellBack, match="step_000001"):
        assert same(run.load(), state(2))
    run.save(3, state(3))
    (tmp_path / "lost").rename(moved)
    store.index.rebuild()
    assert same(run.load(1), state(1))


# Pins hold while a process lives, and those who look at them keep none from pinning


def test_a_pin_is_seen_until_it_is_released(tmp_path):
    backend = LocalBackend(tmp_path)
    with pinned(backend, RUN, 100):
        second = pin(backend, RUN, 100)
        assert second is not None
        assert pinned_steps(backend, RUN) == {100}
    assert pinned_steps(backend, RUN) == {100}
    child = os.fork()
    if child == 0:
        os._exit(0 if pinned_steps(backend, RUN) == {100} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert pinned_steps(backend, RUN) == {100}, "the end of a child releases nothing"
    second.release()
    assert pinned_steps(backend, RUN) == set()
    assert list((tmp_path / ".standfast" / "locks").iterdir()) == []


def test_those_who_look_do_not_keep_others_from_pinning(tmp_path):
    backend = LocalBackend(tmp_path)
    child = os.fork()  # another process, to which the locks are those of others
    if child == 0:
        while os.getppid() != 1 and not (tmp_path / "over").exists():
            pinned_steps(LocalBackend(tmp_path), RUN)
        os._exit(0)
    try:
        for step in range(1000):
            lock = pin(backend, RUN, step)
            assert lock is not None
            lock.release()
    finally:
        (tmp_path / "over").touch()
        os.waitpid(child, 0)


def test_names_that_are_not_those_of_pins_are_left_out(tmp_path):
    backend = LocalBackend(tmp_path)
    odd = [backend.lock(f"{RUN}.pin.{text}", passing=True) for text in ("x.1", "9" * 20, "-1.0")]
    assert pinned_steps(backend, RUN) == set()
    for lock in odd:
        assert lock is not None
        lock.release()
