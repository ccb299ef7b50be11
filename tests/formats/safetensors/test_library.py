"""The reference library reads what we write, and we read what it writes, with equal bytes."""

from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast.errors import NotVerified
from standfast.formats.safetensors.file import CODE_OF
from standfast.tensors import DTYPES, TensorSpec
from tests.formats.safetensors.builders import one_tensor
from tests.kit.strategies import arrays, names, packed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


@given(st.dictionaries(names, arrays() | packed(), max_size=6))
@settings(max_examples=60, deadline=None)
def test_the_library_reads_what_we_write(folder, tensors):
    path = folder / "ours.safetensors"
    standfast.save(path, tensors, {"step": 1})
    theirs = dict(safetensors.deserialize(path.read_bytes()))
    with standfast.open(path) as file:
        assert theirs.keys() == tensors.keys()
        for name, view in theirs.items():
            spec = file.spec(name)
            assert view["dtype"] == CODE_OF[spec.dtype]
            assert tuple(view["shape"]) == spec.shape
            assert bytes(view["data"]) == file[name].tobytes()


def test_we_read_what_the_library_writes(tmp_path):
    path = tmp_path / "theirs.safetensors"
    tensors = {"odd": torch.ones(3, dtype=torch.uint8)}
    for name in CODE_OF:
        if name == "float4_e2m1fn":
            bits = torch.arange(24, dtype=torch.uint8).reshape(4, 6)
            tensors[name] = bits.view(torch.float4_e2m1fn_x2)
        elif hasattr(torch, name):
            numbers = torch.arange(24) % (2 if name == "bool" else 24)
            tensors[name] = numbers.reshape(4, 6).to(getattr(torch, name))
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    with pytest.warns(NotVerified):
        loaded = standfast.load(path, framework="torch")
    assert standfast.open(path).metadata == {"format": "pt"}
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8))


def test_all_dtypes_of_the_library_are_known():
    with pytest.raises(safetensors.SafetensorError) as refused:
        safetensors.deserialize(one_tensor(dtype='"?"'))
    listed = str(refused.value).partition("expected one of ")[2]
    codes = {word.strip(" `").split("`")[0] for word in listed.split(",")}
    assert codes == set(CODE_OF.values())


def test_our_tensors_start_on_a_page_and_each_is_aligned(tmp_path):
    path = tmp_path / "state.safetensors"
    tensors = {
        f"{name}.{i}": np.zeros(3, DTYPES[name].numpy)
        for i in range(2)
        for name in CODE_OF
        if not DTYPES[name].packed
    }
    standfast.save(path, tensors)
    with standfast.open(path) as file:
        starts = {name: file[name].ctypes.data for name in file}
        assert min(starts.values()) % 4096 == 0
        for name, start in starts.items():
            assert start % TensorSpec(file.spec(name).dtype, ()).kind.numpy.itemsize == 0


def test_transformers_would_take_our_files(tmp_path):
    """It asks for a framework wherever there is metadata; users never see ours."""
    for metadata, format in (({}, "pt"), ({"step": 1}, "pt"), ({"format": "mlx"}, "mlx")):
        standfast.save(tmp_path / "a.safetensors", {"w": np.ones(2)}, metadata)
        with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
            assert file.metadata()["format"] == format
        assert standfast.open(tmp_path / "a.safetensors").metadata == metadata
    standfast.save(tmp_path / "a.safetensors", {"w": np.ones(2)}, extras=False)
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        assert file.metadata() is None
