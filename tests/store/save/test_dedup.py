"""What the store holds already is referred to, not written again, and no run depends on another."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import Run, Store
from standfast.files.digests import CHUNK
from standfast.store.backends.local import LocalBackend
from standfast.store.save.known import SMALL
from tests.kit.stores import (
    MIB,
    bytes_written,
    chunks,
    data_files,
    data_path,
    folder,
    part_by_hand,
    random_bytes,
    record_path,
    same,
)

HEADER = 8192
"""More than the header of any data file here takes."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def run(store: Store) -> Run:
    return store.run("first")


def _save(run: Run, step: int, x: Any) -> int:
    """The bytes of data files that a save of one tensor wrote."""
    return bytes_written(run, lambda: run.save(step, {"x": x}))


def _files(run: Run, step: int) -> set[str]:
    """The data files that a step refers to."""
    return {file.name for file in run.checkpoint(step).head.files}


# Within a run


@pytest.mark.guarantee("G18")
def test_an_unchanged_state_writes_no_data(run: Run) -> None:
    _save(run, 1, chunks(1, 2))
    assert _save(run, 2, chunks(1, 2)) == 0
    assert same(run.load(2), {"x": chunks(1, 2)})


def test_a_changed_byte_costs_its_chunk_and_a_header(run: Run) -> None:
    x = chunks(*range(6))
    _save(run, 1, x)
    x[3 * CHUNK + 5] ^= 1
    assert _save(run, 2, x) <= 1.05 * CHUNK + HEADER
    assert same(run.load(2), {"x": x})
    assert run.checkpoint(2).verify().nbytes == x.nbytes


def test_one_percent_changed_costs_about_that(run: Run) -> None:
    state = {"model": {f"w{i}": random_bytes(512 << 10, i) for i in range(100)}}
    run.save(1, state)
    state["model"]["w7"] += 1
    written = bytes_written(run, lambda: run.save(2, state))
    changed = 512 << 10
    with standfast.open(data_path(run, 2)) as file:
        assert list(file) == ["w7"]
    header = written - changed
    assert header < 64 << 10, "the room of a header for all tensors"
    assert written <= 1.05 * changed + header
    assert same(run.load(2), state)


def test_a_part_that_did_not_change_has_no_file(run: Run) -> None:
    state = {"frozen": {"w": random_bytes(MIB, 1)}, "trained": {"w": random_bytes(MIB, 2)}}
    run.save(1, state)
    state["trained"]["w"] += 1
    run.save(2, state)
    assert data_path(run, 2).name.split(".")[2] == "trained"


def test_chunks_are_found_under_any_name_dtype_and_place(run: Run) -> None:
    x = chunks(1, 2)
    _save(run, 1, x)
    moved = {"other": {"name": x.view(np.float32)}, "half": x[CHUNK:].copy().reshape(2, -1)}
    assert bytes_written(run, lambda: run.save(2, moved)) == 0
    assert same(run.load(2), moved)


def test_equal_chunks_of_one_save_are_written_once(run: Run) -> None:
    x = random_bytes(MIB)
    written = bytes_written(run, lambda: run.save(1, {"a": x, "b": x.copy(), "c": {"d": x.copy()}}))
    assert written <= MIB + HEADER
    assert len(data_files(run)) == 1


def test_what_came_back_to_an_earlier_value_is_found(run: Run) -> None:
    _save(run, 1, random_bytes(MIB, 1))
    assert _save(run, 2, random_bytes(MIB, 2)) > MIB
    assert _save(run, 3, random_bytes(MIB, 1)) == 0
    assert same(run.load(3), {"x": random_bytes(MIB, 1)})


@pytest.mark.parametrize(("size", "again"), [(SMALL - 1, True), (SMALL, False)])
def test_small_tensors_are_always_written(run: Run, size: int, again: bool) -> None:
    assert SMALL == 64 << 10
    _save(run, 1, random_bytes(size))
    assert (_save(run, 2, random_bytes(size)) > size) is again


