"""Of a long tensor, only the chunks that differ are read; the figures are those of all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast.errors import DigestMismatch
from standfast.files.digests import CHUNK
from standfast.store.query.view import CheckpointView, diff_checkpoints
from standfast.tensorfile.diff import compare
from tests.formats.builders import Array, flipped
from tests.kit.stores import data_path

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


def turn_a_bit(path: Path, array: Array, element: int) -> None:
    """Damage an element where it lies in a file."""
    data = path.read_bytes()
    path.write_bytes(flipped(data, data.index(array[element : element + 64].tobytes())))


def test_the_figures_are_those_of_the_whole_tensor(
    before: Array, after: Array, tmp_path: Path
) -> None:
    for name, array in {"a": before, "b": after}.items():
        for extras in (True, False):
            path = tmp_path / f"{name} {extras}.safetensors"
            standfast.save(path, {"w": array.reshape(4, -1)}, extras=extras)
    (change,), (whole,) = (
        standfast.diff(*(tmp_path / f"{name} {extras}.safetensors" for name in "ab")).changed
        for extras in (True, False)
    )
    assert change == whole
    assert change.share == np.count_nonzero(before != after) / before.size
    assert change.max == np.abs(after.astype(float) - before.astype(float)).max()


def test_only_chunks_that_differ_are_read_from_files(
    before: Array, after: Array, tmp_path: Path
) -> None:
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    standfast.save(a, {"w": before})
    standfast.save(b, {"w": after})
    sound = standfast.diff(a, b)
    turn_a_bit(b, after, ELEMENTS + 5)  # in a chunk that both have
    assert standfast.diff(a, b) == sound
    turn_a_bit(b, after, 5)
    with pytest.raises(DigestMismatch, match="'w'"):
        standfast.diff(a, b)


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
    with pytest.raises(DigestMismatch, match="'w'"):
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
