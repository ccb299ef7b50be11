"""What was saved is what is loaded, bit for bit, and what a save refuses before it writes."""

import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import standfast
from standfast import errors
from standfast.errors import BadOption, ClosedFile
from standfast.tensors import Packed
from tests.formats.builders import flipped
from tests.kit.seams import Seams
from tests.kit.strategies import arrays, metadata, names, packed, same_bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("round-trip")


@pytest.mark.guarantee("G4")
@given(st.dictionaries(names, arrays() | packed(), max_size=6), metadata)
@settings(max_examples=50, deadline=None)
def test_tensors_and_metadata_come_back_as_they_were(folder, tensors, metadata):
    path = folder / "state.safetensors"
    standfast.save(path, tensors, metadata)
    expected = {
        name: value.data.reshape(standfast.TensorSpec(value.dtype, value.shape).array_shape)
        if isinstance(value, Packed)
        else value
        for name, value in tensors.items()
    }
    for mapped in (True, False):
        with standfast.open(path, mapped=mapped) as file:
            assert list(file) == list(tensors)
            assert json.dumps(file.metadata) == json.dumps(metadata)
            for name, value in expected.items():
                assert same_bytes(file[name], value)
                assert not file[name].flags.writeable
                assert file[name].flags.aligned
                assert file.spec(name).shape == tensors[name].shape
        loaded = standfast.load(path, mapped=mapped)
        for name, value in expected.items():
            assert same_bytes(loaded[name], value)
            assert loaded[name].flags.writeable
    assert standfast.verify(path).tensors == len(tensors)
    stream = io.BytesIO()
    standfast.save(stream, tensors, metadata)
    assert stream.getvalue() == path.read_bytes()


@given(arrays(), st.data())
@settings(max_examples=50, deadline=None)
def test_a_slice_is_what_numpy_would_give(folder, array, data):
    path = folder / "slice.safetensors"
    standfast.save(path, {"x": array})
    index = tuple(
        data.draw(st.integers(-n, n - 1) if n and data.draw(st.booleans()) else st.slices(n))
        for n in array.shape[: data.draw(st.integers(0, array.ndim))]
    )
    if data.draw(st.booleans()):
        index = (*index, ...)
    for mapped in (True, False):
        for verify in (True, False):
            with standfast.open(path, mapped=mapped, verify=verify) as file:
                assert same_bytes(file.slice("x")[index], np.asarray(array[index]))


@given(arrays(["int8", "bfloat16", "float64", "complex64"]), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_tensor_survives_being_cut_into_blocks_anywhere(folder, array, pages):
    path = folder / "blocks.safetensors"
    tensors = {"head": np.arange(997, dtype=np.float64), "x": array, "y": np.tile(array, 50)}
    with Seams.until_end() as seams:
        seams.bound("blocks of the ring", 4096 * pages)
        standfast.save(path, tensors)
    loaded = standfast.load(path)
    assert all(same_bytes(loaded[name], value) for name, value in tensors.items())


def test_the_same_tensors_give_the_same_bytes(tmp_path):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    for name, value in {
        "c order": array,
        "fortran order": np.asfortranarray(array),
        "sliced": np.repeat(array, 2, axis=1)[:, ::2],
        "big endian": array.astype(">f4"),
    }.items():
        standfast.save(tmp_path / f"{name}.safetensors", {"x": value, "n": np.int64([1])}, {"a": 1})
    files = {path.read_bytes() for path in tmp_path.iterdir()}
    assert len(files) == 1


def test_tensors_come_in_pairs_too_and_keep_their_order(tmp_path):
    path, dtypes = tmp_path / "state.safetensors", {"z": "u1", "a": "f8", "b": "f4"}
    standfast.save(path, ((name, np.ones(2, dtype)) for name, dtype in dtypes.items()))
    assert list(standfast.load(path)) == ["z", "a", "b"]


def test_what_is_written_to_a_loaded_tensor_stays_in_memory(tmp_path):
    path = tmp_path / "state.safetensors"
    standfast.save(path, {"x": np.zeros(10_000)})
    first = standfast.load(path)
    first["x"] += 1
    assert standfast.load(path)["x"].sum() == 0
    assert first["x"].sum() == 10_000


def test_a_file_can_be_saved_over_while_its_tensors_are_mapped(tmp_path):
    path = tmp_path / "state.safetensors"
    standfast.save(path, {"x": np.arange(100_000.0)})
    with standfast.open(path) as file:
        standfast.save(path, {"x": file["x"][::-1], "y": file["x"]})
        assert file["x"][0] == 0
    loaded = standfast.load(path)
    assert loaded["x"][0] == 99_999
    loaded["x"] *= 2
    standfast.save(path, loaded)
    assert standfast.load(path)["x"][0] == 2 * 99_999


def test_an_open_file_can_be_saved_as_it_is(tmp_path):
    standfast.save(tmp_path / "a.safetensors", {"x": np.arange(5), "y": np.ones((2, 3))})
    with standfast.open(tmp_path / "a.safetensors") as file:
        standfast.save(tmp_path / "b.safetensors", file, file.metadata)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_arrays_outlive_the_file_they_came_from(tmp_path):
    path = tmp_path / "state.safetensors"
    standfast.save(path, {"x": np.arange(5.0)})
    with standfast.open(path) as file:
        array = file["x"]
    path.unlink()
    assert array.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ClosedFile):
        file["x"]


def test_a_verify_that_is_neither_true_nor_false_is_refused(tmp_path):
    path = tmp_path / "a.safetensors"
    standfast.save(path, {"a": np.ones(3)})
    for verify in ("require", "no", "", 0, None):
        for read in (standfast.load, standfast.open):
            with pytest.raises(BadOption, match="verify="):
                read(path, verify=verify)


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
    for wrong in (*({"a": v} for v in values), *({k: "x"} for k in keys), [("a", 1)]):
        with pytest.raises(errors.RefusedMetadata):
            standfast.save(tmp_path / "state.safetensors", {"a": ONE}, wrong)
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