def test_a_file_that_leaves_something_out_says_so_and_verifies(run: Run) -> None:
    state = {"model": {"a": random_bytes(MIB, 1), "b": chunks(2, 3, 4), "c": np.ones(3)}}
    run.save(1, state)
    state["model"]["b"][CHUNK] ^= 1
    run.save(2, state)
    path = data_path(run, 2, "model")
    assert standfast.verify(path).tensors == 2
    with standfast.open(path) as file:
        assert file.metadata["left_out"].startswith("2 of 3 tensors are not in this file")
        assert f"standfast export {run.hash}@2" in file.metadata["left_out"]
        assert sorted(file) == [f"b[{CHUNK}:{2 * CHUNK}]", "c"]
        stretch = file[f"b[{CHUNK}:{2 * CHUNK}]"]
        assert same(stretch, state["model"]["b"][CHUNK : 2 * CHUNK])
    with standfast.open(data_path(run, 1, "model")) as file:
        assert "left_out" not in file.metadata


def test_neighbouring_new_chunks_are_one_stretch(run: Run) -> None:
    _save(run, 1, chunks(1, 2, 3, 4))
    x = np.concatenate([chunks(1, 8, 9, 4), random_bytes(1000)])
    _save(run, 2, x)
    with standfast.open(data_path(run, 2)) as file:
        assert sorted(file) == [f"x[{CHUNK}:{3 * CHUNK}]", f"x[{4 * CHUNK}:{4 * CHUNK + 1000}]"]
    assert same(run.load(2), {"x": x})


def test_a_file_that_vanished_is_not_referred_to(run: Run) -> None:
    _save(run, 1, random_bytes(MIB))
    data_path(run, 1).unlink()
    assert _save(run, 2, random_bytes(MIB)) > MIB
    assert same(run.load(2), {"x": random_bytes(MIB)})
    assert data_path(run, 1 + 1).name in _files(run, 2)


def test_a_file_of_another_size_is_not_referred_to(run: Run) -> None:
    _save(run, 1, random_bytes(MIB))
    path = data_path(run, 1)
    path.write_bytes(path.read_bytes()[:-1])
    assert _save(run, 2, random_bytes(MIB)) > MIB
    run.checkpoint(2).verify()


def test_a_damaged_parent_is_no_obstacle(run: Run) -> None:
    _save(run, 1, random_bytes(MIB))
    record_path(run, 1).write_bytes(b"garbage")
    run._store.index.rebuild()
    run.close()
    _save(run, 2, random_bytes(MIB))
    assert same(run.load(2), {"x": random_bytes(MIB)})


# Space comes back


def test_half_dead_files_are_given_up_and_their_space_comes_back(run: Run) -> None:
    def state(*seeds: int) -> dict[str, Any]:
        return {f"x{i}": random_bytes(MIB, seed) for i, seed in enumerate(seeds)}

    run.save(1, state(1, 2, 3, 4))
    first = data_path(run, 1).name
    run.save(2, state(1, 12, 13, 14))
    assert first in _files(run, 2), "step 1 uses all of it"
    run.delete(1)
    assert first in data_files(run), "step 2 uses a quarter of it"
    run.save(3, state(1, 12, 13, 15))
    assert first not in _files(run, 3), "so little of it that it is given up"
    run.delete(2)
    assert first not in data_files(run)
    assert same(run.load(3), state(1, 12, 13, 15))
    assert sum(data_files(run).values()) < 8 * MIB


def test_a_file_half_of_which_is_used_is_kept(run: Run) -> None:
    run.save(1, {"a": random_bytes(MIB, 1), "b": random_bytes(MIB, 2)})
    run.save(2, {"a": random_bytes(MIB, 1), "b": random_bytes(MIB, 3)})
    run.delete(1)
    written = bytes_written(
        run, lambda: run.save(3, {"a": random_bytes(MIB, 1), "b": random_bytes(MIB, 4)})
    )
    assert written < 1.1 * MIB


def test_space_does_not_grow_with_the_number_of_checkpoints(run: Run) -> None:
    for step in range(12):
        run.save(step, {f"x{i}": random_bytes(256 << 10, i + step) for i in range(8)})
        if step:
            run.delete(step - 1)
    assert sum(data_files(run).values()) < 3 * (8 * 256 << 10)
    assert same(run.load()["x0"], random_bytes(256 << 10, 11))


# Across runs


@pytest.mark.guarantee("G18")
def test_another_runs_chunks_are_linked_in(store: Store, run: Run) -> None:
    _save(run, 1, chunks(1, 2))
    other = store.run("second")
    other.save(1, {"x": chunks(1, 2)})
    (name,) = data_files(other)
    assert name == data_path(run, 1).name
    assert (folder(other) / name).stat().st_nlink == 2
    assert same(other.load(1), {"x": chunks(1, 2)})


