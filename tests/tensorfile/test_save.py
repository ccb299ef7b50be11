"""What a save refuses, before a byte is written."""

import io
import os
import warnings
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

import standfast
from standfast import errors
from tests.formats.builders import flipped

ONE = np.ones(1)


def pack(dtype: str, *shape: int) -> standfast.Packed:
    return standfast.Packed(np.zeros(3, "u1"), dtype, shape)


REFUSED: list[tuple[type[Exception], list[Any]]] = [
    (errors.DuplicateName, [[("a", ONE), ("b", ONE), ("a", ONE)]]),
    (errors.BadName, [{n: ONE} for n in ("x" * 65_536, "é" * 32_768, "__metadata__", "\ud800", 1)]),
    (errors.UnsupportedDType, [{"a": np.ones(1, d)} for d in (np.complex128, np.longdouble)]),
    (errors.UnsupportedDType, [{"a": np.array(["x"])}, {"a": np.array([None])}]),
    (errors.UnsupportedDType, [{"a": np.zeros(1, d)} for d in ("M8[s]", [("x", "f4")])]),
    (errors.UnsupportedTensor, [{"a": np.ma.masked_array([1.0], [True])}]),
    (errors.UnsupportedTensor, [{"a": each} for each in (1.0, [1.0], None)]),
    (errors.UnsupportedTensor, [{"a": pack("float4_e2m1fn", n)} for n in (7, 8)]),
    (errors.UnsupportedTensor, [{"a": pack("float32", 3)}]),
]


@pytest.mark.parametrize(("error", "cases"), REFUSED)
def test_a_tensor_that_cannot_be_written_is_refused_by_name(error, cases, tmp_path):
    path = tmp_path / "state.safetensors"
    standfast.save(path, {"old": ONE})
    before = path.read_bytes()
    for tensors in cases:
        with pytest.raises(error) as caught:
            standfast.save(path, tensors)
        assert type(caught.value) is error
        assert error is errors.BadName or "'a'" in str(caught.value)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_more_than_a_header_can_hold_is_refused(tmp_path, seams):
    seams.bound("bytes of a safetensors header", 4088)
    standfast.save(tmp_path / "fits.safetensors", {"a": ONE}, {"text": "x" * 3000})
    with pytest.raises(errors.RefusedTensor):
        standfast.save(tmp_path / "state.safetensors", {"a": ONE}, {"text": "x" * 4000})


def test_metadata_that_would_not_come_back_the_same_is_refused(tmp_path):
    values = (float("nan"), float("inf"), (1, 2), np.float64(1), {"b": [1, {2}]}, {1: 2}, "\ud800")
    keys = (1, "standfast.digest", "standfast.mine", "\ud800")
    for metadata in (*({"a": v} for v in values), *({k: "x"} for k in keys), [("a", 1)]):
        with pytest.raises(errors.RefusedMetadata):
            standfast.save(tmp_path / "state.safetensors", {"a": ONE}, metadata)
    assert list(tmp_path.iterdir()) == []


def test_metadata_keeps_its_types_and_strings_stay_as_they_are(tmp_path):
    metadata = {"format": "pt", "step": 3, "text": "3", "nothing": None, "lr": 1e-4, "big": 2**80}
    path = tmp_path / "state.safetensors"
    standfast.save(path, {}, metadata)
    with standfast.open(path) as file:
        assert file.metadata == metadata
        assert [type(v) for v in file.metadata.values()] == [type(v) for v in metadata.values()]
    with safe_open(path, "np") as theirs:
        strings = theirs.metadata()
    ours = {"nothing": "null", "lr": "0.0001", "big": str(2**80)}
    expected = {"format": "pt", "step": "3", "text": "3", **ours}
    assert {k: v for k, v in strings.items() if not k.startswith("standfast.")} == expected


def test_a_stream_that_takes_less_than_it_is_given_gets_the_rest():
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


def test_a_stream_that_does_not_block_does_not_lose_bytes_silently():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with (
        os.fdopen(reading, "rb"),
        os.fdopen(writing, "wb", buffering=0) as stream,
        pytest.raises(errors.WriteFailed),
    ):
        standfast.save(stream, {"a": np.zeros(1 << 20, np.uint8)})


def test_what_cannot_be_written_to_is_refused(tmp_path):
    class Full(io.RawIOBase):
        def write(self, data: Any) -> int:
            raise OSError(28, "No space left on device")

    closed = io.BytesIO()
    closed.close()
    streams = (Full(), closed, io.StringIO(), io.BufferedReader(io.BytesIO()))
    paths = ("x\0.safetensors", "x\ud800.safetensors", "x" * 300 + ".safetensors")
    for target in (*(f"{tmp_path}/{odd}" for odd in paths), 3, None, *streams):
        with pytest.raises(errors.WriteFailed):
            standfast.save(target, {"a": ONE})  # type: ignore[arg-type]
    with pytest.raises(errors.UnknownFormat, match=r"\.safetensors"):
        standfast.save(tmp_path / "state.xyz", {"a": ONE})
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_read_is_refused():
    closed = io.BytesIO(b"x" * 100)
    closed.close()
    for source in (closed, io.StringIO("x" * 100), 3.5):
        with pytest.raises(errors.UnreadableFile):
            standfast.open(source)  # type: ignore[arg-type]


def test_paths_may_be_bytes_and_streams_may_be_empty_containers(tmp_path):
    class Sized(io.BytesIO):
        def __len__(self) -> int:
            return len(self.getvalue())

    path, stream = os.fsencode(tmp_path / "state.safetensors"), Sized()
    standfast.save(path, {"a": ONE})  # type: ignore[arg-type]
    standfast.save(stream, {"a": ONE})
    assert (tmp_path / "state.safetensors").read_bytes() == stream.getvalue()


def test_subclasses_of_arrays_are_saved_as_the_arrays_they_are(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        matrix = np.matrix(np.arange(3 << 18, dtype=float).reshape(1024, -1))
    standfast.save(tmp_path / "state.safetensors", {"m": matrix, "t": matrix.T})
    loaded = standfast.load(tmp_path / "state.safetensors")
    assert np.array_equal(loaded["m"], np.asarray(matrix))
    assert np.array_equal(loaded["t"], np.asarray(matrix).T)


def test_damage_met_while_saving_an_open_file_is_reported_as_damage(tmp_path):
    path = tmp_path / "state.safetensors"
    standfast.save(path, {"a": ONE})
    path.write_bytes(flipped(path.read_bytes(), path.stat().st_size - 1))
    with standfast.open(path) as file, pytest.raises(errors.DigestMismatch):
        standfast.save(tmp_path / "copy.safetensors", file)
    assert list(tmp_path.iterdir()) == [path]
