"""What a save refuses, before a byte is written."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.errors import (
    BadName,
    DuplicateName,
    RefusedMetadata,
    RefusedTensor,
    UnknownFormat,
    UnreadableFile,
    UnsupportedDType,
    UnsupportedTensor,
    WriteFailed,
)
from standfast.formats.safetensors import file as safetensors

ONE = np.ones(1)


@pytest.mark.parametrize(
    ("tensors", "error"),
    [
        ([("a", ONE), ("b", ONE), ("a", ONE)], DuplicateName),
        ({"x" * 65_536: ONE}, BadName),
        ({"é" * 32_768: ONE}, BadName),
        ({"__metadata__": ONE}, BadName),
        ({"\ud800": ONE}, BadName),
        ({1: ONE}, BadName),
        ({"a": np.ones(1, np.complex128)}, UnsupportedDType),
        ({"a": np.ones(1, np.longdouble)}, UnsupportedDType),
        ({"a": np.array(["x"])}, UnsupportedDType),
        ({"a": np.array([None])}, UnsupportedDType),
        ({"a": np.zeros(1, "M8[s]")}, UnsupportedDType),
        ({"a": np.zeros(1, [("x", "f4")])}, UnsupportedDType),
        ({"a": np.ma.masked_array([1.0], [True])}, UnsupportedTensor),
        ({"a": 1.0}, UnsupportedTensor),
        ({"a": [1.0]}, UnsupportedTensor),
        ({"a": None}, UnsupportedTensor),
        ({"a": standfast.Packed(np.zeros(3, "u1"), "float4_e2m1fn", (7,))}, UnsupportedTensor),
        ({"a": standfast.Packed(np.zeros(3, "u1"), "float4_e2m1fn", (8,))}, UnsupportedTensor),
        ({"a": standfast.Packed(np.zeros(3, "u1"), "float32", (3,))}, UnsupportedTensor),
    ],
)
def test_a_tensor_that_cannot_be_written_is_refused_by_name(
    tensors: Any, error: type[Exception], tmp_path: Path
) -> None:
    path = tmp_path / "state.safetensors"
    standfast.save(path, {"old": ONE})
    before = path.read_bytes()
    with pytest.raises(error) as caught:
        standfast.save(path, tensors)
    assert type(caught.value) is error
    named = "'a'" if "a" in dict(tensors) else next(iter(tensors))
    assert error is BadName or named in str(caught.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_more_than_a_header_can_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors, "MAX_HEADER", 4088)
    standfast.save(tmp_path / "fits.safetensors", {"a": ONE}, {"text": "x" * 3000})
    with pytest.raises(RefusedTensor):
        standfast.save(tmp_path / "state.safetensors", {"a": ONE}, {"text": "x" * 4000})


@pytest.mark.parametrize(
    "metadata",
    [
        {"loss": float("nan")},
        {"loss": float("inf")},
        {"shape": (1, 2)},
        {"loss": np.float64(1)},
        {"a": {"b": [1, {2}]}},
        {"a": {1: 2}},
        {1: 2},
        {"standfast.digest": "x"},
        {"standfast.mine": "x"},
        {"a": "\ud800"},
        {"\ud800": "a"},
        [("a", 1)],
    ],
)
def test_metadata_that_would_not_come_back_the_same_is_refused(
    metadata: Any, tmp_path: Path
) -> None:
    with pytest.raises(RefusedMetadata):
        standfast.save(tmp_path / "state.safetensors", {"a": ONE}, metadata)
    assert list(tmp_path.iterdir()) == []


def test_metadata_keeps_its_types_and_strings_stay_as_they_are(tmp_path: Path) -> None:
    metadata = {"format": "pt", "step": 3, "text": "3", "nothing": None, "lr": 1e-4, "big": 2**80}
    path = tmp_path / "state.safetensors"
    standfast.save(path, {}, metadata)
    with standfast.open(path) as file:
        assert file.metadata == metadata
        assert [type(v) for v in file.metadata.values()] == [type(v) for v in metadata.values()]
    from safetensors import safe_open

    with safe_open(path, "np") as theirs:
        strings = theirs.metadata()
    assert {k: v for k, v in strings.items() if not k.startswith("standfast.")} == {
        "format": "pt",
        "step": "3",
        "text": "3",
        "nothing": "null",
        "lr": "0.0001",
        "big": str(2**80),
    }


def test_a_path_of_no_known_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat, match=r"there are \.safetensors"):
        standfast.save(tmp_path / "state.xyz", {"a": ONE})


def test_a_stream_that_fails_says_so() -> None:
    class Full(io.RawIOBase):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(WriteFailed):
        standfast.save(Full(), {"a": ONE})  # type: ignore[arg-type]


def test_a_stream_that_takes_less_than_it_is_given_gets_the_rest() -> None:
    class Slow(io.RawIOBase):
        def __init__(self) -> None:
            self.data = bytearray()

        def write(self, data: Any) -> int:
            self.data += bytes(data[:1000])
            return min(1000, len(data))

    stream, whole = Slow(), io.BytesIO()
    standfast.save(stream, {"a": np.arange(5000)})  # type: ignore[arg-type]
    standfast.save(whole, {"a": np.arange(5000)})
    assert bytes(stream.data) == whole.getvalue()


def test_a_stream_that_does_not_block_does_not_lose_bytes_silently() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with (
        os.fdopen(reading, "rb"),
        os.fdopen(writing, "wb", buffering=0) as stream,
        pytest.raises(WriteFailed),
    ):
        standfast.save(stream, {"a": np.zeros(1 << 20, np.uint8)})


@pytest.mark.parametrize(
    "odd", ["x\0.safetensors", "x\ud800.safetensors", "x" * 300 + ".safetensors", 3, None]
)
def test_what_cannot_be_written_to_is_refused(odd: Any, tmp_path: Path) -> None:
    target = str(tmp_path) + "/" + odd if isinstance(odd, str) else odd
    with pytest.raises(WriteFailed):
        standfast.save(target, {"a": ONE})
    assert list(tmp_path.iterdir()) == []


def test_paths_may_be_bytes_and_streams_may_be_empty_containers(tmp_path: Path) -> None:
    class Sized(io.BytesIO):
        def __len__(self) -> int:
            return len(self.getvalue())

    path, stream = os.fsencode(tmp_path / "state.safetensors"), Sized()
    standfast.save(path, {"a": ONE})  # type: ignore[arg-type]
    standfast.save(stream, {"a": ONE})
    assert (tmp_path / "state.safetensors").read_bytes() == stream.getvalue()


def test_subclasses_of_arrays_are_saved_as_the_arrays_they_are(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        matrix = np.matrix(np.arange(3 << 20, dtype=float).reshape(1024, -1))
    standfast.save(tmp_path / "state.safetensors", {"m": matrix, "t": matrix.T})
    loaded = standfast.load(tmp_path / "state.safetensors")
    assert np.array_equal(loaded["m"], np.asarray(matrix))
    assert np.array_equal(loaded["t"], np.asarray(matrix).T)


def test_damage_met_while_saving_an_open_file_is_reported_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    standfast.save(path, {"a": ONE})
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with standfast.open(path) as file, pytest.raises(standfast.errors.DigestMismatch):
        standfast.save(tmp_path / "copy.safetensors", file)
    assert list(tmp_path.iterdir()) == [path]


def test_streams_that_cannot_be_written_to_are_refused() -> None:
    closed = io.BytesIO()
    closed.close()
    for stream in (closed, io.StringIO(), io.BufferedReader(io.BytesIO())):
        with pytest.raises(WriteFailed):
            standfast.save(stream, {"w": np.ones(2)})


def test_streams_that_cannot_be_read_are_refused() -> None:
    closed = io.BytesIO(b"x" * 100)
    closed.close()
    for stream in (closed, io.StringIO("x" * 100)):
        with pytest.raises(UnreadableFile):
            standfast.open(stream)
    with pytest.raises(UnreadableFile, match="no path"):
        standfast.open(3.5)