def test_a_third_run_links_the_same_file(store: Store, run: Run) -> None:
    _save(run, 1, random_bytes(MIB))
    for name in ("second", "third"):
        store.run(name).save(1, {"x": random_bytes(MIB)})
    assert data_path(run, 1).stat().st_nlink == 3


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("how", ["by hand", "delete_all", "moved"])
def test_a_run_outlives_the_one_that_it_shares_with(
    store: Store, run: Run, how: str, tmp_path: Path
) -> None:
    _save(run, 1, random_bytes(MIB))
    other = store.run("second")
    other.save(1, {"x": random_bytes(MIB)})
    if how == "by hand":
        shutil.rmtree(folder(run))
    elif how == "delete_all":
        run.delete_all()
    else:
        target = tmp_path / "elsewhere" / "checkpoints" / "models" / other.hash
        shutil.copytree(folder(other), target)
        shutil.rmtree(tmp_path / "store")
        other = Store(tmp_path / "elsewhere").find_run("second")
    assert same(other.load(1), {"x": random_bytes(MIB)})
    other.checkpoint(1).verify()
    assert bytes_written(other, lambda: other.save(2, {"x": random_bytes(MIB)})) == 0
    assert same(other.load(2), {"x": random_bytes(MIB)})


def test_a_run_that_was_deleted_is_not_referred_to(store: Store, run: Run) -> None:
    _save(run, 1, random_bytes(MIB))
    shutil.rmtree(folder(run))
    other = store.run("second")
    other.save(1, {"x": random_bytes(MIB)})
    assert list(data_files(other)) == [data_path(other, 1).name]
    assert same(other.load(1), {"x": random_bytes(MIB)})


def test_where_links_are_impossible_dedup_stays_within_the_run(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalBackend, "link", lambda *_: False)
    _save(run, 1, random_bytes(MIB))
    other = store.run("second")
    other.save(1, {"x": random_bytes(MIB)})
    assert list(data_files(other)) == [data_path(other, 1).name]
    assert bytes_written(other, lambda: other.save(2, {"x": random_bytes(MIB)})) == 0
    assert same(other.load(2), {"x": random_bytes(MIB)})


def test_links_that_were_made_in_vain_are_removed(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _save(run, 1, random_bytes(MIB))
    other = store.run("second")

    def create(*_: object) -> None:
        raise RuntimeError("the record cannot be written")

    with monkeypatch.context() as patched:
        patched.setattr(LocalBackend, "create", create)
        with pytest.raises(RuntimeError, match="the record"):
            other.save(1, {"x": random_bytes(MIB), "y": random_bytes(MIB, 2)})
    assert data_files(other) == {}
    assert data_path(run, 1).stat().st_nlink == 1
    other.save(1, {"x": random_bytes(MIB)})


def test_a_link_that_was_parted_by_hand_still_serves(store: Store, run: Run) -> None:
    _save(run, 1, random_bytes(MIB))
    other = store.run("second")
    other.save(1, {"x": random_bytes(MIB)})
    part_by_hand(data_path(run, 1))
    assert bytes_written(other, lambda: other.save(2, {"x": random_bytes(MIB)})) == 0
    assert same(other.load(2), {"x": random_bytes(MIB)})


# Without an index


def _without_index(store: Store) -> Store:
    shutil.rmtree(Path(store.url) / ".standfast")
    return Store(Path(store.url).parent)


def test_without_an_index_the_parent_is_still_found(store: Store, run: Run) -> None:
    _save(run, 1, random_bytes(MIB))
    run.close()
    run = _without_index(store).run("first")
    assert _save(run, 2, random_bytes(MIB)) == 0
    assert same(run.load(2), {"x": random_bytes(MIB)})


def test_without_an_index_a_new_run_still_finds_others(store: Store, run: Run) -> None:
    _save(run, 1, random_bytes(MIB))
    run.close()
    other = _without_index(store).run("second")
    other.save(1, {"x": random_bytes(MIB)})
    assert data_path(run, 1).stat().st_nlink == 2
    assert same(other.load(1), {"x": random_bytes(MIB)})


def test_in_a_second_process_the_first_ones_chunks_are_found(store: Store, run: Run) -> None:
    _save(run, 1, random_bytes(MIB))
    other = Store(Path(store.url).parent).run("second")
    other.save(1, {"x": random_bytes(MIB)})
    assert data_path(run, 1).stat().st_nlink == 2
