"""What differs between two files, and by how much; of long tensors, only what differs is read."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast.errors import DigestMismatch
from standfast.files.digests import CHUNK
from standfast.store.query.view import CheckpointView, diff_checkpoints
from standfast.tensorfile.diff import ABSENT, compare
from standfast.tensors import DTYPES
from tests.formats.builders import Array, flipped
from tests.kit.stores import data_path
from tests.kit.strategies import arrays


def compared(folder: Path, before: dict[str, Array], after: dict[str, Array]) -> standfast.Diff:
    standfast.save(folder / "a.npz", before)
    standfast.save(folder / "b.pt", after)
    return standfast.diff(folder / "a.npz", folder / "b.pt")


def test_new_gone_and_same_tensors(tmp_path):
    same = {"same": np.array([math.nan, 0.0])}
    found = compared(tmp_path, same | {"gone": np.ones(3)}, same | {"new": np.ones(1)})
    assert list(found.added) == ["new"]
    assert found.removed == {"gone": standfast.TensorSpec("float64", (3,))}
    assert not found.changed
    assert (found.same, found.by_digests) == (0, 1)
    assert found
    found = compared(tmp_path, same, same)
    assert not found
    assert (found.same, found.by_digests) == (0, 1)


def test_max_mean_and_share(tmp_path):
    before = np.zeros((4, 5), np.float32)
    after = before.copy()
    after[0, 0], after[3, 4] = 2, -6
    (change,) = compared(tmp_path, {"w": before}, {"w": after}).changed
    assert (change.max, change.mean, change.share) == (6.0, 8 / 20, 2 / 20)


def test_the_worst_comes_first(tmp_path):
    before = {name: np.zeros(4) for name in ("small", "large", "shape", "nan")}
    after = {
        "small": np.array([0, 0, 0, 0.1]),
        "large": np.array([0, 0, 0, 9.0]),
        "shape": np.zeros((2, 2)),
        "nan": np.array([0, 0, 0, math.nan]),
    }
    changed = compared(tmp_path, before, after).changed
    assert [change.name for change in changed] == ["shape", "nan", "large", "small"]
    assert changed[0].max is changed[0].share is None
    assert changed[1].max == math.inf


def test_another_dtype_is_a_change_measured_by_value(tmp_path):
    before, after = np.array([0.5, 1 / 3]), np.array([0.5, 1 / 3], np.float32)
    (change,) = compared(tmp_path, {"w": before}, {"w": after}).changed
    assert (change.before.dtype, change.after.dtype) == ("float64", "float32")
    assert (change.max, change.share) == (abs(1 / 3 - float(np.float32(1 / 3))), 0.5)


@pytest.mark.parametrize(
    ("before", "after", "largest", "share"),
    [
        (np.array([-(2**63)]), np.array([2**63 - 1]), 2.0**64, 1),
        (np.array([2**60]), np.array([2**60 + 1]), 1.0, 1),
        (np.array([255], np.uint8), np.array([0], np.uint8), 255.0, 1),
        (np.array([False]), np.array([True]), 1.0, 1),
        (np.array([3 + 4j]), np.array([0j]), 5.0, 1),
        (np.array([-0.0]), np.array([0.0]), 0.0, 1),
        (np.array([math.inf]), np.array([-math.inf]), math.inf, 1),
        (np.array([2**53 + 1]), np.array([2.0**53]), 1.0, 1),
        (np.array([2**62 + 1]), np.array([2**62], np.uint64), 1.0, 1),
        (np.full(10, 1e308), np.zeros(10), 1e308, 1),
        (np.array([1.0, 2.0]), np.array([1, 3]), 1.0, 0.5),
    ],
)
def test_distances_are_right_at_the_edges(before, after, largest, share, tmp_path):
    (change,) = compared(tmp_path, {"w": before}, {"w": after}).changed
    assert (change.max, change.share) == (largest, share)


@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_differences_agree_with_numpy(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("diff")
    dtype = data.draw(st.sampled_from(["float32", "int16", "uint64", "complex64"]))
    before = data.draw(arrays([dtype]))
    plain = before.astype(DTYPES[dtype].numpy, order="C")
    after = plain.copy()
    if after.size:
        after.reshape(-1)[data.draw(st.integers(0, after.size - 1))] = 1
    changed = compared(folder, {"w": before}, {"w": after}).changed
    unequal = [a.tobytes() != b.tobytes() for a, b in zip(plain.flat, after.flat, strict=True)]
    if not any(unequal):
        assert not changed
    else:
        with np.errstate(all="ignore"):
            kind = object if dtype == "uint64" else np.complex128
            far = np.abs(plain.astype(kind) - after.astype(kind)).astype(np.float64)
            far = far.reshape(-1)[unequal]
        largest = math.inf if np.isnan(far).any() else float(far.max())
        assert changed[0].max == largest
        assert changed[0].share == sum(unequal) / before.size


def test_metadata_is_compared_by_type_all_the_way_down(tmp_path):
    a, b = tmp_path / "a.npz", tmp_path / "b.oxck"
    pairs = [(1, 2), (1, True), ([1, True], [1.0, 1]), ({"a": 1}, {"a": True}), ([], {}), ("1", 1)]
    differing = {str(i): pair for i, pair in enumerate(pairs)}
    same = {"lr": 0.1}
    standfast.save(
        a, {}, {k: before for k, (before, _) in differing.items()} | same | {"old": None}
    )
    standfast.save(b, {}, {k: after for k, (_, after) in differing.items()} | same | {"new": "x"})
    found = standfast.diff(a, b).metadata
    assert found == differing | {"old": (None, ABSENT), "new": (ABSENT, "x")}
    assert not standfast.diff(a, a)


@pytest.mark.guarantee("G9")
def test_a_damaged_tensor_with_equal_digests_is_not_called_the_same(tmp_path):
    compared(tmp_path, {"w": np.ones(1000)}, {"w": np.ones(1000)})
    a = tmp_path / "a.npz"
    a.write_bytes(flipped(a.read_bytes(), 500))
    found = standfast.diff(tmp_path / "a.npz", tmp_path / "b.pt")
    assert (bool(found), found.same, found.by_digests) == (False, 0, 1)
    with pytest.raises(standfast.DamagedFile):
        standfast.verify(a)
    standfast.save(tmp_path / "b.pt", {"w": np.zeros(1000)})
    with pytest.raises(DigestMismatch):
        standfast.diff(a, tmp_path / "b.pt")


ELEMENTS = CHUNK // 4


@pytest.fixture(scope="module")
def before() -> Array:
    return np.random.default_rng(0).random(2 * ELEMENTS + 100, np.float32)


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


def test_the_figures_are_those_of_the_whole_tensor(before, after, tmp_path):
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


def test_only_chunks_that_differ_are_read_from_files(before, after, tmp_path):
    a, b = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    standfast.save(a, {"w": before})
    standfast.save(b, {"w": after})
    sound = standfast.diff(a, b)
    turn_a_bit(b, after, ELEMENTS + 5)  # in a chunk that both have
    assert standfast.diff(a, b) == sound
    turn_a_bit(b, after, 5)
    with pytest.raises(DigestMismatch, match="'w'"):
        standfast.diff(a, b)


def test_only_chunks_that_differ_are_read_from_a_store(before, after, tmp_path):
    store = standfast.Store(tmp_path)
    with store.run("gpt") as run:
        old, new = run.save(1, {"w": before}), run.save(2, {"w": after})
        path = data_path(run, 1)
    (change,) = diff_checkpoints(old, new).changed
    assert change.share == np.count_nonzero(before != after) / before.size
    turn_a_bit(path, before, ELEMENTS + 5)  # in a chunk that both have
    assert list(diff_checkpoints(old, new).changed) == [change]
    assert not store.index.damaged_files()
    turn_a_bit(path, before, 5)
    with pytest.raises(DigestMismatch, match="'w'"):
        diff_checkpoints(old, new)
    assert store.index.damaged_files() == {path.name}


def test_chunks_are_found_in_whatever_file_they_lie(tmp_path):
    first, second = (np.full(CHUNK, value, np.uint8) for value in (1, 2))
    with standfast.Store(tmp_path).run("gpt") as run:
        run.save(1, {"w": first})
        run.save(2, {"w": second})
        third = run.save(3, {"w": np.concatenate([second, first, second[:70_000]])})
    read = CheckpointView(third).chunks("w")
    assert read is not None
    assert {file.name.split(".")[0][-1] for file in third.head.files} == {"1", "2", "3"}
    assert [(read(n)[0], read(n).size) for n in range(3)] == [(2, CHUNK), (1, CHUNK), (2, 70_000)]


def test_a_strided_view_and_a_file_without_digests_are_read_whole(tmp_path):
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
