"""Of a long tensor, only the chunks that differ are read; the figures are those of all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import DigestMismatch
from standfast.files.digests import CHUNK
from standfast.store.query.view import CheckpointView, diff_checkpoints
from standfast.tensorfile.diff import compare
from tests.kit.stores import data_path

Array = np.ndarray[Any, Any]
ELEMENTS = CHUNK // 4


@pytest.fixture(scope="module")
def before() -> Array:
    return np.random.default_rng(0).random(3 * ELEMENTS + 100, np.float32)


@pytest.fixture(scope="module")
def after(before: Array) -> Array:
    """Another first chunk, and one other element in the rest after the last."""
    changed = before.copy()
    changed[:ELEMENTS:3] += np.float32(0.25)
    changed[-1] = 7
    return changed


class Whole:
    """A file that gives no chunks."""

    def __init__(self, file: standfast.TensorFile) -> None:
        self._file = file

    def chunks(self, name: str) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __iter__(self) -> Any:
        return iter(self._file)

    def __contains__(self, name: object) -> bool:
        return name in self._file

    def __getitem__(self, name: str) -> Array:
        return self._file[name]


def turn_a_bit(path: Path, array: Array, element: int) -> None:
    """Damage an element where it lies in a file."""
    data = bytearray(path.read_bytes())
    at = data.index(array[element : element + 64].tobytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_the_figures_are_those_of_the_whole_tensor(
    before: Array, after: Array, tmp_path: Path
) -> None:
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path, array in zip(paths, (before, after), strict=True):
        standfast.save(path, {"w": array.reshape(4, -1)})
    with standfast.open(paths[0]) as old, standfast.open(paths[1]) as new:
        (change,) = compare(old, new).changed
        assert [change] == compare(Whole(old), Whole(new)).changed
    assert change.share == np.count_nonzero(before != after) / before.size
    assert change.max == np.abs(after.astype(float) - before.astype(float)).max()


def test_only_chunks_that_differ_are_read_from_files(
    before: Array, after: Array, tmp_path: Path
) -> None:
    standfast.save(tmp_path / "a.safetensors", {"w": before})
    standfast.save(tmp_path / "b.safetensors", {"w": after})
    sound = standfast.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    turn_a_bit(tmp_path / "b.safetensors", after, ELEMENTS + 5)  # in a chunk that both have
    assert standfast.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors") == sound
    turn_a_bit(tmp_path / "b.safetensors", after, 5)
    with pytest.raises(DigestMismatch, match="'w' is damaged"):
        standfast.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")


def test_only_chunks_that_differ_are_read_from_a_store(
    before: Array, after: Array, tmp_path: Path
) -> None:
    store = standfast.Store(tmp_path)
    with store.run("gpt") as run:
        old, new = run.save(1, {"w": before}), run.save(2, {"w": after})
        path = data_path(run, 1)
    (change,) = diff_checkpoints(old, new).changed
    assert change.share == np.count_nonzero(before != after) / before.size
    turn_a_bit(path, before, 2 * ELEMENTS + 5)  # in a chunk that both have
    assert list(diff_checkpoints(old, new).changed) == [change]
    assert not store.index.damaged_files()
    turn_a_bit(path, before, 5)
    with pytest.raises(DigestMismatch, match="'w' is damaged"):
        diff_checkpoints(old, new)
    assert store.index.damaged_files() == {path.name}


def test_chunks_are_found_in_whatever_file_they_lie(tmp_path: Path) -> None:
    first, second = (np.full(CHUNK, value, np.uint8) for value in (1, 2))
    with standfast.Store(tmp_path).run("gpt") as run:
        run.save(1, {"w": first})
        run.save(2, {"w": second})
        third = run.save(3, {"w": np.concatenate([second, first, second[:70_000]])})
    read = CheckpointView(third).chunks("w")
    assert read is not None
    assert {file.name.split(".")[0][-1] for file in third.head.files} == {"1", "2", "3"}
    assert [(read(n)[0], read(n).size) for n in range(3)] == [(2, CHUNK), (1, CHUNK), (2, 70_000)]


def test_a_strided_view_and_a_file_without_digests_are_read_whole(tmp_path: Path) -> None:
    square = np.arange(CHUNK // 2, dtype=np.float32).reshape(2, -1)
    with standfast.Store(tmp_path / "store").run("gpt") as run:
        old = run.save(1, {"w": square, "transposed": square.T})
        square[1, 3] += 2
        new = run.save(2, {"w": square, "transposed": square.T})
    assert CheckpointView(old).chunks("transposed") is None
    changed = {change.name: change for change in diff_checkpoints(old, new).changed}
    assert changed["transposed"].max == changed["w"].max == 2
    standfast.save(tmp_path / "bare.safetensors", {"w": square}, extras=False)
    with standfast.open(tmp_path / "bare.safetensors") as bare:
        assert bare.chunks("w") is None
        assert [change.name for change in compare(CheckpointView(old), bare).changed] == ["w"]
