"""What differs between two files, and by how much."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast.tensorfile.diff import ABSENT
from standfast.tensors import DTYPES
from tests.kit.strategies import arrays

Array = np.ndarray[Any, Any]


def compared(folder: Path, before: dict[str, Array], after: dict[str, Array]) -> standfast.Diff:
    standfast.save(folder / "a.npz", before)
    standfast.save(folder / "b.pt", after)
    return standfast.diff(folder / "a.npz", folder / "b.pt")


def test_new_gone_and_same_tensors(tmp_path: Path) -> None:
    found = compared(
        tmp_path, {"same": np.ones(2), "gone": np.ones(3)}, {"same": np.ones(2), "new": np.ones(1)}
    )
    assert list(found.added) == ["new"]
    assert found.removed == {"gone": standfast.TensorSpec("float64", (3,))}
    assert not found.changed
    assert (found.same, found.by_digests) == (0, 1)
    assert found


def test_equal_files_have_no_difference(tmp_path: Path) -> None:
    found = compared(tmp_path, {"w": np.array([math.nan, 0.0])}, {"w": np.array([math.nan, 0.0])})
    assert not found
    assert (found.same, found.by_digests) == (0, 1)


def test_max_mean_and_share(tmp_path: Path) -> None:
    before = np.zeros((4, 5), np.float32)
    after = before.copy()
    after[0, 0], after[3, 4] = 2, -6
    (change,) = compared(tmp_path, {"w": before}, {"w": after}).changed
    assert (change.max, change.mean, change.share) == (6.0, 8 / 20, 2 / 20)


def test_the_worst_comes_first(tmp_path: Path) -> None:
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


def test_another_dtype_is_a_change_measured_by_value(tmp_path: Path) -> None:
    (change,) = compared(
        tmp_path, {"w": np.array([0.5, 1 / 3])}, {"w": np.array([0.5, 1 / 3], np.float32)}
    ).changed
    assert (change.before.dtype, change.after.dtype) == ("float64", "float32")
    assert change.max == abs(1 / 3 - float(np.float32(1 / 3)))
    assert change.share == 0.5


@pytest.mark.parametrize(
    ("before", "after", "distance"),
    [
        (np.array([-(2**63)]), np.array([2**63 - 1]), 2.0**64),
        (np.array([2**60]), np.array([2**60 + 1]), 1.0),
        (np.array([255], np.uint8), np.array([0], np.uint8), 255.0),
        (np.array([False]), np.array([True]), 1.0),
        (np.array([3 + 4j]), np.array([0j]), 5.0),
        (np.array([math.inf]), np.array([math.inf], np.float64), 0.0),
        (np.array([-0.0]), np.array([0.0]), 0.0),
        (np.array([math.inf]), np.array([-math.inf]), math.inf),
    ],
)
def test_distances_are_right_at_the_edges(
    before: Array, after: Array, distance: float, tmp_path: Path
) -> None:
    changed = compared(tmp_path, {"w": before}, {"w": after}).changed
    assert [change.max for change in changed] == (
        [] if before.tobytes() == after.tobytes() else [distance]
    )


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_differences_agree_with_numpy(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
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


def test_metadata_that_differs(tmp_path: Path) -> None:
    standfast.save(tmp_path / "a.npz", {}, {"step": 1, "lr": 0.1, "old": None, "kind": 1})
    standfast.save(tmp_path / "b.oxck", {}, {"step": 2, "lr": 0.1, "note": "x", "kind": True})
    found = standfast.diff(tmp_path / "a.npz", tmp_path / "b.oxck")
    assert found.metadata == {
        "step": (1, 2),
        "old": (None, ABSENT),
        "kind": (1, True),
        "note": (ABSENT, "x"),
    }


@pytest.mark.parametrize(
    ("before", "after"), [([1, True], [1.0, 1]), ({"a": 1}, {"a": True}), ([], {}), ("1", 1)]
)
def test_metadata_is_compared_by_type_all_the_way_down(
    before: Any, after: Any, tmp_path: Path
) -> None:
    standfast.save(tmp_path / "a.npz", {}, {"k": before})
    standfast.save(tmp_path / "b.npz", {}, {"k": after})
    assert standfast.diff(tmp_path / "a.npz", tmp_path / "b.npz").metadata == {"k": (before, after)}
    assert not standfast.diff(tmp_path / "a.npz", tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("before", "after", "largest", "share"),
    [
        (np.array([2**53 + 1]), np.array([2.0**53]), 1.0, 1.0),
        (np.array([2**62 + 1]), np.array([2**62], np.uint64), 1.0, 1.0),
        (np.full(10, 1e308), np.zeros(10), 1e308, 1.0),
        (np.array([1.0, 2.0]), np.array([1, 3]), 1.0, 0.5),
    ],
)
def test_large_numbers_of_other_dtypes_are_compared_exactly(
    before: Array, after: Array, largest: float, share: float, tmp_path: Path
) -> None:
    (change,) = compared(tmp_path, {"w": before}, {"w": after}).changed
    assert (change.max, change.share) == (largest, share)


@pytest.mark.guarantee("G9")
def test_a_damaged_tensor_with_equal_digests_is_not_called_the_same(tmp_path: Path) -> None:
    """It is not read: `verify` finds the damage."""
    compared(tmp_path, {"w": np.ones(1000)}, {"w": np.ones(1000)})
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[500] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    found = standfast.diff(tmp_path / "a.npz", tmp_path / "b.pt")
    assert (bool(found), found.same, found.by_digests) == (False, 0, 1)
    with pytest.raises(standfast.DamagedFile):
        standfast.verify(tmp_path / "a.npz")


def test_what_is_read_is_verified(tmp_path: Path) -> None:
    compared(tmp_path, {"w": np.ones(1000)}, {"w": np.zeros(1000)})
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[500] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(standfast.errors.DigestMismatch):
        standfast.diff(tmp_path / "a.npz", tmp_path / "b.pt")
