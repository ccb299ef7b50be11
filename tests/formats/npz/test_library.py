"""npz files against NumPy itself, and what shows only when an array is taken."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast.errors import BadArchive, DamagedFile, DigestMismatch, NotVerified, SizeMismatch
from standfast.formats import format_named
from tests.formats.npz.malformed import SIX, bomb, file_of, npy, packed, saved, sealed
from tests.formats.torch.builders import deflated
from tests.formats.zip.builders import archive
from tests.fuzz.limits import memory_limit, processor_limit
from tests.kit.strategies import arrays, same_bytes

DTYPES = sorted(format_named("npz").DTYPES)
SAVES = {False: np.savez, True: np.savez_compressed}
names = st.from_regex("[a-z./ ü]{1,9}", fullmatch=True).filter(lambda name: name != "file")
states = st.dictionaries(names, arrays(DTYPES), max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("npz")


def test_what_the_cases_are_made_of_is_sound(tmp_path):
    path = tmp_path / "file.npz"
    whole = {"plain": file_of(npy()), "packed": packed(npy()), "sealed": sealed(), "saved": saved()}
    for kind, data in whole.items():
        path.write_bytes(data)
        with standfast.open(path) as file:
            assert file["a"].tobytes() == SIX, kind
            assert file.has_digests == (kind in ("sealed", "saved"))
        with np.load(path, allow_pickle=False) as theirs:
            assert {name: theirs[name].tobytes() for name in theirs} == {"a": SIX}


@given(states, st.booleans())
@settings(max_examples=20, deadline=None)
def test_what_numpy_writes_opens_here(folder, state, compressed):
    path = folder / "theirs.npz"
    SAVES[compressed](path, **state)
    for mapped in (True, False):
        with standfast.open(path, mapped=mapped) as file:
            assert set(file) == set(state)
            assert all(same_bytes(file[name], array) for name, array in state.items())
        loaded = standfast.load(path, mapped=mapped, verify=False)
        assert all(same_bytes(loaded[name], array) for name, array in state.items())


@given(states, st.booleans())
@settings(max_examples=20, deadline=None)
def test_what_we_write_opens_there(folder, state, extras):
    path = folder / "ours.npz"
    standfast.save(path, state, extras=extras)
    with np.load(path, allow_pickle=False) as file:
        assert file.files == list(state)
        assert all(same_bytes(file[name], array) for name, array in state.items())


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("compressed", [True, False])
def test_any_order_of_bytes_and_elements_gives_the_values(compressed, mapped, tmp_path):
    path, again = tmp_path / "file.npz", tmp_path / "new.npz"
    dtypes = ("<f4", ">f4", ">i8", "<c16", ">c16", ">u2", "|b1", "|i1")
    plain: dict[str, Any] = {d: np.arange(24).reshape(2, 3, 4).astype(d) for d in dtypes}
    turned = {f"{name} f": np.asfortranarray(array) for name, array in plain.items()}
    state = plain | turned | {"scalar": np.array(5, ">i8")}
    SAVES[compressed](path, **state)
    with standfast.open(path, mapped=mapped) as file:
        for name, array in state.items():
            assert file[name].dtype == array.dtype.newbyteorder("=")
            assert np.array_equal(file[name], array)
            assert np.array_equal(file.slice(name)[...], array)
        assert np.array_equal(file.slice(">f4 f")[1, :, ::2], plain[">f4"][1, :, ::2])
    standfast.convert(path, again)
    assert not standfast.diff(path, again)


PACKED = deflated("a.npy", npy())
BROKEN = {
    "another CRC-32": (packed(npy(), crc=7), DigestMismatch),
    "a bomb behind the array": (packed(bomb(), size=len(npy())), SizeMismatch),
    "inflates to too little": (packed(npy()[:-4], size=len(npy())), SizeMismatch),
    **{
        f"{n} bytes behind the end": (
            archive(replace(PACKED, data=PACKED.data + b"x" * n)),
            SizeMismatch,
        )
        for n in (1, 2, 6, 7, 8, 9, 30)
    },
}


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_compressed_array_that_is_broken_is_found_when_it_is_taken(broken, mapped, tmp_path):
    data, error = BROKEN[broken]
    path, new = tmp_path / "file.npz", tmp_path / "new.safetensors"
    path.write_bytes(data)
    with memory_limit(1 << 28), processor_limit(5):
        with standfast.open(path, mapped=mapped) as file, pytest.raises(DamagedFile) as found:
            file["a"]
        assert type(found.value) is error
        assert str(found.value).startswith(f"{path}: tensor 'a': ")
        with pytest.raises(error):
            standfast.convert(path, new)
    assert not new.exists()


def test_a_compressed_array_that_is_broken_behind_its_header_is_found():
    noise = np.random.default_rng(7).bytes(5000)
    whole = deflated("a.npy", npy("'|u1'", shape="(5000,)", data=noise))
    half = whole.data[: len(whole.data) // 2]
    for stored in (half, half + b"\xff" * 200):
        data = archive(replace(whole, data=stored))
        with (
            standfast.open(io.BytesIO(data)) as file,
            pytest.raises((BadArchive, SizeMismatch), match="'a'"),
        ):
            file["a"]
    # A bit, in the middle of what it is deflated to.
    for at in range(1000, 4000, 500):
        damaged = bytearray(archive(whole))
        damaged[at] ^= 16
        with pytest.raises(DamagedFile), standfast.open(io.BytesIO(damaged)) as file:
            file["a"]


@pytest.mark.parametrize("mapped", [True, False])
def test_a_damaged_stored_array_of_numpy_is_found_by_its_checksum(mapped, tmp_path):
    path, w = tmp_path / "a.npz", np.arange(1000.0)
    np.savez(path, fine=np.ones(9), w=w, f=np.ones((2, 3), order="F"))
    with pytest.warns(NotVerified, match="CRC-32"):
        assert standfast.load(path, mapped=mapped)["w"][999] == 999
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(w.tobytes()) + 4321] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DigestMismatch) as damage:
        standfast.load(path, mapped=mapped)
    assert damage.value.tensors == ("w",)
    with standfast.open(path, mapped=mapped) as file:
        assert file["fine"].sum() == 9
        with pytest.raises(DigestMismatch):
            file["w"]
    assert standfast.load(path, verify=False, mapped=mapped)["w"].size == 1000


def test_mapped_arrays_are_views_of_the_file_and_aligned(tmp_path):
    state = {"odd": np.ones(3, np.uint8), "w": np.arange(1000.0)}
    standfast.save(tmp_path / "ours.npz", state)
    np.savez(tmp_path / "theirs.npz", **state)
    for name in ("ours.npz", "theirs.npz"):
        with standfast.open(tmp_path / name) as file:
            assert np.shares_memory(file["w"], file["w"]) or name == "theirs.npz"
            assert file["w"].flags.aligned
            assert np.array_equal(file["w"], state["w"])
