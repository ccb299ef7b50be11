"""npz files against NumPy itself: what it writes opens here, what we write opens there."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast.formats.npz import file as own_format
from tests.kit.strategies import arrays, same_bytes

Array = np.ndarray[Any, Any]

DTYPES = sorted(own_format.DTYPES)


@pytest.mark.parametrize("compressed", [False, True])
@given(
    state=st.dictionaries(
        st.from_regex("[a-z./ ü]{1,9}", fullmatch=True), arrays(DTYPES), max_size=4
    )
)
@settings(max_examples=15, deadline=None)
def test_what_numpy_writes_opens_here(
    compressed: bool, tmp_path_factory: pytest.TempPathFactory, state: dict[str, Array]
) -> None:
    state = {name: array for name, array in state.items() if name != "file"}
    path = tmp_path_factory.mktemp("npz") / "theirs.npz"
    (np.savez_compressed if compressed else np.savez)(path, **state)
    for mapped in (True, False):
        with standfast.open(path, mapped=mapped) as file:
            assert set(file) == set(state)
            for name, array in state.items():
                assert same_bytes(file[name], array)
        loaded = standfast.load(path, mapped=mapped, verify=False)
        assert all(same_bytes(loaded[name], array) for name, array in state.items())


@pytest.mark.parametrize("extras", [True, False])
@given(
    state=st.dictionaries(
        st.from_regex("[a-z./ ü]{0,9}", fullmatch=True), arrays(DTYPES), max_size=4
    )
)
@settings(max_examples=15, deadline=None)
def test_what_we_write_opens_there(
    extras: bool, tmp_path_factory: pytest.TempPathFactory, state: dict[str, Array]
) -> None:
    path = tmp_path_factory.mktemp("npz") / "ours.npz"
    standfast.save(path, state, extras=extras)
    with np.load(path, allow_pickle=False) as file:
        assert file.files == list(state)
        assert all(same_bytes(file[name], array) for name, array in state.items())


def test_fortran_order_and_big_endian_come_back_with_their_values(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    for save in (np.savez, np.savez_compressed):
        save(
            tmp_path / "odd.npz",
            f=np.asfortranarray(array),
            b=array.astype(">i4"),
            s=np.array(5, ">i8"),
        )
        with standfast.open(tmp_path / "odd.npz") as file:
            assert np.array_equal(file["f"], array)
            assert np.array_equal(file["b"], array)
            assert file["b"].dtype == np.dtype("<i4")
            assert file["s"] == 5
            assert np.array_equal(file.slice("f")[1, :, ::2], array[1, :, ::2])
        standfast.convert(tmp_path / "odd.npz", tmp_path / "plain.oxck", cast=True, replace=True)
        assert np.array_equal(standfast.load(tmp_path / "plain.oxck")["f"], array)


def test_a_damaged_compressed_array_is_found_by_its_checksum(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "a.npz", w=np.frombuffer(np.random.default_rng(0).bytes(5000), np.uint8)
    )
    whole = (tmp_path / "a.npz").read_bytes()
    found = 0
    for at in range(1000, 4000, 500):
        damaged = bytearray(whole)
        damaged[at] ^= 16
        with pytest.raises(standfast.DamagedFile), standfast.open(io.BytesIO(damaged)) as file:
            file["w"]
        found += 1
    assert found == 6


def test_a_damaged_stored_array_of_numpy_is_found_by_its_checksum(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", fine=np.ones(9), w=np.arange(1000.0), f=np.ones((2, 3), order="F"))
    damaged = bytearray((tmp_path / "a.npz").read_bytes())
    damaged[damaged.index(np.arange(1000.0).tobytes()) + 4321] ^= 1
    for mapped in (True, False):
        (tmp_path / "b.npz").write_bytes(damaged)
        with pytest.raises(standfast.errors.DigestMismatch) as damage:
            standfast.load(tmp_path / "b.npz", mapped=mapped)
        assert damage.value.tensors == ("w",)
        with standfast.open(tmp_path / "b.npz", mapped=mapped) as file:
            assert file["fine"].sum() == 9
            with pytest.raises(standfast.errors.DigestMismatch):
                file["w"]
        assert standfast.load(tmp_path / "b.npz", verify=False, mapped=mapped)["w"].size == 1000
        with pytest.warns(standfast.errors.NotVerified, match="CRC-32"):
            assert standfast.load(tmp_path / "a.npz", mapped=mapped)["w"][999] == 999


def test_mapped_arrays_are_views_of_the_file_and_aligned(tmp_path: Path) -> None:
    state = {"odd": np.ones(3, np.uint8), "w": np.arange(1000.0)}
    standfast.save(tmp_path / "ours.npz", state)
    np.savez(tmp_path / "theirs.npz", **state)
    with standfast.open(tmp_path / "ours.npz") as file:
        assert np.shares_memory(file["w"], file["w"])
    for name in ("ours.npz", "theirs.npz"):
        with standfast.open(tmp_path / name) as file:
            assert file["w"].flags.aligned
            assert np.array_equal(file["w"], state["w"])
