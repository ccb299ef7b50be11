"""Files that were right once: whatever bit flips and wherever they end, it is found and named."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import (
    DamagedFile,
    DigestMismatch,
    NothingToVerify,
    StandfastError,
    TrailingBytes,
    TruncatedFile,
    UnknownFormat,
)
from standfast.formats import FORMATS
from standfast.oxck import Checkpoint, TruncatedData
from tests.formats.builders import flipped, opened, saved
from tests.formats.sunc.builders import whole_files
from tests.fuzz.limits import processor_limit

SUFFIX = {format.NAME: format.SUFFIXES[0] for format in FORMATS}
TENSORS = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bias": np.array([7, -0.0], np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "mask": np.array([1, 0, 1], np.float32),
}
GENERAL = ["safetensors", "tenzor", "oxck", "torch", "npz"]
WHOLE = {
    **{format: saved(format, TENSORS, {"step": 3, "name": "run"}) for format in GENERAL},
    **{f"sunc {kind}": data for kind, data in whole_files().items()},
}
BARE = {format: saved(format, TENSORS, extras=False) for format in GENERAL}


def loads(data: bytes) -> None:
    with opened(data) as file:
        file.arrays()


def loads_as_checkpoint(data: bytes) -> None:
    Checkpoint.read_from(io.BytesIO(data))


READS: dict[str, Callable[[bytes], None]] = {
    **dict.fromkeys(WHOLE, loads),
    "oxck, as a checkpoint": loads_as_checkpoint,
}


def is_found(read: Callable[[bytes], None], data: bytes) -> bool:
    try:
        read(data)
    except StandfastError:
        return True
    return False


def bits_of(data: bytes, every: bool) -> list[int]:
    """All bits; or one of each third byte, and few of those of long padding, which are alike."""
    if every:
        return list(range(8 * len(data)))
    alike = [data[at - 20 : at + 20] in (bytes(40), b" " * 40) for at in range(len(data))]
    return [8 * at + at % 8 for at in range(len(data)) if at % (61 if alike[at] else 3) == 0]


all_bits = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])


@pytest.mark.guarantee("G9")
@all_bits
@pytest.mark.parametrize("name", READS)
def test_every_flipped_bit_is_found(name: str, every: bool) -> None:
    data = bytearray(WHOLE[name.split(",")[0]])
    missed = []
    for bit in bits_of(bytes(data), every):
        data[bit // 8] ^= 1 << bit % 8
        if not is_found(READS[name], bytes(data)):
            missed.append(bit)
        data[bit // 8] ^= 1 << bit % 8
    assert missed == []
    assert not is_found(READS[name], bytes(data))


@all_bits
@pytest.mark.parametrize("files", [WHOLE, BARE], ids=["whole", "bare"])
@pytest.mark.parametrize("format", GENERAL)
def test_a_file_cut_anywhere_is_refused(
    format: str, files: dict[str, bytes], every: bool, tmp_path: Path
) -> None:
    path, data = tmp_path / f"file{SUFFIX[format]}", files[format]
    path.write_bytes(data)
    for size in sorted({bit // 8 for bit in bits_of(data, every)}, reverse=True):
        os.truncate(path, size)
        with pytest.raises(TruncatedFile) as refused:
            standfast.open(path, verify=bool(size % 2))
        assert str(refused.value).startswith(f"{path}: ")
        with pytest.raises(DamagedFile):
            standfast.load(io.BytesIO(data[: max(size, 10)]))
        if format == "oxck":
            with pytest.raises(TruncatedData) as cut:
                Checkpoint.load(path)
            assert 0 <= cut.value.got < cut.value.expected
    path.write_bytes(data + b"\0")
    for verify in (True, False):
        with pytest.raises(TrailingBytes):
            standfast.open(path, verify=verify)


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("format", GENERAL)
def test_a_damaged_tensor_is_named_and_the_others_can_be_read(
    format: str, mapped: bool, tmp_path: Path
) -> None:
    path, data = tmp_path / f"file{SUFFIX[format]}", WHOLE[format]
    at = data.index(TENSORS["mask"].tobytes())
    path.write_bytes(flipped(data, at))
    uses: list[Callable[[], Any]] = [
        lambda: standfast.verify(path),
        lambda: standfast.load(path, mapped=mapped),
        *([lambda: Checkpoint.load(path)] if format == "oxck" else []),
    ]

    def check(*damaged: str) -> None:
        for use in uses:
            with pytest.raises(DigestMismatch) as found:
                use()
            assert found.value.tensors == damaged
            assert str(path) in str(found.value)

    check("mask")
    with standfast.open(path, mapped=mapped) as file:
        for name in ("weight", "bias", "empty"):
            assert np.array_equal(file[name], TENSORS[name])
        # A second look at it must not find it checked.
        for read in (lambda: file["mask"], lambda: file.slice("mask")[:1], lambda: file["mask"]):
            with pytest.raises(DigestMismatch):
                read()
    with standfast.open(path, mapped=mapped, verify=False) as file:
        assert len(dict(file)) == 4
    # All that are damaged are named, in the order of the file.
    for name in ("weight", "bias"):
        path.write_bytes(flipped(path.read_bytes(), data.index(TENSORS[name].tobytes())))
    check("weight", "bias", "mask")


@pytest.mark.parametrize("format", GENERAL)
def test_a_file_of_another_writer_can_be_loaded_but_not_verified(
    format: str, tmp_path: Path
) -> None:
    path = tmp_path / f"file{SUFFIX[format]}"
    path.write_bytes(BARE[format])
    with pytest.warns(standfast.errors.NotVerified) as warned:
        assert len(standfast.load(path)) == 4
    assert str(path) in str(warned[0].message)
    with pytest.raises(NothingToVerify) as refused:
        standfast.verify(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("format", GENERAL)
def test_very_many_tensors_take_time_by_their_number(format: str) -> None:
    tensors = {f"layers.{i}.重み": np.zeros(i % 2, np.float32) for i in range(5000)}
    with processor_limit(4):
        with opened(saved(format, tensors)) as file:
            assert list(file) == list(tensors)
        if format == "oxck":
            data = saved(format, tensors)
            assert len(Checkpoint.read_from(io.BytesIO(data)).tensors) == len(tensors)


def test_a_foreign_suffix_and_no_brace_are_of_no_format(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    for start in (b"[]", b" {}", b"", b"\x80\x04}."):
        path.write_bytes(struct.pack("<Q", len(start)) + start)
        with pytest.raises(UnknownFormat, match="file"):
            standfast.open(path)
