"""Compressed arrays and odd ones: what shows only when an array is taken."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import BadArchive, DamagedFile, DigestMismatch, SizeMismatch
from tests.formats.npz.malformed import SIX, bomb, file_of, npy, packed, saved, sealed
from tests.formats.torch.malformed import deflated
from tests.formats.zip.builders import archive
from tests.fuzz.limits import memory_limit, processor_limit

Array = np.ndarray[Any, Any]


def test_what_the_cases_are_made_of_is_sound(tmp_path: Path) -> None:
    whole = {"plain": file_of(npy()), "packed": packed(npy()), "sealed": sealed(), "saved": saved()}
    for name, data in whole.items():
        (tmp_path / "file.npz").write_bytes(data)
        with standfast.open(tmp_path / "file.npz") as file:
            assert file["a"].tobytes() == SIX, name
            assert file.has_digests == (name in ("sealed", "saved"))
        with np.load(tmp_path / "file.npz", allow_pickle=False) as theirs:
            assert theirs.files == ["a"]
            assert theirs["a"].tobytes() == SIX


# What shows only when an array is taken

PACKED = deflated("a.npy", npy())
BROKEN = {
    "another CRC-32": (packed(npy(), crc=7), DigestMismatch, r"the CRC-32 [0-9a-f]{8}, not 0000"),
    "a bomb behind the array": (
        packed(bomb(), size=len(npy())),
        SizeMismatch,
        rf"other than the {len(npy())} bytes",
    ),
    "inflates to too little": (
        packed(npy()[:-4], size=len(npy())),
        SizeMismatch,
        rf"other than the {len(npy())} bytes",
    ),
    **{
        f"{more} bytes behind the end": (
            archive(replace(PACKED, data=PACKED.data + b"x" * more)),
            SizeMismatch,
            r"other than the",
        )
        for more in (1, 2, 6, 7, 8, 9, 30)
    },
}


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_compressed_array_that_is_broken_is_found_when_it_is_taken(
    broken: str, mapped: bool, tmp_path: Path
) -> None:
    data, error, message = BROKEN[broken]
    path = tmp_path / "file.npz"
    path.write_bytes(data)
    with memory_limit(1 << 28), processor_limit(5):
        with standfast.open(path, mapped=mapped) as file, pytest.raises(DamagedFile) as found:
            file["a"]
        assert type(found.value) is error
        assert str(found.value).startswith(f"{path}: tensor 'a': ")
        assert re.search(message, str(found.value))
        with pytest.raises(error, match=message):
            standfast.convert(path, tmp_path / "new.safetensors")
    assert not (tmp_path / "new.safetensors").exists()


def test_a_compressed_array_that_is_broken_behind_its_header_is_found(tmp_path: Path) -> None:
    noise = np.random.default_rng(7).integers(0, 256, 5000, np.uint8)
    whole = deflated("a.npy", npy("'|u1'", shape="(5000,)", data=noise.tobytes()))
    half = whole.data[: len(whole.data) // 2]
    for data in (half, half + b"\xff" * 200):
        (tmp_path / "file.npz").write_bytes(archive(replace(whole, data=data)))
        with (
            standfast.open(tmp_path / "file.npz") as file,
            pytest.raises(
                (BadArchive, SizeMismatch), match=r"tensor 'a': it (inflates|cannot be inflated)"
            ),
        ):
            file["a"]


# Legal, and odd


def array_of(dtype: str) -> Array:
    return np.arange(24).reshape(2, 3, 4).astype(dtype)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">i8", "<c16", ">c16", ">u2", "|b1", "|i1"])
def test_any_order_of_bytes_and_elements_gives_the_values(
    dtype: str, compressed: bool, mapped: bool, tmp_path: Path
) -> None:
    path = tmp_path / "file.npz"
    orders = {"c": array_of(dtype), "f": np.asfortranarray(array_of(dtype))}
    (np.savez_compressed if compressed else np.savez)(path, **orders)  # type: ignore[arg-type]
    with standfast.open(path, mapped=mapped) as file:
        for name in orders:
            assert file[name].dtype == np.dtype(dtype).newbyteorder("=")
            assert np.array_equal(file[name], array_of(dtype))
    standfast.convert(path, tmp_path / "new.npz")
    assert not standfast.diff(path, tmp_path / "new.npz")
