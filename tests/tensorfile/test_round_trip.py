"""What was saved is what is loaded: every dtype, shape and stride, bit for bit."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast.errors import BadOption, ClosedFile
from standfast.tensors import Packed
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
