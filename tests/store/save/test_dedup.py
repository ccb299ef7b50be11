"""What the store holds already is referred to, not written again, and no run depends on another."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import Run, Store
from standfast.files.digests import CHUNK
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
from tests.store.meanwhile import again

HEADER = 8192
"""More than the header of any data file here takes."""


def _save(run: Run, step: int, x: Any) -> int:
    """The bytes of data files that a save of one tensor wrote."""
    return bytes_written(run, lambda: run.save(step, {"x": x}))


def _files(run: Run, step: int) -> set[str]:
    """The data files that a step refers to."""
    return {file.name for file in run.checkpoint(step).head.files}


def test_a_changed_byte_costs_its_chunk_and_a_header(run):
    x = chunks(*range(6))
    _save(run, 1, x)
    x[3 * CHUNK + 5] ^= 1
    assert _save(run, 2, x) <= 1.05 * CHUNK + HEADER
    assert same(run.load(2), {"x": x})
    assert run.checkpoint(2).verify().nbytes == x.nbytes


def test_one_percent_changed_costs_about_that(run):
    size = 512 << 10
    model = {f"w{i}": random_bytes(size, i) for i in range(100)}
    state = {"model": model, "frozen": {"w": random_bytes(MIB, 200)}}
    run.save(1, state)
    model["w7"] += 1
    written = bytes_written(run, lambda: run.save(2, state))
    assert size < written < size + (64 << 10), "and the header for all tensors"
    with standfast.open(data_path(run, 2, "model")) as file:
        assert list(file) == ["w7"]
    assert same(run.load(2), state)


def test_chunks_are_found_under_any_name_dtype_and_place(run):
    x = chunks(1, 2)
    _save(run, 1, x)
    moved = {"other": {"name": x.view(np.float32)}, "half": x[CHUNK:].copy().reshape(2, -1)}
    assert bytes_written(run, lambda: run.save(2, moved)) == 0
    assert same(run.load(2), moved)


def test_equal_chunks_of_one_save_are_written_once(run):
    x = random_bytes(MIB)
    written = bytes_written(run, lambda: run.save(1, {"a": x, "b": x.copy(), "c": {"d": x.copy()}}))
    assert written <= MIB + HEADER
    assert len(data_files(run)) == 1


@pytest.mark.guarantee("G18")
def test_what_came_back_to_an_earlier_value_is_found(run):
    _save(run, 1, random_bytes(MIB, 1))
    assert _save(run, 2, random_bytes(MIB, 1)) == 0, "unchanged"
    assert _save(run, 3, random_bytes(MIB, 2)) > MIB
    assert _save(run, 4, random_bytes(MIB, 1)) == 0
    assert same(run.load(4), {"x": random_bytes(MIB, 1)})


def test_small_tensors_are_always_written(run):
    state = {"small": {"x": random_bytes(SMALL - 1)}, "large": {"x": random_bytes(SMALL, 1)}}
    run.save(1, state)
    written = bytes_written(run, lambda: run.save(2, state))
    assert SMALL - 1 <= written < SMALL + HEADER


@pytest.mark.guarantee("G19")
def test_a_file_that_leaves_something_out_says_so_and_verifies(run):
    state = {"model": {"a": random_bytes(MIB, 1), "b": chunks(2, 3, 4), "c": np.ones(3)}}
    run.save(1, state)
    state["model"]["b"][CHUNK] ^= 1
    run.save(2, state)
    path = data_path(run, 2, "model")
    assert standfast.verify(path).tensors == 2
    with standfast.open(path) as file:
        assert f"standfast export {run.hash}@2" in file.metadata["left_out"]
        assert sorted(file) == [f"b[{CHUNK}:{2 * CHUNK}]", "c"]
        stretch = file[f"b[{CHUNK}:{2 * CHUNK}]"]
        assert same(stretch, state["model"]["b"][CHUNK : 2 * CHUNK])
    with standfast.open(data_path(run, 1, "model")) as file:
        assert "left_out" not in file.metadata


def test_neighbouring_new_chunks_are_one_stretch(run):
    _save(run, 1, chunks(1, 2, 3, 4))
    x = np.concatenate([chunks(1, 8, 9, 4), random_bytes(1000)])
    _save(run, 2, x)
    with standfast.open(data_path(run, 2)) as file:
        assert sorted(file) == [f"x[{CHUNK}:{3 * CHUNK}]", f"x[{4 * CHUNK}:{4 * CHUNK + 1000}]"]
    assert same(run.load(2), {"x": x})


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: os.truncate(path, 1000)])
def test_a_file_that_is_gone_or_cut_is_not_used(run, harm):
    _save(run, 1, random_bytes(MIB))
    harm(data_path(run, 1))
    assert _save(run, 2, random_bytes(MIB)) > MIB
    run.checkpoint(2).verify()
    assert _files(run, 2) == {data_path(run, 2).name}


def test_a_damaged_parent_is_no_obstacle(run):
    _save(run, 1, random_bytes(MIB))
    record_path(run, 1).write_bytes(b"garbage")
    run.store.index.rebuild()
    run.close()
    _save(run, 2, random_bytes(MIB))
    assert same(run.load(2), {"x": random_bytes(MIB)})


def test_a_file_half_of_which_is_used_is_kept(run):
    def state(seed: int) -> dict[str, Any]:
        return {"a": random_bytes(MIB, 1), "b": random_bytes(MIB, seed)}

    run.save(1, state(2))
    run.save(2, state(3))
    run.delete(1)
    assert bytes_written(run, lambda: run.save(3, state(4))) < 1.1 * MIB


def test_half_dead_files_are_given_up_and_their_space_comes_back(run):
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


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("has_index", [True, False])
def test_another_runs_chunks_are_linked_in(store, run, has_index):
    _save(run, 1, chunks(1, 2))
    run.close()
    if not has_index:
        shutil.rmtree(Path(store.url) / ".standfast")
    assert _save(again(store).run("a"), 2, chunks(1, 2)) == 0
    for links, name in enumerate(("second", "third"), 2):
        other = again(store).run(name)
        other.save(1, {"x": chunks(1, 2)})
        assert list(data_files(other)) == [data_path(run, 1).name]
        assert data_path(run, 1).stat().st_nlink == links
        assert same(other.load(1), {"x": chunks(1, 2)})


@pytest.mark.guarantee("G18")
@pytest.mark.parametrize("how", ["by hand", "delete_all", "moved"])
def test_a_run_outlives_one_it_shares_with(store, run, how, tmp_path):
    x = random_bytes(MIB)
    _save(run, 1, x)
    other = store.run("second")
    other.save(1, {"x": x})
    if how == "by hand":
        shutil.rmtree(folder(run))
    elif how == "delete_all":
        run.delete_all()
    else:
        shutil.copytree(folder(other), tmp_path / "to" / "checkpoints" / "models" / other.hash)
        shutil.rmtree(store.url)
        store = Store(tmp_path / "to")
        other = store.find_run("second")
    assert same(other.load(1), {"x": x})
    other.checkpoint(1).verify()
    assert _save(other, 2, x) == 0
    assert same(other.load(2), {"x": x})
    third = store.run("third")
    third.save(1, {"x": x})
    assert data_files(third).keys() == data_files(other).keys()


@pytest.mark.parametrize("links", [True, False])
def test_a_link_that_is_parted_and_none_at_all_still_serve(store, run, seams, links):
    if not links:
        seams.backend(link=lambda *_: False)
    _save(run, 1, random_bytes(MIB))
    other = store.run("second")
    other.save(1, {"x": random_bytes(MIB)})
    assert list(data_files(other)) == [data_path(run if links else other, 1).name]
    part_by_hand(data_path(run, 1))
    assert _save(other, 2, random_bytes(MIB)) == 0
    assert same(other.load(2), {"x": random_bytes(MIB)})
